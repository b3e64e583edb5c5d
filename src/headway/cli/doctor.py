"""`headway doctor`: what works here and what does not, each with what to type. Spends nothing, changes nothing."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from headway.cli.jobs import DEFAULT
from headway.cli.runs import add_json
from headway.cli.show import as_json, paint, size
from headway.errors import BAD_INPUT, HeadwayError
from headway.extras import install_command
from headway.targets.findings import Finding

MARKS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "bad": ("BAD ", "red")}
NEEDS = {"train": ("numpy", "PIL", "safetensors", "torch"), "data": ("dask", "pyarrow", "simplejpeg")}
TIGHT_DISK = 5e9  # a run keeps a handful of checkpoints


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", metavar="FILE", help=f"check this job file too (default: {DEFAULT}, if there)")
    parser.add_argument("--on", metavar="TARGET", help="look at a target of the job file, or a kind of target, too")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    findings = [*_machine(), *_extras(), *_index(), *_job(args.file), *_target(args.file, args.on)]
    if args.json:
        print(as_json([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            text, colour = MARKS[finding.mark]
            print(f"{paint(text, colour)} {finding.what}" + (f"\n       fix: {finding.fix}" if finding.fix else ""))
    return BAD_INPUT if any(finding.mark == "bad" for finding in findings) else 0


def _machine() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("ok", f"Python {version} at {sys.executable}")
    free = shutil.disk_usage(Path.cwd()).free
    mark = "ok" if free > TIGHT_DISK else "note"
    yield Finding(mark, f"{size(free)} free here, {os.cpu_count()} CPUs")
    gpus = shutil.which("nvidia-smi")
    yield Finding("ok", "an NVIDIA driver is here") if gpus else Finding("note", "no GPU: training runs on the CPU")


def _extras() -> Iterator[Finding]:
    from importlib.util import find_spec

    for extra, modules in NEEDS.items():
        lacking = [name for name in modules if find_spec(name) is None]
        if lacking:
            yield Finding(
                "note", f"extra [{extra}] is incomplete: {', '.join(lacking)} missing", install_command(extra)
            )
        else:
            yield Finding("ok", f"extra [{extra}]")


def _index() -> Iterator[Finding]:
    from headway.ledger import Ledger

    said: list[str] = []
    count = len(list(Ledger(say=said.append).rows(limit=100_000)))
    yield Finding("note", said[0]) if said else Finding("ok", f"{count} runs in this machine's index")


def _job(file: str | None) -> Iterator[Finding]:
    if file is None and not Path(DEFAULT).exists():
        return
    from headway.spec import Job

    try:
        job = Job.load(Path(file or DEFAULT))
    except HeadwayError as error:
        yield Finding("bad", str(error))
        return
    yield Finding("ok", f"{file or DEFAULT}: job {job.name}")
    yield from _outputs(str(Path(job.root) / job.outputs) if "://" not in job.outputs else job.outputs)
    yield from (_secret(name, secret.ref) for name, secret in job.secrets.items())


def _target(file: str | None, on: str | None) -> Iterator[Finding]:
    """What the target itself has to say: its `doctor`, or what would stop the job there."""
    if on is None:
        return
    from headway.cli.end import still_billed
    from headway.spec import Job
    from headway.targets import registry

    try:
        job = Job.load(Path(file or DEFAULT)) if file or Path(DEFAULT).exists() else Job(name="job", script="none.py")
        target = registry.make(job, on)
        own = getattr(target, "doctor", None)
        if file or Path(DEFAULT).exists():
            yield from (
                Finding("bad", f"{problem.where}: {problem.what}", problem.fix) for problem in target.check(job)
            )
        yield from own(job) if own is not None else ()
        yield from (Finding("note", f"still billed: {line}") for line in still_billed(target))
    except HeadwayError as error:
        yield Finding("bad", error.problem.what, error.problem.fix)


def _outputs(url: str) -> Iterator[Finding]:
    from headway.storage import open_store, require_conditional_put

    try:
        require_conditional_put(open_store(url))
        yield Finding("ok", f"outputs: {url} can be written, and keeps its word on conditional writes")
    except HeadwayError as error:
        yield Finding("bad", f"outputs: {error.problem.what}", error.problem.fix)


def _secret(name: str, ref: str) -> Finding:
    from headway.secrets import resolve

    try:
        resolve(ref)
        return Finding("ok", f"secret {name} resolves ({ref})")
    except HeadwayError as error:
        return Finding("bad", f"secret {name}: {error.problem.what}", error.problem.fix)
