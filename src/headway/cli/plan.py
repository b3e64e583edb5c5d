"""`headway plan`: what `run` would do, as text, as JSON, or as the very files that would be sent."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.jobs import add_job, load_job
from headway.cli.money import elsewhere, price_rows
from headway.cli.show import as_json, duration, paint, size
from headway.resuming import in_plan

if TYPE_CHECKING:
    from headway.planning import Plan
    from headway.spec import Job


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--json", action="store_true", help="the plan itself, as JSON")
    parser.add_argument("--out", metavar="FILE", help="save it, to review and to launch later with run --plan FILE")
    parser.add_argument("--online", action="store_true", help="ask the place itself too: what it would refuse")
    parser.add_argument(
        "--rehearse", action="store_true", help="train a few steps of it here first, two minutes at most"
    )
    parser.add_argument("--render", metavar="DIR", help="every request that `run` would make, as files in DIR")


def main(args: argparse.Namespace) -> int:
    from headway.planning import plan

    job = load_job(args)
    made = plan(job, on=args.on)
    if args.rehearse:
        rehearsed(job, args.on)
        made = plan(job, on=args.on)  # with what was learnt
    asked = online(made) if args.online else []
    if args.out:
        Path(args.out).write_text(made.to_json())
    if args.render:
        render(made, Path(args.render))
    print(made.to_json() if args.json else describe(made), end="" if args.json else "\n")
    for note in asked if not args.json else []:
        print(f"  online    {note}")
    if args.out and not args.json:
        print(f"next: headway run --plan {args.out}")
    return 0


def rehearsed(job: Job, on: str) -> None:
    """Try it here, and say on the side what was tried. What fails is raised."""
    import sys

    from headway.cli.attached import say
    from headway.planning.rehearse import describe as told
    from headway.planning.rehearse import rehearse

    print(told(rehearse(job, say=say)), file=sys.stderr)
    for line in far_buckets(job, on):
        print(f"  region     {line}", file=sys.stderr)


def far_buckets(job: Job, on: str) -> list[str]:
    from headway.planning.regions import elsewhere
    from headway.targets import registry

    entry = registry.entry(job, on)
    return elsewhere(job, entry.kind, entry.options)


def late_checkpoints(plan: Plan) -> list[str]:
    """What past runs say: whether a checkpoint is done before the target's patience is over."""
    from headway.price.storing import checkpoint_s

    seconds, grace = checkpoint_s(plan.job), plan.limits.grace_s
    if seconds is None or seconds < grace - 5:
        return []
    every = "checkpoint.every is what a stop or a preemption can cost"
    return [
        f"a checkpoint took {seconds:.0f} s before, and from SIGTERM to SIGKILL there are {grace:.0f} s here: {every}"
    ]


def online(plan: Plan) -> list[str]:
    """What the place itself says of it. BadJob where it would refuse."""
    from headway.errors import BadJob
    from headway.spec.plain import undump
    from headway.targets import registry

    target, job = registry.of_plan(plan), undump(plan.job)
    check, notes = getattr(target, "online", None), getattr(target, "online_notes", None)
    problems = check(job) if check is not None else []
    if problems:
        raise BadJob(problems)
    said = [*(notes(job) if notes is not None else []), *far_buckets(job, plan.target)]
    return [*said, "it would be taken" if check else "nobody to ask"]


def render(plan: Plan, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for request in plan.requests:
        # A script stays a script: what is sent as text is written as it is.
        text = str(request.body["text"]) if set(request.body) == {"text"} else as_json(request.body) + "\n"
        (folder / request.name).write_text(text)


def describe(plan: Plan) -> str:
    """What a person wants to know before launching."""
    job, code, limits = plan.job, plan.code, plan.limits
    what = f"recipe {job['recipe']}" if job.get("recipe") else " ".join([f"script {job['script']}", *job["args"]])
    budget = "none" if limits.budget_s is None else duration(limits.budget_s)
    biggest = ", ".join(f"{name} {size(count)}" for name, count in code.biggest[:3])
    rows = {
        "trains": f"{what}, seed {job['seed']}",
        "data": ", ".join(sorted(plan.data)) or ("the recipe's own" if job.get("recipe") else "none named"),
        "world": f"{plan.nodes} × {plan.processes} process{'es' if plan.processes > 1 else ''}, "
        f"{plan.environment.get('threads', '?')} threads each",
        "sends": f"{code.files} files, {size(code.bytes)}" + (f" (biggest: {biggest})" if biggest else ""),
        "resume": in_plan(plan.resume),
        "writes": f"{job['outputs']}/{job['name']}-{plan.hash[:6]}-N",
        "budget": f"{budget}; behind it: {limits.second}",
        **price_rows(plan.price),
        "asks for": ", ".join(request.name for request in plan.requests),
    }
    lines = [paint(f"{job['name']} on {plan.target}", "bold"), *(f"  {key:<9} {text}" for key, text in rows.items())]
    notes = [f"  note      {note}" for note in (*plan.notes, *late_checkpoints(plan))]
    compared = elsewhere(plan.price)
    return "\n".join([*lines, *notes, *([compared] if compared else [])])
