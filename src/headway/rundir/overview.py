"""A run at one moment, for `status`, `watch` and the dashboard: status, progress, attempts, checkpoint, spending."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.core.format import size
from headway.core.types import State
from headway.rundir.spending import Spending
from headway.rundir.status import folder_status

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.core.types import Status
    from headway.rundir.layout import RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOverview:
    """One reading of a run's folder, beside the status that its target or its folder gives."""

    status: Status
    progress: Mapping[str, Any]  # empty before the first step
    spent: Spending  # with the seconds since the last event, from the progress record
    attempts: int
    checkpoint: int | None  # the newest checkpoint's step
    condition: Mapping[str, Any] | None = None  # why a running run does not advance: stalled, waiting
    fault: Mapping[str, Any] | None = None  # the last failure, its class and the decision about it
    began_again: int = 0  # the last attempt in which a project that may continue was at its first epoch again

    @classmethod
    def of(cls, folder: RunFolder, *, status: Status | None = None, plan: Plan | None = None) -> RunOverview:
        """Read the folder. `status`: that of the target; without it, the folder alone decides."""
        status = status or folder_status(folder)
        progress = folder.progress() or {}
        status = _with_condition(status, progress)
        events = folder.events()
        saved = [event["step"] for event in events if event["kind"] == "checkpoint"]
        return cls(
            status=status,
            progress=progress,
            spent=Spending.of(folder, progress, plan=plan),
            attempts=sum(event["kind"] == "attempt" for event in events),
            checkpoint=saved[-1] if saved else None,
            condition=progress.get("condition") if status.state is State.RUNNING else None,
            fault=next((event for event in reversed(events) if event["kind"] == "fault"), None),
            began_again=max((int(event["attempt"]) for event in events if event["kind"] == "began_again"), default=0),
        )


def _with_condition(status: Status, progress: Mapping[str, Any]) -> Status:
    """Return the status of a running run with why it does not advance, if its supervisor says so."""
    condition = progress.get("condition")
    if status.state is not State.RUNNING or not isinstance(condition, Mapping) or not condition.get("text"):
        return status
    text = str(condition["text"])
    if condition.get("kind") == "waiting" and status.reason:  # the target knows why: a pod that does not fit
        text += f" ({status.reason})"
    return replace(status, reason=text)


_STARVED = 0.3  # of the time: worth a remark
_WAITS = {
    "data": "for data: more loader workers, or a faster store",
    "ranks": "for other ranks: one is slower, or the network is",
    "checkpoint": "for checkpoints: checkpoint.every, or a faster disk",
}


def describe_speed(progress: Mapping[str, Any], usd_per_hour: float | None = None) -> str:
    """Describe speed, its price and what holds it up: 12 steps/s, 394 samples/s, $0.002 per thousand samples."""
    parts = [f"{progress['rate']:.3g} steps/s"] if progress.get("rate") else []
    samples = progress.get("samples_s")
    if samples:
        parts.append(f"{samples:.3g} samples/s")
        if usd_per_hour:
            parts.append(f"${usd_per_hour / 3.6 / samples:.3g} per thousand samples")
    waits = progress.get("waits")
    for cause, share in (waits or {}).items() if isinstance(waits, Mapping) else ():
        if share >= _STARVED and cause in _WAITS:
            parts.append(f"{share:.0%} of the time waits {_WAITS[cause]}")
    return ", ".join(parts)


def describe_system(progress: Mapping[str, Any]) -> str:
    """Describe the machines: 3.8 of 4 CPUs, 5.2GB of 16GB memory; with several nodes, each of them."""
    nodes = progress.get("system")
    if not isinstance(nodes, Mapping):
        return ""
    texts = []
    for node, each in sorted(nodes.items()):
        rates = {"reads": each.get("disk_read"), "writes": each.get("disk_written"), "receives": each.get("received")}
        moved = [f"{name} {size(int(rate))}/s" for name, rate in rates.items() if rate and rate > 1e6]
        memory = f"{size(each.get('memory', 0))} of {size(each.get('memory_total', 0))} memory"
        text = ", ".join([f"{each.get('cores', 0):.1f} of {each.get('cpus', 0)} CPUs", memory, *moved])
        texts.append(text if len(nodes) == 1 else f"node {node}: {text}")
    return "; ".join(texts)
