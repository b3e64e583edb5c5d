"""The verbs `doctor`, `plugins` and `verify-resume`: check this machine, a target, or that a job resumes exactly."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from headway.cli.dispatch import DEFAULT, add_json, load_job
from headway.core.errors import BAD_INPUT, FAILED, FINISHED, HeadwayError, install_command
from headway.core.format import as_json, paint, size
from headway.core.types import Finding

if TYPE_CHECKING:
    from headway.plugins.registry import InstalledPlugin
    from headway.tools.verify_resume import Proof


MARKS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "bad": ("BAD ", "red")}
MODULES_BY_EXTRA = {"train": ("numpy", "PIL", "safetensors", "torch"), "data": ("dask", "pyarrow", "simplejpeg")}
LOW_DISK_BYTES = 5e9  # a run keeps a handful of checkpoints


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f", "--file", metavar="FILE", help=f"also check this job file (default: {DEFAULT}, if it exists)"
    )
    parser.add_argument("--on", metavar="TARGET", help="also check this target of the job file, or kind of target")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                        help="override a key of the job file, as for `headway run`")  # fmt: skip
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also train for a minute there: checkpoint, kill, resume, compare bits, bandwidth, precision",
    )
    add_json(parser)


def doctor_command(args: argparse.Namespace) -> int:
    findings = [*_machine(), *_extras(), *_plugins(), *_index(), *_job(args.file, args.changes)]
    findings += _target(args.file, args.on, args.changes)
    if args.deep:
        findings += _deep(args.file, args.on or "local", args.changes)
    if args.json:
        print(as_json([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            text, colour = MARKS[finding.mark]
            print(f"{paint(text, colour)} {finding.what}" + (f"\n       fix: {finding.fix}" if finding.fix else ""))
    return BAD_INPUT if any(finding.mark == "bad" for finding in findings) else 0


def plugins_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of job files with the plug-ins")
    add_json(parser)


def plugins_command(args: argparse.Namespace) -> int:
    """List what job files and the command line can name. Exit code: 2 if a plug-in cannot be used."""
    from headway.plugins import installed_plugins

    if args.schema:
        from headway.plugins import working_catalog
        from headway.spec.schema import text

        print(text(working_catalog()), end="")
        return FINISHED
    found = installed_plugins()
    print(as_json([asdict(plugin) for plugin in found]) if args.json else _plugin_table(found))
    return BAD_INPUT if any(plugin.problem for plugin in found) else FINISHED


def _plugin_table(found: Sequence[InstalledPlugin]) -> str:
    from headway.plugins import REGISTRIES

    lines = []
    for group in (registry.group for registry in REGISTRIES):
        rows = [plugin for plugin in found if plugin.group == group]
        ours = [plugin.name for plugin in rows if not plugin.loads]
        lines.append(f"{group:<10} {', '.join(ours) or 'none of Headway'}")
        for plugin in (plugin for plugin in rows if plugin.loads):
            lines.append(f"{'':<10} {plugin.name:<16} {plugin.distribution:<24} {plugin.loads}")
            lines += [f"{'':<12}{paint('BAD', 'red')} {plugin.problem}"] if plugin.problem else []
    if not any(plugin.loads for plugin in found):
        lines.append("No plug-ins of other packages are installed. docs/plugins.md shows how to write one.")
    return "\n".join(lines)


def _plugins() -> Iterator[Finding]:
    from headway.plugins import installed_plugins

    for plugin in (plugin for plugin in installed_plugins() if plugin.loads):
        name = f"plug-in {plugin.name} ({plugin.group}) of {plugin.distribution}"
        if plugin.problem:
            yield Finding("bad", f"{name}: {plugin.problem}", f"pip install --upgrade {plugin.distribution.split()[0]}")
        else:
            yield Finding("ok", name)


def _machine() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("ok", f"Python {version} at {sys.executable}")
    free = shutil.disk_usage(Path.cwd()).free
    mark = "ok" if free > LOW_DISK_BYTES else "note"
    yield Finding(mark, f"{size(free)} of disk free, {os.cpu_count()} CPUs")
    gpus = shutil.which("nvidia-smi")
    yield Finding("ok", "NVIDIA driver found") if gpus else Finding("note", "no GPU: training runs on the CPU")


def _extras() -> Iterator[Finding]:
    from importlib.util import find_spec

    for extra, modules in MODULES_BY_EXTRA.items():
        missing = [name for name in modules if find_spec(name) is None]
        if missing:
            yield Finding(
                "note", f"extra [{extra}] is incomplete: {', '.join(missing)} missing", install_command(extra)
            )
        else:
            yield Finding("ok", f"extra [{extra}]")


def _index() -> Iterator[Finding]:
    from headway.rundir.index import RunIndex

    messages: list[str] = []
    count = len(list(RunIndex(log=messages.append).rows(limit=100_000)))
    yield Finding("note", messages[0]) if messages else Finding("ok", f"{count} runs in this machine's index")


def _job(file: str | None, changes: Sequence[str]) -> Iterator[Finding]:
    if file is None and not Path(DEFAULT).exists():
        return
    from headway.spec import Job

    try:
        job = Job.load(Path(file or DEFAULT), set=changes)
    except HeadwayError as error:
        yield Finding("bad", str(error))
        return
    yield Finding("ok", f"{file or DEFAULT}: job {job.name}")
    yield from _outputs(str(Path(job.root) / job.outputs) if "://" not in job.outputs else job.outputs)
    yield from (_secret(name, secret.ref) for name, secret in job.secrets.items())


def _target(file: str | None, on: str | None, changes: Sequence[str]) -> Iterator[Finding]:
    """Yield what would stop the job on the target, the target's own findings, and what stays billed there."""
    if on is None:
        return
    from headway import targets
    from headway.cli.stop import billable_resources
    from headway.spec import Job

    try:
        given = file or Path(DEFAULT).exists()
        job = Job.load(Path(file or DEFAULT), set=changes) if given else Job(name="job", script="none.py")
        target = targets.make(job, on)
        if given:
            yield from (
                Finding("bad", f"{problem.where}: {problem.what}", problem.fix) for problem in target.check(job)
            )
        yield from target.doctor(job)
        yield from (Finding("note", f"still billed: {line}") for line in billable_resources(target))
    except HeadwayError as error:
        yield Finding("bad", error.problem.what, error.problem.fix)


def _deep(file: str | None, on: str, changes: Sequence[str]) -> Iterator[Finding]:
    """Train a little on the target, with its job's resources, image and environment."""
    from headway.cli.render import print_status
    from headway.spec import Job
    from headway.tools.self_test import self_test

    try:
        given = file or Path(DEFAULT).exists()
        job = Job.load(Path(file or DEFAULT), set=changes) if given else Job(name="job", script="none.py")
        yield from self_test(job, on, print_status)
    except HeadwayError as error:
        yield Finding("bad", error.problem.what, error.problem.fix)


def _outputs(url: str) -> Iterator[Finding]:
    from headway.storage import open_store, require_conditional_put

    try:
        require_conditional_put(open_store(url))
        yield Finding("ok", f"outputs: {url} is writable and supports conditional writes")
    except HeadwayError as error:
        yield Finding("bad", f"outputs: {error.problem.what}", error.problem.fix)


def _secret(name: str, ref: str) -> Finding:
    from headway.storage.secrets import resolve

    try:
        resolve(ref)
        return Finding("ok", f"secret {name} resolves ({ref})")
    except HeadwayError as error:
        return Finding("bad", f"secret {name}: {error.problem.what}", error.problem.fix)


# `headway verify-resume`: train a few steps twice, once killed and resumed, and compare the weights.


STEPS = 30
SHOWN = 5  # suspicious lines, and parts that differ


def verify_resume_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", default=DEFAULT, metavar="FILE", help=f"the job file (default: {DEFAULT})")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                        help="override a key of the job file: --set config.batch_size=8")  # fmt: skip
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"number of steps (default: {STEPS})")
    add_json(parser)
    parser.set_defaults(env=[], secret=[])


def verify_resume_command(args: argparse.Namespace) -> int:
    """Run `headway verify-resume`. Exit code: 0 only if the results are bit-identical."""
    from headway.cli.render import print_status
    from headway.core.errors import needs
    from headway.tools.verify_resume import verify_resume

    signal.signal(signal.SIGTERM, _interrupted)
    with needs("train", "verify-resume"):
        proof = verify_resume(load_job(args), steps=args.steps, say=print_status)
    print(as_json(proof.to_dict()) if args.json else describe(proof))
    return FINISHED if proof.exact else FAILED


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM like Ctrl-C, so that everything started is taken down."""
    raise KeyboardInterrupt


def describe(proof: Proof) -> str:
    compared = proof.compared
    ranks = "its rank" if proof.ranks == 1 else f"all {proof.ranks} ranks"
    identical = not compared.differing
    amount = (
        "0, bit-identical"
        if identical
        else f"{compared.largest:.3g}" + (f" in {compared.where}" if compared.where else "")
    )
    rows = [
        f"{proof.steps} steps; {ranks} killed after step {proof.killed_after}, resumed from step {proof.resumed_from}",
        f"weights and other tensors ({compared.tensors}), largest difference: {amount}",
        _metrics(proof),
    ]
    if proof.exact:
        return "\n".join(
            [paint("exact: the killed and resumed run equals the uninterrupted run", "green"), *_indented(rows)]
        )
    return "\n".join([paint("NOT exact", "red"), *_indented([*rows, *_first(proof), *_why(proof)])])


def _metrics(proof: Proof) -> str:
    found = proof.histories
    timing = f" (except {', '.join(found.clocks)}, which differs between any two runs)" if found.clocks else ""
    if not found.records:
        return "metrics: none were logged"
    if found.first_step is None:
        return f"metrics of {found.records} steps: equal{timing}"
    one, other = found.values
    return f"metrics: {found.names[0]} differs from step {found.first_step} on: {one} ≠ {other}{timing}"


def _first(proof: Proof) -> list[str]:
    first, compared = proof.compared.first, proof.compared
    if first is None:
        return []
    size = first.words if first.amount is None else f"by {first.amount:.3g}"
    looked = ", ".join(map(str, compared.steps))
    more = len(compared.differing) - SHOWN
    parts = ", ".join(compared.differing[:SHOWN]) + (f" and {more} more" if more > 0 else "")
    return [
        f"first difference: {first.part}, {size}, at step {first.step} (compared {looked})",
        f"different at the end: {parts}",
    ]


def _why(proof: Proof) -> list[str]:
    cause = proof.cause
    if cause is None:
        return []
    lines = [f"  {suspect.where}: {suspect.code}" for suspect in cause.look_at[:SHOWN]]
    return [f"likely cause: {cause.words}", *lines, f"fix: {cause.fix}"]


def _indented(rows: list[str]) -> list[str]:
    return [f"  {row}" for row in rows]
