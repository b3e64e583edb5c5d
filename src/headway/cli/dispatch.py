"""Parse a command line, run the verb, and turn any error into a message and an exit code. Shell completion."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli import VERBS
from headway.core.errors import BAD_INPUT, FAILED, BadInput, HeadwayError
from headway.core.format import is_billed, price_rows

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job


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
    """An argparse parser that prints errors in Headway's form: what is wrong, and the fix."""

    def error(self, message: str) -> None:  # type: ignore[override]
        verb = self.prog.removeprefix("headway ")
        print(f"headway: {message}\n    fix: headway {verb} --help", file=sys.stderr)
        raise SystemExit(BAD_INPUT)


def parser_for(verb: str) -> argparse.ArgumentParser:
    parser = Parser(prog=f"headway {verb}", description=VERBS[verb].summary, allow_abbrev=False)
    add_verb(parser, verb)
    return parser


def add_verb(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.set_defaults(verb=verb)  # before `arguments`: verbs that share a module distinguish themselves by it
    _function(verb, "arguments")(parser)


def _function(verb: str, kind: str) -> Callable[..., Any]:
    """Import the function `<name>_arguments` or `<name>_command` of a verb."""
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
    """Return the cause and fix of a known failure, if the error itself has no fix; else an empty text."""
    if error.problem.fix:
        return ""
    from headway.diagnose.matching import match_rules

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
    """Report a bug in Headway in two lines, and write the traceback to a file that can be sent to us."""
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


# Options that several verbs share: the job file and its overrides, the run, `--json`; and the paid-run prompt.


# Ask before a run that costs money.


def confirm(plan: Plan, *, yes: bool) -> None:
    """Show the cost and ask for confirmation. Raises BadInput if the answer is no, or if there is no terminal."""
    if not is_billed(plan):
        return
    for head, text in price_rows(plan.price).items():
        print(f"  {head:<9} {text}", file=sys.stderr)
    if yes:
        return
    if not sys.stdin.isatty():
        what = f"this run costs money on {plan.target}, and there is no terminal to confirm it"
        raise BadInput(what, fix="add -y to the command")
    print(f"start it on {plan.target}? [y/N] ", end="", file=sys.stderr, flush=True)
    if not sys.stdin.readline().strip().lower().startswith("y"):
        raise BadInput("not confirmed: nothing was started, nothing was spent", fix="headway run, and answer y")


DEFAULT = "headway.yaml"
LOCAL = "local"


def add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", default=DEFAULT, metavar="FILE", help=f"the job file (default: {DEFAULT})")
    parser.add_argument("--on", default=LOCAL, metavar="TARGET", help="a target of the job file (default: local)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                        help="override a key of the job file: --set config.epochs=3")  # fmt: skip
    parser.add_argument("--env", action="append", default=[], metavar="K[=V]",
                        help="an environment variable for the run; without =V, its value in this shell")  # fmt: skip
    parser.add_argument("--secret", action="append", default=[], metavar="K",
                        help="a secret for the run, from this shell's variable K; never written to disk")  # fmt: skip


def load_job(args: argparse.Namespace) -> Job:
    """Load the job file with the overrides of this command."""
    from headway.spec import Job

    path = Path(args.file)
    if not path.exists() and args.file == DEFAULT:
        raise BadInput(
            f"there is no {DEFAULT} in this folder", where=str(Path.cwd()), fix="headway init, or name one with -f"
        )
    secrets = [f"secrets.{name}=env:{name}" for name in _present(args.secret)]
    return Job.load(path, set=[*args.changes, *secrets], variables=_variables(args.env))


def _variables(given: Iterable[str]) -> dict[str, str]:
    pairs = [item.partition("=") for item in given]
    _present([name for name, sign, _ in pairs if not sign])
    return {name: value if sign else os.environ[name] for name, sign, value in pairs}


def _present(names: list[str]) -> list[str]:
    for name in names:
        if name not in os.environ:
            raise BadInput(f"the environment variable {name} is not set", fix=f"export {name}=…")
    return names


# Shared by verbs that take a RUN.


def add_run(parser: argparse.ArgumentParser, *, also: str = "") -> None:
    what = f"a name, a unique prefix, `last`, a folder or a URL{also}"
    argument = parser.add_argument("run", metavar="RUN", help=what)
    argument.completer = _names  # type: ignore[attr-defined]  # read by argcomplete


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _names(prefix: str, **_: Any) -> list[str]:
    from headway.rundir.index import RunIndex

    return [row.name for row in RunIndex().rows(glob=f"{prefix}*", limit=50)]


def locate(text: str, *, bundles: bool = False) -> str:
    """Return the URL of the run that `text` names; with `bundles`, also accept an exported bundle's folder or URL."""
    if bundles:
        from headway.artifacts.use import locate_model

        return locate_model(text)
    from headway.rundir.status import find

    return find(text).url
