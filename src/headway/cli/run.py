"""`headway run`: launch a job, and watch it unless it is detached."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.bars import working
from headway.cli.jobs import DEFAULT, LOCAL, add_job, load_job
from headway.cli.plan import describe, rehearsed
from headway.cli.runs import add_json
from headway.cli.show import as_json
from headway.errors import BadInput, BadPlan

if TYPE_CHECKING:
    from headway.planning import Plan


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--name", metavar="N", help="the run's name (default: the job's, hash and count)")
    parser.add_argument("--plan", metavar="FILE", help="launch a plan that was saved with plan --out")
    parser.add_argument("-d", "--detach", action="store_true", help="start it and return; it survives this terminal")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and stop")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--no-rehearse", action="store_true", help="do not try a paid run here first")
    parser.add_argument("--keep-on-failure", metavar="60m", help="after a failure leave its place as it is for so long")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    plan = _plan(args)
    if args.dry_run:
        print(plan.to_json() if args.json else describe(plan), end="" if args.json else "\n")
        return 0
    from headway.cli.attached import attach, say
    from headway.cli.confirm import confirm
    from headway.cli.money import paid
    from headway.launcher import launch

    if paid(plan) and not args.no_rehearse and not args.plan:
        job = load_job(args)
        rehearsed(job, args.on)
        plan = _plan(args)  # with what was learnt
    confirm(plan, yes=args.yes)
    with working(f"sending the code and starting it on {plan.target}"):
        launched = launch(plan, name=args.name, detach=True, say=say, env=_kept(args.keep_on_failure))
    if args.detach:
        from headway.cli.links import lines

        found = {"run": launched.run, "url": launched.url}
        said = f"{launched.run} is running{lines(launched)}\nnext: headway logs {launched.run} -f"
        print(as_json(found) if args.json else said)
        return 0
    return attach(launched, json=args.json)


def _kept(text: str | None) -> dict[str, str]:
    from headway.kept import KEEP
    from headway.spec.units import BadUnit, duration

    if text is None:
        return {}
    try:
        return {KEEP: f"{duration(text):g}"}
    except BadUnit as error:
        raise BadInput(f"--keep-on-failure: {error}", fix="--keep-on-failure 60m") from None


def _plan(args: argparse.Namespace) -> Plan:
    from headway.planning import Plan, plan

    if not args.plan:
        return plan(load_job(args), on=args.on)
    if args.changes or args.env or args.secret or args.file != DEFAULT or args.on != LOCAL:
        raise BadInput("a saved plan is launched as it was reviewed", fix="headway run --plan FILE [--name N] [-d]")
    try:
        return Plan.from_json(Path(args.plan).read_bytes(), where=args.plan)
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        raise BadPlan("there is no plan in this file", where=args.plan, fix=f"headway plan --out {args.plan}") from None
