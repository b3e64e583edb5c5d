"""Options that several verbs share: the job file and its overrides, the run, `--json`; and the paid-run prompt."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import BadInput
from headway.core.format import is_billed, price_rows

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job


# Ask before a run that costs money.


def confirm(plan: Plan, *, yes: bool) -> None:
    """Show what it costs and ask. BadInput where nobody can answer, and on a no: nothing has been spent."""
    if not is_billed(plan):
        return
    for head, text in price_rows(plan.price).items():
        print(f"  {head:<9} {text}", file=sys.stderr)
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(
            f"this run costs money on {plan.target}, and there is no terminal to confirm it", fix="headway run -y"
        )
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
    """The job file with this command's changes."""
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


# What verbs that take a RUN share.


def add_run(parser: argparse.ArgumentParser) -> None:
    argument = parser.add_argument("run", metavar="RUN", help="a name, a unique prefix, `last`, a folder or a URL")
    argument.completer = _names  # type: ignore[attr-defined]  # read by argcomplete


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _names(prefix: str, **_: Any) -> list[str]:
    from headway.rundir.index import RunIndex

    return [row.name for row in RunIndex().rows(glob=f"{prefix}*", limit=50)]


def locate(text: str, *, bundles: bool = False) -> str:
    """The URL of the run that `text` names; with `bundles`, an exported bundle's folder or URL will do as well."""
    from headway.rundir.status import find
    from headway.storage import open_store

    named_folder = bundles and ("/" in text or text == ".")
    if named_folder and any(entry.key == "bundle.json" for entry in open_store(text).list("bundle.json")):
        return text
    return find(text).url
