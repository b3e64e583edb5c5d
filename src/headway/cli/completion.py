"""Shell completion, by argcomplete: verbs, options, and the names of runs."""

from __future__ import annotations

import argparse
import os

from headway.errors import BadInput

SHELLS = ("bash", "fish", "zsh")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", nargs="?", choices=SHELLS, help="default: the one in $SHELL")


def main(args: argparse.Namespace) -> int:
    shell = args.shell or os.path.basename(os.environ.get("SHELL", ""))
    if shell not in SHELLS:
        raise BadInput(f"no completion for the shell {shell!r}", fix="headway completion bash")
    import argcomplete

    print(argcomplete.shellcode(["headway"], shell=shell))
    return 0


def complete() -> None:
    """Answer the shell and exit. Builds every verb's parser, which nothing else does."""
    import argcomplete

    from headway.cli.dispatch import add_verb
    from headway.cli.verbs import VERBS

    parser = argparse.ArgumentParser(prog="headway")
    verbs = parser.add_subparsers()
    for verb in VERBS:
        add_verb(verbs.add_parser(verb), verb)
    argcomplete.autocomplete(parser, always_complete_options=False)
