"""Hooks that run once when a run has ended, in the first client that sees it: record its duration, notify people."""

from __future__ import annotations

from collections.abc import Callable

from headway.core.errors import HeadwayError
from headway.core.types import State, Status
from headway.pricing.record_history import learn_from
from headway.rundir.accounting import spent_s, spent_usd
from headway.rundir.layout import RunFolder
from headway.rundir.notify import Notification, notify_here
from headway.rundir.status import evidence


def on_run_end(folder: RunFolder, say: Callable[[str], None]) -> None:
    """Record the run for time estimates and send notifications. Never fails: errors are passed to `say`."""
    try:
        seconds = spent_s(folder)
        plan, end = folder.plan(), evidence(folder).end
        status = end or Status(state=State.LOST, reason="it ended without reporting why")
        if status.state is State.FINISHED:
            learn_from(folder, seconds)
        notice = Notification.of(folder, plan, status.state.value, status.reason, seconds, spent_usd(plan, seconds))
        notify_here(plan.job.get("notify") or {}, notice, lost=end is None, say=say)
    except HeadwayError as error:
        say(f"could not record or announce the end of the run: {error}")
