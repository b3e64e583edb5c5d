"""A run at one moment, for `status`, `watch` and the dashboard: status, progress, attempts, checkpoint, spending."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
