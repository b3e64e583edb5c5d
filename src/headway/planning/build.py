"""Resolve a job for one target into a plan: what would be sent, run, limited and paid, as one value."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway._version import __version__
from headway.core.errors import BadJob
from headway.core.plan import EXACT, Code, Limits, Plan
from headway.core.types import Target
from headway.packaging.code import Package, own_wheel, package
from headway.packaging.resume_evidence import is_source, resume_kind
from headway.packaging.upload import data_problems, fingerprint
from headway.planning.checks import problems as static_problems
from headway.planning.cost import Cost, cost_of, price_record, reserved
from headway.rundir.notify import WEBHOOK
from headway.spec import Job, dump
from headway.spec.rules import processes
from headway.targets import registry

LOCAL_GRACE_S = 30.0


def plan(job: Job, on: str = "local") -> Plan:
    """Plan `job` on the target that it calls `on`. Pure but for the code archive written to this machine's cache."""
    entry = registry.entry(job, on)
    unfit = static_problems(job, entry.options)
    job = _absolute(job)
    target = registry.make(job, on)
    problems = [*unfit, *target.check(job), *data_problems(job)]
    if problems:
        raise BadJob(problems)
    packed = package(job)
    cost = cost_of(job, entry.kind, entry.options)
    environment = _environment(job, target)
    dumped = dump(job)
    draft = Plan(
        headway=__version__,
        job=_told(dumped, {**cost.variables(job), **reserved(job, dumped)}),
        target=on,
        kind=entry.kind,
        options=dict(entry.options),
        code=_code(packed),
        data={source: fingerprint(source) for source in _sources(job)},
        nodes=job.resources.nodes,
        processes=processes(job),
        limits=_limits(cost.within(job), target),
        environment=environment,
        price=price_record(job, dumped, entry.kind, cost, cpus=int(environment["threads"]) * processes(job)),
        resume=_resume(job, packed),
        notes=(*_notes(packed), *_target_notes(target, job), *_cost_notes(job, cost)),
    )
    return replace(draft, requests=tuple(target.render(draft)))


def _absolute(job: Job) -> Job:
    """Resolve relative paths against the job file's folder, so that the plan can be launched from anywhere."""
    root = Path(job.root).resolve()

    def place(path: str) -> str:
        return path if "://" in path or path.startswith("builtin:") else os.path.normpath(root / path)

    lists = {
        name: tuple(replace(source, source=place(source.source)) for source in getattr(job.data, name))
        for name in ("train", "val", "test")
    }
    export = replace(job.export, to=place(job.export.to)) if job.export.to else job.export
    init_from = job.init_from and place(job.init_from)
    return replace(job, outputs=place(job.outputs), data=replace(job.data, **lists), export=export, init_from=init_from)


def _sources(job: Job) -> list[str]:
    return sorted({source.source for part in (job.data.train, job.data.val, job.data.test) for source in part})


def _code(packed: Package) -> Code:
    wheel, wheel_sha256 = own_wheel()
    return Code(
        sha256=packed.sha256,
        files=len(packed.files),
        bytes=packed.bytes,
        biggest=packed.biggest(),
        wheel=wheel,
        wheel_sha256=wheel_sha256,
    )


def _resume(job: Job, packed: Package) -> str:
    """Determine how the job resumes, from the sources that are sent."""
    if not job.script:
        return EXACT
    root = Path(job.root).resolve()
    texts = {
        name: (root / name).read_text(encoding="utf-8", errors="replace")
        for name, size in packed.files
        if is_source(name, size)
    }
    return resume_kind(job.script, job.args, texts)


def _limits(job: Job, target: Target) -> Limits:
    """Return the limits on this target: its own if it defines them, else the supervisor's."""
    own = getattr(target, "limits", None)
    if own is not None:
        said: Limits = own(job)
        return said
    hours = job.budget.hours
    return Limits(
        budget_s=None if hours is None else hours * 3600,
        max_wait_s=job.max_wait,
        grace_s=LOCAL_GRACE_S,
        second="none (this machine is not billed)" if hours is None else "the supervisor's timer",
    )


def _environment(job: Job, target: Target) -> dict[str, str]:
    """Record what bit-exactness depends on. The runtime sets the threads, and reports differences on a resume."""
    own_cpus = getattr(target, "cpus", None)  # defined by targets whose nodes are other machines
    cpus = own_cpus(job, processes(job)) if own_cpus is not None else os.cpu_count() or 1
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, Any] = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    threads = job.env.get("OMP_NUM_THREADS") or str(max(1, cpus // processes(job)))
    return {**found, "threads": threads}


def _target_notes(target: Target, job: Job) -> list[str]:
    """Return the target's notes for readers of the plan, if it has any."""
    notes = getattr(target, "notes", None)
    return list(notes(job, processes(job))) if notes else []


def _told(job: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Add the run's price variables and webhook secret to the job."""
    webhook = (job.get("notify") or {}).get("webhook")
    secrets = {WEBHOOK: {"ref": webhook, "as": "env"}} if webhook else {}
    return {**job, "env": {**job["env"], **variables}, "secrets": {**job["secrets"], **secrets}}


def _cost_notes(job: Job, cost: Cost) -> list[str]:
    """Return notes about cost: that nothing limits it, or that a budget cannot be enforced."""
    if cost.quote is None:
        return [] if job.budget.usd is None else ["budget.usd has no effect here: nothing is billed on this target"]
    if cost.quote.missing:
        effect = "; without one, budget.usd has no effect" if job.budget.usd is not None else ""
        return [f"no price is known: {cost.quote.missing}{effect}. Set `price:` (USD per node-hour) in the target"]
    if job.budget.usd is None and job.budget.hours is None:
        return ["this run has no time limit: set a budget (budget: {usd: 5} or {hours: 8})"]
    return []


def _notes(packed: Package) -> tuple[str, ...]:
    return tuple(f"not sent, because it looks like a secret: {name}" for name in packed.secrets)
