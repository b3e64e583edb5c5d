"""The verbs that start runs: `init plan run resume`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.dispatch import DEFAULT, LOCAL, add_job, add_json, add_run, load_job, locate
from headway.cli.render import progress_while
from headway.core.errors import BadInput, BadPlan
from headway.core.format import accelerator_table, as_json, duration, paint, price_rows, size
from headway.core.plan import in_plan

if TYPE_CHECKING:
    from headway.launcher.migrate import Migration
    from headway.planning import Plan
    from headway.spec import Job


# `headway init`: a commented job file to start from, and for `script` a short training script beside it.


TEMPLATES = Path(__file__).parents[1] / "spec" / "templates"


def kinds() -> list[str]:
    return sorted(path.stem for path in TEMPLATES.glob("*.yaml"))


def init_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", default="captioning", choices=kinds(), help="default: captioning")
    parser.add_argument("--to", default=".", metavar="DIR", help="where to write (default: the current folder)")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")


def init_command(args: argparse.Namespace) -> int:
    folder = Path(args.to)
    texts = {folder / "headway.yaml": TEMPLATES / f"{args.kind}.yaml"}
    if args.kind == "script":
        texts[folder / "train.py"] = TEMPLATES / "train.py"
    taken = [path for path in texts if path.exists()]
    if taken and not args.force:
        raise BadInput(f"{taken[0]} already exists; nothing was written", fix="headway init --force, or --to DIR")
    folder.mkdir(parents=True, exist_ok=True)
    for path, template in texts.items():
        path.write_text(template.read_text())
        print(f"wrote {path}")
    here = "" if folder == Path(".") else f" -f {folder / 'headway.yaml'}"
    print(f"next: headway plan{here}   shows what would happen\n      headway run{here}    trains on this machine")
    return 0


# `headway plan`: what `run` would do, as text, as JSON, or as the very files that would be sent.


def plan_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--out", metavar="FILE", help="save the plan, to launch it later with run --plan FILE")
    parser.add_argument(
        "--online", action="store_true", help="also check with the target's API whether it would accept the run"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="train a few steps on this machine first, for at most two minutes"
    )
    parser.add_argument("--render", metavar="DIR", help="write every request that `run` would make to DIR")


def plan_command(args: argparse.Namespace) -> int:
    from headway.planning import plan

    job = load_job(args)
    made = plan(job, on=args.on)
    if args.rehearse:
        rehearse_lines(job, args.on)
        made = plan(job, on=args.on)  # with what was learnt
    asked = online_notes(made) if args.online else []
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


def rehearse_lines(job: Job, on: str) -> None:
    """Try it here, and say on the side what was tried. What fails is raised."""
    import sys

    from headway.cli.follow import print_status
    from headway.launcher import rehearse

    print(rehearse.describe(rehearse.rehearse(job, log=print_status)), file=sys.stderr)
    for line in far_buckets(job, on):
        print(f"  region     {line}", file=sys.stderr)


def far_buckets(job: Job, on: str) -> list[str]:
    from headway import targets
    from headway.planning import cost

    entry = targets.entry(job, on)
    return cost.far_buckets(job, entry.kind, entry.options)


def late_checkpoints(plan: Plan) -> list[str]:
    """What past runs say: whether a checkpoint is done before the target's patience is over."""
    from headway.pricing.quote import checkpoint_s

    seconds, grace = checkpoint_s(plan.job), plan.limits.grace_s
    if seconds is None or seconds < grace - 5:
        return []
    every = "a stop or a preemption may lose the work since the last checkpoint (checkpoint.every)"
    return [f"a checkpoint took {seconds:.0f} s in earlier runs, and the grace period is {grace:.0f} s: {every}"]


def online_notes(plan: Plan) -> list[str]:
    """What the place itself says of it. BadJob where it would refuse."""
    from headway import targets
    from headway.core.errors import BadJob
    from headway.spec.loading import undump

    target, job = targets.of_plan(plan), undump(plan.job)
    check, notes = getattr(target, "online", None), getattr(target, "online_notes", None)
    problems = check(job) if check is not None else []
    if problems:
        raise BadJob(problems)
    said = [*(notes(job) if notes is not None else []), *far_buckets(job, plan.target)]
    return [*said, "the target would accept it" if check else "this target has no API to ask"]


def render(plan: Plan, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for request in plan.requests:
        # A script stays a script: what is sent as text is written as it is.
        text = str(request.body["text"]) if set(request.body) == {"text"} else as_json(request.body) + "\n"
        (folder / request.name).write_text(text)


def _budget(plan: Plan) -> str:
    """The budget, and the limit that the target itself enforces besides."""
    limits = plan.limits
    if plan.kind == "local" and limits.budget_s is None:
        return "none (this machine is not billed)"
    return f"{'none' if limits.budget_s is None else duration(limits.budget_s)}; second limit: {limits.second}"


def _processes(plan: Plan) -> str:
    if plan.nodes == 1:
        return str(plan.processes)
    return f"{plan.nodes * plan.processes} ({plan.nodes} nodes × {plan.processes})"


def describe(plan: Plan) -> str:
    """What a person wants to know before launching."""
    job, code = plan.job, plan.code
    what = f"recipe {job['recipe']}" if job.get("recipe") else " ".join([f"script {job['script']}", *job["args"]])
    largest = ", ".join(f"{name} {size(count)}" for name, count in code.biggest[:3])
    rows = {
        "trains": f"{what}, seed {job['seed']}",
        "data": ", ".join(sorted(plan.data)) or ("the recipe's default" if job.get("recipe") else "none"),
        "processes": f"{_processes(plan)}, {plan.environment.get('threads', '?')} threads each",
        "code": f"{code.files} files, {size(code.bytes)}" + (f" (largest: {largest})" if largest else ""),
        "resume": in_plan(plan.resume),
        "writes": f"{job['outputs']}/{job['name']}-{plan.hash[:6]}-N",
        "budget": _budget(plan),
        **price_rows(plan.price),
    }
    if plan.kind != "local":
        rows["requests"] = ", ".join(request.name for request in plan.requests)
    lines = [paint(f"{job['name']} on {plan.target}", "bold"), *(f"  {key:<9} {text}" for key, text in rows.items())]
    notes = [f"  note      {note}" for note in (*plan.notes, *late_checkpoints(plan))]
    compared = accelerator_table(plan.price)
    return "\n".join([*lines, *notes, *([compared] if compared else [])])


# `headway resume`: start a run again, with the code it was started with, there or elsewhere. Recipes, and scripts
# that use headway.start(), go on exactly where they were left; of others it says what they do.


def resume_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--on", metavar="TARGET", help="resume on another target, with the batches in the same order")
    parser.add_argument("--code", choices=("recorded", "current"), default="recorded",
                        help="the recorded code (default), or the current code of the job file's folder")  # fmt: skip
    parser.add_argument("--copy-to", metavar="URL", help="move the run folder and the data to this URL first")
    parser.add_argument(
        "-f", "--file", metavar="FILE", help=f"the job file that defines --on (default: {DEFAULT}, if it exists)"
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument("--budget-hours", type=float, metavar="H", help="new total budget in hours, over all attempts")
    parser.add_argument("--budget-usd", type=float, metavar="U", help="new total budget in dollars, over all attempts")
    parser.add_argument("-d", "--detach", action="store_true", help="start the run and return; it keeps running")
    add_json(parser)


def resume_command(args: argparse.Namespace) -> int:
    from headway.cli.follow import attach, next_for, print_status, recorded_kind
    from headway.core.plan import EXACT
    from headway.core.types import State
    from headway.launcher.lifecycle import resume
    from headway.rundir.submission import utc_now

    url, since = locate(args.run), utc_now()
    move = _move(args)
    with progress_while(f"resuming {args.run}"):
        launched = resume(url, say=print_status, move=move, budget_hours=args.budget_hours, budget_usd=args.budget_usd)
    if not args.detach:
        return attach(launched, since=since, json=args.json)
    if (launched.folder.ended() or {}).get("state") == "finished" and not args.json:
        print(f"next: {next_for(launched, State.FINISHED)}")
        return 0
    kind = recorded_kind(launched.folder)
    found = {"run": launched.run, "url": launched.url, "resume": kind}
    done = "resumed from its last checkpoint" if kind == EXACT else "started again"
    print(as_json(found) if args.json else f"{launched.run} {done}\nnext: headway logs {launched.run} -f")
    return 0


def _move(args: argparse.Namespace) -> Migration | None:
    """Where else it should go on; None for where it was."""
    if args.on is None:
        if args.copy_to or args.code != "recorded" or args.file:
            what = "--copy-to, --code and --file need --on"
            raise BadInput(what, fix="headway resume RUN --on TARGET …")
        return None
    from headway.launcher.migrate import Migration
    from headway.spec import Job

    path = Path(args.file or DEFAULT)
    job = Job.load(path) if args.file or path.exists() else None
    return Migration(
        on=args.on, code=args.code, copy_to=args.copy_to, job=job, confirm=lambda text: _confirm(text, args.yes)
    )


def _confirm(text: str, yes: bool) -> bool:
    """What it takes is shown first. Without a person to ask, only --yes agrees."""
    print(text)
    if yes:
        return True
    return sys.stdin.isatty() and input("continue? [y/N] ").strip().lower().startswith("y")


def run_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument(
        "--name", metavar="N", help="the run's name (default: from the job's name, its hash and a number)"
    )
    parser.add_argument("--plan", metavar="FILE", help="launch a plan saved with plan --out")
    parser.add_argument("-d", "--detach", action="store_true", help="start the run and return; it keeps running")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and stop")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument("--no-rehearse", action="store_true", help="do not rehearse a paid run on this machine first")
    parser.add_argument(
        "--keep-on-failure", metavar="60m", help="after a failure, keep its machine or container for this long"
    )
    add_json(parser)


def run_command(args: argparse.Namespace) -> int:
    plan = _plan(args)
    if args.dry_run:
        print(plan.to_json() if args.json else describe(plan), end="" if args.json else "\n")
        return 0
    from headway.cli.dispatch import confirm
    from headway.cli.follow import attach, print_status
    from headway.core.format import is_billed
    from headway.launcher.lifecycle import launch

    if is_billed(plan) and not args.no_rehearse and not args.plan:
        job = load_job(args)
        rehearse_lines(job, args.on)
        plan = _plan(args)  # with what was learnt
    confirm(plan, yes=args.yes)
    with progress_while(f"uploading the code and starting on {plan.target}"):
        launched = launch(plan, name=args.name, detach=True, say=print_status, env=_read_existing(args.keep_on_failure))
    if args.detach:
        from headway.cli.render import lines

        found = {"run": launched.run, "url": launched.url}
        started = f"{launched.run} started on {plan.target}, folder {launched.url}{lines(launched)}"
        print(as_json(found) if args.json else f"{started}\nnext: headway logs {launched.run} -f")
        return 0
    return attach(launched, json=args.json, rerun=_rerun(args))


def _rerun(args: argparse.Namespace) -> str:
    """The same command, for a new run: without the name, which is taken, and the plan, which holds the old code."""
    given = [("-f", args.file)] if args.file != DEFAULT else []
    given += [("--on", args.on)] if args.on != LOCAL else []
    given += [("--set", change) for change in args.changes] + [("--env", text) for text in args.env]
    given += [("--secret", name) for name in args.secret]
    return shlex.join(["headway", "run", *(word for pair in given for word in pair)])


def _read_existing(text: str | None) -> dict[str, str]:
    from headway.rundir.teardown import KEEP_VARIABLE
    from headway.spec.fields import BadUnit, duration

    if text is None:
        return {}
    try:
        return {KEEP_VARIABLE: f"{duration(text):g}"}
    except BadUnit as error:
        raise BadInput(f"--keep-on-failure: {error}", fix="--keep-on-failure 60m") from None


def _plan(args: argparse.Namespace) -> Plan:
    from headway.planning import Plan, plan

    if not args.plan:
        return plan(load_job(args), on=args.on)
    if args.changes or args.env or args.secret or args.file != DEFAULT or args.on != LOCAL:
        raise BadInput(
            "--plan launches a saved plan unchanged, so other options are not allowed",
            fix="headway run --plan FILE [--name N] [-d]",
        )
    try:
        return Plan.from_json(Path(args.plan).read_bytes(), where=args.plan)
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        raise BadPlan(
            "this file does not contain a plan", where=args.plan, fix=f"headway plan --out {args.plan}"
        ) from None
