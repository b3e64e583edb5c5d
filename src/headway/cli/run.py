"""The verbs that start runs: `init plan run resume`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.dispatch import DEFAULT, LOCAL, add_job, add_json, add_run, load_job, locate
from headway.cli.render import progress_while
from headway.core.errors import BadInput, BadPlan
from headway.core.format import accelerator_table, as_json, duration, is_billed, paint, price_rows, size
from headway.core.plan import RUN, describe_resume
from headway.core.program import KEEP_LIMIT, is_project, program_text
from headway.plugins import RECIPES, plugin_of

if TYPE_CHECKING:
    from headway.launcher.migrate import Migration
    from headway.planning import Plan
    from headway.spec import Job


# `headway init`: write a commented job file to start from, for `script` also a training script; or a model class.


SCRIPT_TEMPLATES = Path(__file__).parents[1] / "spec" / "templates"
SCRIPT = "script"
MODEL = "model"


def templates() -> dict[str, Path]:
    """Return the job file to start from, by kind: a script, and every recipe that has one."""
    found = {SCRIPT: SCRIPT_TEMPLATES / "script.yaml"}
    found.update((name, path) for name, recipe in RECIPES.working() if (path := recipe.template()) is not None)
    return dict(sorted(found.items()))


def init_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = sorted([*templates(), MODEL])
    parser.add_argument(
        "kind",
        nargs="?",
        default=next(iter(templates())),
        choices=kinds,
        help="a recipe, a script, or the class of your own model",
    )
    parser.add_argument("--to", default=".", metavar="DIR", help="where to write (default: the current folder)")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")


def init_command(args: argparse.Namespace) -> int:
    folder = Path(args.to)
    texts = {} if args.kind == MODEL else {folder / "headway.yaml": templates()[args.kind]}
    if args.kind == MODEL:
        texts[folder / "serving.py"] = SCRIPT_TEMPLATES / "serving.py"
    if args.kind == SCRIPT:
        texts[folder / "train.py"] = SCRIPT_TEMPLATES / "train.py"
    taken = [path for path in texts if path.exists()]
    if taken and not args.force:
        raise BadInput(f"{taken[0]} already exists; nothing was written", fix="headway init --force, or --to DIR")
    folder.mkdir(parents=True, exist_ok=True)
    for path, template in texts.items():
        path.write_text(template.read_text())
        print(f"wrote {path}")
    if args.kind == MODEL:
        print("next: write  model: serving:Spirals  in headway.yaml")
        return 0
    here = "" if folder == Path(".") else f" -f {folder / 'headway.yaml'}"
    print(f"next: headway plan{here}   shows what would happen\n      headway run{here}    trains on this machine")
    return 0


# `headway plan`: show what `run` would do, as text, as JSON, or as the requests that would be sent.


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
        made = plan(job, on=args.on)  # again, with the rehearsal's measurements
    asked = online_notes(made) if args.online else []
    if args.out:
        Path(args.out).write_text(made.to_json())
    if args.render:
        render(made, Path(args.render), Path(job.root))
    print(made.to_json() if args.json else describe(made), end="" if args.json else "\n")
    for note in asked if not args.json else []:
        print(f"  online    {note}")
    if args.out and not args.json:
        print(f"next: headway run --plan {args.out}")
    return 0


def rehearse_lines(job: Job, on: str) -> None:
    """Rehearse the job on this machine and print the result to stderr. Raises RunFailed if it fails."""
    import sys

    from headway.cli.render import print_status
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
    """Return a note if, in earlier runs, a checkpoint took longer than the target's grace period."""
    from headway.pricing.quote import checkpoint_s

    seconds, grace = checkpoint_s(plan.job), plan.limits.grace_s
    if seconds is None or seconds < grace - 5:
        return []
    every = "a stop or a preemption may lose the work since the last checkpoint (checkpoint.every)"
    return [f"a checkpoint took {seconds:.0f} s in earlier runs, and the grace period is {grace:.0f} s: {every}"]


def online_notes(plan: Plan) -> list[str]:
    """Return the notes of the target's API on the plan. Raises BadJob if the target would refuse it."""
    from headway import targets
    from headway.core.errors import BadJob
    from headway.spec.loading import undump

    target, job = targets.of_plan(plan), undump(plan.job)
    problems = target.online(plan)
    if problems:
        raise BadJob(problems)
    said = [*target.online_notes(job), *far_buckets(job, plan.target)]
    return [*said, "this target has no API to ask" if problems is None else "the target would accept it"]


def render(plan: Plan, folder: Path, project: Path) -> None:
    """Write every request to a file. A configuration for another program names the next run instead of `{RUN}`."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if is_new and folder.resolve().is_relative_to(project.resolve()):  # not code to upload; an existing folder may be
        (folder / ".headwayignore").write_text("# written by `headway plan --render`\n*\n")
    for request in plan.requests:
        # A request that is one text, such as a script, is written as that text.
        is_text = set(request.body) == {"text"}
        text = str(request.body["text"]) if is_text else as_json(request.body) + "\n"
        if is_text and request.name.endswith(".yaml"):
            text = text.replace(RUN, _next_name(plan))
        (folder / request.name).write_text(text)


def _next_name(plan: Plan) -> str:
    from headway.rundir.index import RunIndex, candidate_names

    return next(candidate_names(plan, RunIndex()))


def _budget(plan: Plan) -> str:
    """Format the budget, and the limit that the target itself enforces."""
    limits = plan.limits
    if limits.budget_s is None and limits.second.startswith("none ("):
        return "none" if is_billed(plan) else limits.second
    return f"{'none' if limits.budget_s is None else duration(limits.budget_s)}; second limit: {limits.second}"


def _processes(plan: Plan) -> str:
    if plan.nodes == 1:
        return str(plan.processes)
    return f"{plan.nodes * plan.processes} ({plan.nodes} nodes × {plan.processes})"


def _keeps(job: Mapping[str, Any]) -> str:
    """Which files of the program are kept in the run folder, and how much of them."""
    which = ", ".join(map(str, job.get("keep") or ())) or "what the program writes below its folder, but no input data"
    limit = int(job.get("keep_limit") or KEEP_LIMIT)
    return f"{which}; at most {size(limit)} (keep_limit)"


def _own_image(plan: Plan) -> dict[str, str]:
    """Return the row that names the image of the project's own Dockerfile, if the target runs it."""
    if not (plan.job.get("image") or {}).get("dockerfile"):
        return {}
    from headway.packaging.build import reference
    from headway.packaging.dockerfile import PLATFORM, image_of_plan

    image = image_of_plan(plan, platform=str(plan.options.get("platform") or PLATFORM))
    name = reference(plan, image)
    used = any(name in as_json(request.body) for request in plan.requests)
    return {"image": f"{name}, built from {plan.job['image']['dockerfile']}"} if used else {}


def describe(plan: Plan) -> str:
    """Format the plan for people: what runs where, with which data and limits, at which price."""
    job, code = plan.job, plan.code
    what = program_text(job)
    largest = ", ".join(f"{name} {size(count)}" for name, count in code.biggest[:3])
    rows = {
        "trains": f"{what}, seed {job['seed']}",
        "data": ", ".join(sorted(plan.data)) or ("the recipe's default" if job.get("recipe") else "none"),
        "processes": f"{_processes(plan)}, {plan.environment.get('threads', '?')} threads each",
        "code": f"{code.files} files, {size(code.bytes)}" + (f" (largest: {largest})" if largest else ""),
        **_own_image(plan),
        "resume": describe_resume(plan.resume),
        **({"keeps": _keeps(job)} if is_project(job) else {}),
        "writes": f"{job['outputs']}/{job['name']}-{plan.name_hash}-N",
        "budget": _budget(plan),
        **price_rows(plan.price),
    }
    if not plugin_of(plan.kind).on_this_machine:
        rows["requests"] = ", ".join(request.name for request in plan.requests)
    lines = [paint(f"{job['name']} on {plan.target}", "bold"), *(f"  {key:<9} {text}" for key, text in rows.items())]
    notes = [f"  note      {note}" for note in (*plan.notes, *late_checkpoints(plan))]
    compared = accelerator_table(plan.price)
    return "\n".join([*lines, *notes, *([compared] if compared else [])])


# `headway resume`: start a run again with its recorded code, on its target or another one. Recipes, and scripts that
# use headway.start(), continue exactly; for other programs it prints what the next start does.


def resume_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--on", metavar="TARGET", help="resume on another target, with the batches in the same order")
    parser.add_argument("--code", choices=("recorded", "current"), default=None,
                        help="the recorded code (default), or the current code of the job file's folder")  # fmt: skip
    parser.add_argument(
        "--from-beginning", action="store_true", help="agree that a program that cannot continue starts over"
    )
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
    from headway.cli.follow import attach, next_for, recorded_kind
    from headway.cli.render import print_status
    from headway.core.plan import EXACT
    from headway.core.types import State
    from headway.launcher.lifecycle import StartsOver, resume
    from headway.rundir.submission import utc_now

    url, since = locate(args.run), utc_now()
    move = _move(args) if args.on is not None else _with_current_code(args, url)
    budget = {"budget_hours": args.budget_hours, "budget_usd": args.budget_usd}
    agreed = args.from_beginning or args.yes
    try:
        with progress_while(f"resuming {args.run}"):
            launched = resume(url, say=print_status, move=move, from_beginning=agreed, **budget)
    except StartsOver as error:
        if not _ask(error.problem.what, "start it again?"):
            given = [("--on", args.on), ("--code", args.code)]
            words = [word for option, value in given if value for word in (option, value)]
            fix = shlex.join(["headway", "resume", args.run, *words, "--from-beginning"])
            raise StartsOver(error.problem.what, fix=fix) from None
        with progress_while(f"starting {args.run} again"):
            launched = resume(url, say=print_status, move=move, **budget)
    if not args.detach:
        return attach(launched, since=since, json=args.json)
    if (launched.folder.ended() or {}).get("state") == "finished" and not args.json:
        print(f"next: {next_for(launched, State.FINISHED) or f'headway status {launched.run}'}")
        return 0
    kind = recorded_kind(launched.folder)
    found = {"run": launched.run, "url": launched.url, "resume": kind}
    done = "submitted: it resumes from its last checkpoint" if kind == EXACT else "submitted: it starts again"
    print(as_json(found) if args.json else f"{launched.run} {done}\nnext: headway logs {launched.run} -f")
    return 0


def _move(args: argparse.Namespace) -> Migration:
    """Return the migration that the options request."""
    from headway.launcher.migrate import Migration

    return Migration(
        on=args.on,
        code=args.code or "recorded",
        copy_to=args.copy_to,
        job=_job_file(args),
        confirm=lambda text: _confirm(text, args.yes),
    )


def _job_file(args: argparse.Namespace) -> Job | None:
    from headway.spec import Job

    path = Path(args.file or DEFAULT)
    return Job.load(path) if args.file or path.exists() else None


def _with_current_code(args: argparse.Namespace, url: str) -> Migration | None:
    """Where it was, with the code as it is now, if that has changed and the user wants it; None: the recorded code."""
    from headway.cli.render import print_status
    from headway.launcher.migrate import CURRENT, Migration
    from headway.packaging.code_changes import changed_files, name_files
    from headway.rundir.layout import RunFolder
    from headway.storage import open_store

    if args.copy_to or (args.file and args.code != CURRENT):
        raise BadInput("--copy-to and --file need --on", fix="headway resume RUN --on TARGET …")
    folder = RunFolder(open_store(url))
    plan = folder.plan()
    job = _current_job(args, plan)
    if (folder.ended() or {}).get("state") == "finished":
        return None
    if job is None:
        if args.code == CURRENT:
            raise BadInput("--code current needs the job file", fix=f"headway resume {folder.name} --code current -f …")
        return None
    changed = [] if args.code == "recorded" else changed_files(plan, folder, job)
    if not changed:
        return None
    what = f"{name_files(changed)} changed since {folder.name} was started"
    if args.code != CURRENT and not _ask(what, "run the changed code?"):
        print_status(
            f"{what}; the recorded code runs. For the changed code: headway resume {folder.name} --code current"
        )
        return None
    return Migration(on=plan.target, code=CURRENT, job=job, changed=tuple(changed))


def _current_job(args: argparse.Namespace, plan: Plan) -> Job | None:
    """The recorded job, with the folder where its code is now; None if that is not known."""
    from dataclasses import replace

    from headway.spec.loading import undump

    if not is_project(plan.job):
        return None
    given = None if plan.project and not args.file else _job_file(args)
    if given is not None and given.name != plan.job["name"] and not args.file:
        return None  # the job file in this folder is another job's
    root = given.root if given is not None else plan.project
    return replace(undump(plan.job, where="the run's plan"), root=root) if root and Path(root).is_dir() else None


def _ask(text: str, question: str) -> bool:
    """Ask a person; without one the answer is no."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    print(f"headway: {text}\n{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower().startswith("y")


def _confirm(text: str, yes: bool) -> bool:
    """Show what a migration copies and ask for confirmation. Without a terminal, only --yes confirms."""
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
    from headway.cli.follow import attach
    from headway.cli.render import print_status
    from headway.launcher.lifecycle import launch

    if is_billed(plan) and not args.no_rehearse and not args.plan:
        job = load_job(args)
        rehearse_lines(job, args.on)
        plan = _plan(args)  # again, with the rehearsal's measurements
    confirm(plan, yes=args.yes)
    with progress_while(f"uploading the code and starting on {plan.target}"):
        launched = launch(plan, name=args.name, detach=True, say=print_status, env=_read_existing(args.keep_on_failure))
    if args.detach:
        from headway.cli.render import lines

        found = {"run": launched.run, "url": launched.url}
        started = f"{launched.run} submitted to {plan.target}, folder {launched.url}{lines(launched)}"
        print(as_json(found) if args.json else f"{started}\nnext: headway logs {launched.run} -f")
        return 0
    return attach(launched, json=args.json, rerun=_rerun(args))


def _rerun(args: argparse.Namespace) -> str:
    """Return this command for a new run: without the name, which exists now, and the plan, which holds the old code."""
    given = [("-f", args.file)] if args.file != DEFAULT else []
    given += [("--on", args.on)] if args.on != LOCAL else []
    given += [("--set", change) for change in args.changes] + [("--env", text) for text in args.env]
    given += [("--secret", name) for name in args.secret]
    return shlex.join(["headway", "run", *(word for pair in given for word in pair)])


def _read_existing(text: str | None) -> dict[str, str]:
    from headway.rundir.teardown import KEEP_VARIABLE
    from headway.spec.units import BadUnit, parse_duration

    if text is None:
        return {}
    try:
        return {KEEP_VARIABLE: f"{parse_duration(text):g}"}
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
