"""Ending a run's jobs: ask, wait, cancel, look again. The receipt is what the second look found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.targets.base import Handle, Receipt
from headway.targets.here import FAREWELL_S, grace_s
from headway.targets.slurm.commands import Ask, Unknown
from headway.targets.slurm.queue import ENDING, RUNNING, Job, jobs_of

LEAVING_S = 10.0  # for a job whose run has said how it ended: Slurm tidies up after it
FORCE_S = 120.0  # for a cancelled job to go: KillWait, an epilog, a node that answers slowly
FIRST_LOOK_S, LONGEST_LOOK_S = 0.2, 2.0  # a quick end is seen quickly, and a long one costs the controller little


def take_down(ask: Ask, handle: Handle, *, known: str, place: Path, ended: bool) -> Receipt:
    """SIGTERM to the supervisors, the plan's grace period, then scancel. What waits in the queue is cancelled at once.

    Slurm may requeue a job at any moment: until it is gone for good, each state it is seen in is answered.
    """
    seen: dict[str, Job] = {known: Job(id=known, state="gone")} if known else {}
    asked: set[str] = set()

    def remaining() -> list[Job]:
        live = [job for job in jobs_of(ask, handle.url, known, place=place) if job.live]
        seen.update({job.id: job for job in live})
        return live

    patience = grace_s(handle) + FAREWELL_S
    for left, waited_s in _looks(remaining, LEAVING_S if ended else patience):
        for job in left:
            if job.state not in (*RUNNING, ENDING):
                _scancel(ask, job.id)
            elif job.state in RUNNING and job.id not in asked and (not ended or waited_s > LEAVING_S / 2):
                asked.add(job.id)
                _scancel(ask, "--signal=TERM", job.id)
    for left, _ in _looks(remaining, FORCE_S):
        for job in left:
            if job.state != ENDING:
                _scancel(ask, job.id)
    stayed = {job.id: str(job) for job in remaining()}
    return Receipt(
        run=handle.run,
        created=tuple(f"Slurm job {number}" for number in seen),
        removed=tuple(f"Slurm job {number}" for number in seen if number not in stayed),
        left=tuple(stayed.values()),
    )


def _looks(remaining: Callable[[], list[Job]], within_s: float) -> Iterator[tuple[list[Job], float]]:
    """What is left, and how long it has been waited for, again and again until nothing is or the time is over."""
    began, pause = time.monotonic(), FIRST_LOOK_S
    while (waited_s := time.monotonic() - began) < within_s and (left := remaining()):
        yield left, waited_s
        time.sleep(pause)
        pause = min(LONGEST_LOOK_S, pause * 1.3)


def _scancel(ask: Ask, *words: str) -> None:
    try:
        ask(["scancel", *words])
    except Unknown:
        pass  # gone since it was listed
