"""Ending a run's jobs: ask through its folder, wait, cancel, look again. The receipt is what the second look found.

An ended job stays in Vertex AI's list as a record, which is not billed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from headway import lease
from headway.errors import Conflict, HeadwayError
from headway.intent import now, who
from headway.runfolder import STOP
from headway.runs import evidence
from headway.storage import ABSENT
from headway.targets.base import Handle, Receipt, State
from headway.targets.here import FAREWELL_S, folder_of, grace_s
from headway.targets.vertex import jobs
from headway.targets.vertex.api import Client, Gone, Refused
from headway.targets.vertex.jobs import UNDER_WAY, Job

LEAVING_S = 60.0  # for the job of a run that is done: Vertex AI tidies up after it
FORCE_S = 300.0  # for a cancelled job to go: Vertex AI takes its machines down
FIRST_LOOK_S, LONGEST_LOOK_S = 0.2, 5.0
Listing = Callable[[], list[Job]]
Sleep = Callable[[float], None]


def take_down(client: Client, handle: Handle, listing: Listing, sleep: Sleep) -> Receipt:
    """A run that trains is asked to checkpoint and given its grace period. Then the job is cancelled."""
    seen: dict[str, Job] = {}
    cancelled: set[str] = set()

    def remaining() -> list[Job]:
        found = listing()
        seen.update({job.name: job for job in found})
        return [job for job in found if job.live]

    if any(job.state in UNDER_WAY for job in remaining()):
        if _trains(handle):
            _ask(handle)
            for _ in _looks(lambda: _trains(handle) and remaining(), _patience_s(handle), sleep):
                pass
        if _is_done(handle):  # then the job is about to succeed by itself, and should be seen to have
            for _ in _looks(remaining, LEAVING_S, sleep):
                pass
    for left in _looks(remaining, FORCE_S, sleep):
        for job in left:
            if job.name not in cancelled and job.state != "JOB_STATE_CANCELLING":
                cancelled.add(job.name)
                _cancel(client, job)
    stayed = {job.name for job in remaining()}
    return Receipt(
        run=handle.run,
        created=tuple(map(str, seen.values())),
        removed=tuple(str(job) for name, job in seen.items() if name not in stayed),
        left=tuple(f"{job} ({job.words})" for name, job in seen.items() if name in stayed),
    )


def _ask(handle: Handle) -> None:
    """The supervisor reads its folder: nothing else reaches it but the end."""
    folder = folder_of(handle)
    try:
        folder.write_json(STOP, {"by": who(), "reason": "taken down", "at": now()}, when=ABSENT)
    except Conflict:
        pass  # somebody has asked already, with a reason of their own
    except HeadwayError:
        pass  # no way to the folder: cancelling says the same, less gently


def _trains(handle: Handle) -> bool:
    """Whether an attempt is under way that may still say farewell."""
    try:
        seen = evidence(folder_of(handle))
    except HeadwayError:  # no folder, or no way to it
        return False
    return seen.started and seen.farewell is None and seen.lease is not None and seen.lease.holder is not None


def _is_done(handle: Handle) -> bool:
    """Whether its supervisor has said that nothing is left to do, and exits with 0. A failed one would be restarted."""
    try:
        farewell = evidence(folder_of(handle)).farewell
    except HeadwayError:  # no folder, or no way to it
        return False
    return farewell is not None and farewell.state in (State.FINISHED, State.BUDGET)


def _patience_s(handle: Handle) -> float:
    """It looks for our word as often as it renews its lease."""
    return lease.RENEW_S + grace_s(handle) + FAREWELL_S


def _looks(remaining: Callable[[], object], within_s: float, sleep: Sleep) -> Iterator[list[Job]]:
    began, pause = time.monotonic(), FIRST_LOOK_S
    while time.monotonic() - began < within_s and (left := remaining()):
        yield left if isinstance(left, list) else []
        sleep(pause)
        pause = min(LONGEST_LOOK_S, pause * 1.3)


def _cancel(client: Client, job: Job) -> None:
    try:
        client.cancel(job.name)
    except Gone:
        pass
    except Refused:
        current = jobs.read(client, job.name)
        if current is not None and current.live:
            raise
