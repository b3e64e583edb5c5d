"""Parse a command line, run the verb, and turn any error into a message and an exit code. Shell completion."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from headway.cli import VERBS
from headway.core.errors import BAD_INPUT, FAILED, BadInput, HeadwayError

# Shell completion, by argcomplete: verbs, options, and the names of runs.


SHELLS = ("bash", "fish", "zsh")


def completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", nargs="?", choices=SHELLS, help="default: from $SHELL")


def completion_command(args: argparse.Namespace) -> int:
    shell = args.shell or os.path.basename(os.environ.get("SHELL", ""))
    if shell not in SHELLS:
        raise BadInput(f"there is no completion script for the shell {shell!r}", fix="headway completion bash")
    import argcomplete

    print(argcomplete.shellcode(["headway"], shell=shell))
    return 0


def complete() -> None:
    """Answer the shell and exit. Builds every verb's parser, which nothing else does."""
    import argcomplete

    parser = argparse.ArgumentParser(prog="headway")
    verbs = parser.add_subparsers()
    for verb in VERBS:
        add_verb(verbs.add_parser(verb), verb)
    argcomplete.autocomplete(parser, always_complete_options=False)


class Parser(argparse.ArgumentParser):
    """argparse, with our way of saying what is wrong."""

    def error(self, message: str) -> None:  # type: ignore[override]
        verb = self.prog.removeprefix("headway ")
        print(f"headway: {message}\n    fix: headway {verb} --help", file=sys.stderr)
        raise SystemExit(BAD_INPUT)


def parser_for(verb: str) -> argparse.ArgumentParser:
    parser = Parser(prog=f"headway {verb}", description=VERBS[verb].summary, allow_abbrev=False)
    add_verb(parser, verb)
    return parser


def add_verb(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.set_defaults(verb=verb)  # before `arguments`: verbs that share a module tell themselves apart by it
    _function(verb, "arguments")(parser)


def _function(verb: str, kind: str) -> Callable[..., Any]:
    """The function `<name>_arguments` or `<name>_command` of a verb."""
    module, _, name = VERBS[verb].functions.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), f"{name}_{kind}")
    return found


def dispatch(words: list[str]) -> int:
    verb, *rest = words
    if verb not in VERBS:
        close = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"headway {close[0]}" if close else "headway --help"
        print(f"headway: no verb {verb!r}\n    fix: {hint}", file=sys.stderr)
        return BAD_INPUT
    try:
        parser = parser_for(verb)
        # Intermixed: `headway predict RUN --json a.png`. argparse cannot do it for verbs that have verbs of their own.
        args = parser.parse_args(rest) if parser._subparsers else parser.parse_intermixed_args(rest)
        return int(_function(verb, "command")(args))
    except SystemExit as exit_request:  # argparse: --help, or an error already printed
        return exit_request.code if isinstance(exit_request.code, int) else FAILED
    except HeadwayError as error:
        print(f"headway: {error}{_with_diagnosis(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `headway logs | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in _EXCEPTION_NAMES:
            return _report_bug(error)
        print(f"headway: {_EXCEPTION_NAMES[error.errno]}: {error.filename or error}", file=sys.stderr)
        return BAD_INPUT if error.errno in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR) else FAILED
    except Exception as error:  # noqa: BLE001 - the last line of defence: reported in full, and it ends here
        return _report_bug(error)


def _with_diagnosis(error: HeadwayError) -> str:
    """What a known failure means, where the error itself does not say what to type."""
    if error.problem.fix:
        return ""
    from headway.diagnose.diagnosis import match_rules

    found = match_rules(str(error).splitlines())
    return f"\n    cause: {found.cause}\n    fix: {found.fix}" if found else ""


_EXCEPTION_NAMES = {
    errno.EACCES: "permission denied",
    errno.EISDIR: "is a folder",
    errno.ENOENT: "no such file",
    errno.ENOSPC: "no space left on the disk",
    errno.ENOTDIR: "is not a folder",
    errno.EROFS: "read-only",
}


def _report_bug(error: BaseException) -> int:
    """Our own mistake: say so in two lines, and keep the evidence where it can be sent to us."""
    import traceback

    from headway.core.platform import state_dir

    if os.environ.get("HEADWAY_DEBUG"):
        traceback.print_exception(error)
        return FAILED
    where = state_dir() / "crash.txt"
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text("".join(traceback.format_exception(error)))
        report_path = f"the traceback is in {where}"
    except OSError:
        report_path = "HEADWAY_DEBUG=1 prints the traceback"
    print(f"headway: this is a bug in Headway: {type(error).__name__}: {error}\n    {report_path}", file=sys.stderr)
    return FAILED
