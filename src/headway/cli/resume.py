"""`headway resume`: start a run again, with the code it was started with, there or elsewhere. Recipes, and scripts
that use headway.start(), go on exactly where they were left; of others it says what they do."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.bars import working
from headway.cli.jobs import DEFAULT
from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json
from headway.errors import BadInput

if TYPE_CHECKING:
    from headway.moving import Move


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--on", metavar="TARGET", help="go on on another target, in the same order of batches")
    parser.add_argument("--code", choices=("recorded", "current"), default="recorded",
                        help="the run's own code (default), or the job file's folder as it is now")  # fmt: skip
    parser.add_argument("--copy-to", metavar="URL", help="move folder and data there first, for a target that sees it")
    parser.add_argument("-f", "--file", metavar="FILE", help=f"where --on is described (default: {DEFAULT}, if there)")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--budget-hours", type=float, metavar="H", help="a new total of hours, over all attempts")
    parser.add_argument("--budget-usd", type=float, metavar="U", help="a new total of dollars, over all attempts")
    parser.add_argument("-d", "--detach", action="store_true", help="start it and return; it survives this terminal")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    from headway.cli.attached import attach, recorded_kind, say
    from headway.intent import now
    from headway.launcher import resume
    from headway.resuming import EXACT

    url, since = locate(args.run), now()
    move = _move(args)
    with working(f"starting {args.run} again"):
        launched = resume(url, say=say, move=move, budget_hours=args.budget_hours, budget_usd=args.budget_usd)
    if not args.detach:
        return attach(launched, since=since, json=args.json)
    kind = recorded_kind(launched.folder)
    found = {"run": launched.run, "url": launched.url, "resume": kind}
    done = "goes on" if kind == EXACT else "is started again"
    print(as_json(found) if args.json else f"{launched.run} {done}\nnext: headway logs {launched.run} -f")
    return 0


def _move(args: argparse.Namespace) -> Move | None:
    """Where else it should go on; None for where it was."""
    if args.on is None:
        if args.copy_to or args.code != "recorded" or args.file:
            what = "--copy-to, --code and --file are about another target"
            raise BadInput(what, fix="headway resume RUN --on TARGET …")
        return None
    from headway.moving import Move
    from headway.spec import Job

    path = Path(args.file or DEFAULT)
    job = Job.load(path) if args.file or path.exists() else None
    return Move(on=args.on, code=args.code, copy_to=args.copy_to, job=job, confirm=lambda text: _agreed(text, args.yes))


def _agreed(text: str, yes: bool) -> bool:
    """What it takes is shown first. Without a person to ask, only --yes agrees."""
    print(text)
    if yes:
        return True
    return sys.stdin.isatty() and input("go on? [y/N] ").strip().lower().startswith("y")
