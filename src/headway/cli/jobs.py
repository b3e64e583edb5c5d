"""The options by which verbs choose a job file and change it for one run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import BadInput

if TYPE_CHECKING:
    from headway.spec import Job

DEFAULT = "headway.yaml"
LOCAL = "local"


def add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", default=DEFAULT, metavar="FILE", help=f"the job file (default: {DEFAULT})")
    parser.add_argument("--on", default=LOCAL, metavar="TARGET", help="a target of the job file (default: local)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                        help="change a key for this once: --set config.epochs=3")  # fmt: skip
    parser.add_argument("--env", action="append", default=[], metavar="K[=V]",
                        help="a variable for the run; without =V, this shell's value")  # fmt: skip
    parser.add_argument("--secret", action="append", default=[], metavar="K",
                        help="a secret for the run, read from this shell's variable K and never written")  # fmt: skip


def load_job(args: argparse.Namespace) -> Job:
    """The job file with this command's changes."""
    from headway.spec import Job

    path = Path(args.file)
    if not path.exists() and args.file == DEFAULT:
        raise BadInput(f"there is no {DEFAULT} here", where=str(Path.cwd()), fix="headway init, or name one with -f")
    secrets = [f"secrets.{name}=env:{name}" for name in _present(args.secret)]
    return Job.load(path, set=[*args.changes, *secrets], variables=_variables(args.env))


def _variables(given: Iterable[str]) -> dict[str, str]:
    pairs = [item.partition("=") for item in given]
    _present([name for name, sign, _ in pairs if not sign])
    return {name: value if sign else os.environ[name] for name, sign, value in pairs}


def _present(names: list[str]) -> list[str]:
    for name in names:
        if name not in os.environ:
            raise BadInput(f"this shell has no variable {name}", fix=f"export {name}=…")
    return names
