"""The command line. A verb's module is imported only when the verb is typed, so that `headway --help` is instant."""

from __future__ import annotations

import os
import sys

from headway.cli.dispatch import GROUPS, VERBS

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. Nothing a user does ends in a traceback."""
    words = sys.argv[1:] if argv is None else argv
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what could come next
        from headway.cli.dispatch import complete

        complete()
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] in ("-V", "--version"):
        from headway._version import __version__

        print(f"headway {__version__}")
        return 0
    from headway.cli.dispatch import dispatch

    return dispatch(words)


def usage() -> str:
    """The front page: what one can type, grouped by when one types it."""
    lines = ["usage: headway VERB …", "", "Train a model from one job file, here or anywhere.", ""]
    for title, names in GROUPS.items():
        lines += [f"{title}:", *(f"  {name:<14} {VERBS[name].summary}" for name in names), ""]
    lines += ["headway VERB --help explains a verb. A RUN is a name, a unique prefix, `last`, a folder or a URL.",
              "First time here?   headway init && headway run"]  # fmt: skip
    return "\n".join(lines)
