"""What targets share whose runs go on out of sight: when a run that is followed is over, and what its holder left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from headway import lease
from headway.errors import HeadwayError
from headway.resuming import again
from headway.runs import evidence
from headway.targets.base import Handle, State, Status
from headway.targets.here import folder_of

FOR_GOOD: Final = (State.FINISHED, State.FAILED, State.BUDGET)  # what is not started again by itself


def over(
    handle: Handle,
    status: Callable[[Handle], Status],
    *,
    look_s: float,
    ask_s: float,
    hint: Callable[[], bool] = lambda: False,
) -> Callable[[], bool]:
    """Whether the run has ended. Its folder is read every `look_s`, `status` asked every `ask_s`: it serves others too.

    `hint` says, cheaply, that asking sooner is worth it.
    """
    looked = asked = -ask_s

    def ended() -> bool:
        nonlocal looked, asked
        now = time.monotonic()
        if now - looked < look_s:
            return False
        looked, farewell = now, evidence(folder_of(handle)).farewell
        if farewell is not None and farewell.state in FOR_GOOD:
            return True
        if farewell is None and not hint() and now - asked < ask_s:
            return False
        asked = now
        return status(handle).state.ended

    return ended


def next_start(handle: Handle, *, started: bool) -> str:
    """What becomes of a run that is started again by its place, as the end of a sentence. Empty before its first."""
    if not started:
        return ""
    try:
        return f"; {again(folder_of(handle).plan().resume)}"
    except HeadwayError:
        return ""


def free_the_lease(handle: Handle, gone: Callable[[lease.Record], bool] | None = None) -> None:
    """Its holder is gone for certain: nobody need wait, on machines that are billed, for the lease to go stale."""
    try:
        folder = folder_of(handle)
        lease.free(folder.store, gone or (lambda record: not record.seen_at(folder.url)))
    except HeadwayError:
        pass  # no folder, or no way to it: it goes stale by itself


def said_farewell_or_never_began(handle: Handle) -> bool:
    try:
        found = evidence(folder_of(handle))
    except HeadwayError:  # no folder, or no way to it: be patient with whatever it is doing
        return False
    return found.farewell is not None or not found.started
