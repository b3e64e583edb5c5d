"""Record what a finished run took and wrote, for estimates in later plans of the same kind."""

from __future__ import annotations

from typing import Any

from headway.pricing.estimate import device_of, examples_per_epoch
from headway.pricing.history import PastRun, learn, length_of, what_of, work_of
from headway.rundir.layout import RunFolder


def learn_from(folder: RunFolder, spent_s: float) -> None:
    """Record a finished run. A run that was cut short must not be recorded: it says nothing about the whole."""
    plan, events = folder.plan(), folder.events()
    threads = str(plan.environment.get("threads", ""))
    cpus = int(threads) * plan.processes if threads.isdigit() else None
    device = device_of(plan.job, plan.kind, cpus)
    saved, exported = ([event for event in events if event.get("kind") == kind] for kind in ("checkpoint", "export"))
    epoch = examples_per_epoch(plan.job)
    length = length_of(plan.job)
    if spent_s <= 0:
        return
    learn(
        PastRun(
            url=folder.url,
            what=what_of(plan.job),
            work=work_of(plan.job),
            device=device.label,
            nodes=plan.nodes,
            length=length,
            seconds=round(spent_s, 3),
            examples=None if epoch is None else epoch * length,
            checkpoint_bytes=_largest(saved, "bytes"),
            checkpoint_s=_largest(saved, "seconds"),
            export_bytes=sum(entry.size for entry in folder.store.list("export/")) or None,
            export_s=_largest(exported, "seconds"),
        )
    )


def _largest(events: list[dict[str, Any]], key: str) -> Any:
    return max((event[key] for event in events if isinstance(event.get(key), int | float)), default=None)
