"""The restart policy: decide, when the ranks have ended, whether to restart them or end the run, and why.

Pure functions; the coordinator acts on the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core.errors import BAD_INPUT, FAILED, WORKER_AGAIN, WORKER_DONE
from headway.core.plan import BEGINNING, Plan
from headway.rundir.lease import Record, rate_usd, seconds_spent
from headway.supervisor.processes import RankExit

SAME_PLACE = 3  # consecutive crashes at the same step before the run fails
QUICK_S = 60.0  # a crash this soon after the start, by a rank that never reported a step, counts as one at the start
LONGEST_PAUSE_S = 60.0
_MOST_DOUBLINGS = 30  # bounds the exponent: thousands of restarts would overflow a float


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How the run ended, as recorded in its last event."""

    state: str  # finished, failed, budget, stopped
    reason: str
    exit_code: int
    crash: RankExit | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """Decision to restart the ranks under the next attempt number."""

    reason: str
    count: int  # of restarts, over all attempts
    pause_s: float
    free: bool = False  # does not count as a retry, because the next attempt runs with other settings


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptResult:
    """How all ranks of an attempt ended."""

    exits: tuple[RankExit, ...] = ()
    stop: str = ""  # who requested a stop
    overdue: bool = False  # the budget was spent before the ranks had ended
    budget: bool = False  # the ranks ended by themselves because the budget was nearly spent
    killed: tuple[int, ...] = ()  # ranks that did not end within the grace period
    lost: str = ""  # message about a node that disconnected
    absent: str = ""  # message about nodes that never joined
    crash: RankExit | None = None  # the first rank that failed by itself
    cut_to: int = 0  # out of memory: the number of micro-batches per batch to try next


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptHistory:
    """Time, restarts and crashes of earlier attempts, from their events."""

    spent_s: float = 0.0
    restarts: int = 0
    crashes: tuple[int | None, ...] = ()  # the step of each crash; -1: at the start; None: unknown
    parts: int = 1  # micro-batches per batch, raised when memory ran out

    def with_ending(self, ending: AttemptResult) -> AttemptHistory:
        place = None if ending.cut_to > self.parts else place_of(ending.crash)
        return replace(self, crashes=(*self.crashes, place), parts=max(self.parts, ending.cut_to))


def past(events: Sequence[Mapping[str, Any]], record: Record | None) -> AttemptHistory:
    """Compute the history of earlier attempts from a run's events and its lease.

    `record` is the lease of the previous holder, or ours as it was taken, which includes the previous holder's time.
    """
    return AttemptHistory(
        spent_s=seconds_spent(events, record),
        restarts=sum(event.get("kind") == "restart" and not event.get("free") for event in events),
        crashes=tuple(
            event.get("place") for event in events if event.get("kind") == "rank_exit" and event.get("first")
        ),
        parts=max((int(event.get("cut_to", 1)) for event in events if event.get("kind") == "failed"), default=1),
    )


def restarted(now: AttemptHistory, again: Restart) -> AttemptHistory:
    return replace(now, restarts=again.count)


def stopped(by: str) -> Outcome:
    return Outcome(state="stopped", reason=f"{by}: asked to stop", exit_code=WORKER_AGAIN)


def place_of(crash: RankExit | None) -> int | None:
    """Return the step of a crash, to compare it with the next one; -1: at the start; None: unknown."""
    if crash is None or (crash.step is None and crash.seconds > QUICK_S):
        return None
    return -1 if crash.step is None else crash.step


def judge(
    ending: AttemptResult,
    before: AttemptHistory,
    *,
    retries: int,
    first_pause_s: float = 1.0,
    same_place: int = SAME_PLACE,
    not_by_itself: str = "",
) -> Outcome | Restart:
    """Decide whether to restart the ranks or end the run.

    `before` does not include `ending`. A non-empty `not_by_itself` forbids automatic restarts and gives the reason.
    """
    settled = _settled(ending)
    if settled is not None:
        return settled
    crash = ending.crash
    reason = str(crash) if crash is not None else ending.lost
    if crash is not None and crash.code == BAD_INPUT:
        reason = f"{reason}: bad input, not retried"
        return Outcome(state="failed", reason=reason, exit_code=BAD_INPUT, crash=crash)
    if ending.cut_to > before.parts:
        reason = f"out of memory: each batch is now computed in {ending.cut_to} micro-batches"
        return Restart(reason=reason, count=before.restarts, pause_s=0.0, free=True)
    hopeless = _hopeless(before.with_ending(ending), same_place)
    if hopeless:
        return Outcome(state="failed", reason=f"{reason}: {hopeless}", exit_code=FAILED, crash=crash)
    if before.restarts >= retries:
        used = (
            "not retried (retries: 0)"
            if retries == 0
            else f"gave up after {retries} {'retry' if retries == 1 else 'retries'}"
        )
        return Outcome(state="failed", reason=f"{reason}: {used}", exit_code=FAILED, crash=crash)
    if not_by_itself:
        return Outcome(state="failed", reason=f"{reason}: {not_by_itself}", exit_code=FAILED, crash=crash)
    pause = min(LONGEST_PAUSE_S, first_pause_s * 2 ** min(before.restarts, _MOST_DOUBLINGS))
    return Restart(reason=reason, count=before.restarts + 1, pause_s=pause)


def costly_restart(plan: Plan, run: str) -> str:
    """Return why the ranks must not be restarted automatically, or "".

    The reason is a script that starts from the beginning on a billed target: the same work would be paid for twice.
    """
    if plan.resume != BEGINNING or rate_usd(plan) is None:
        return ""
    return (
        "not restarted automatically, because the script would start from the beginning and this target is billed; "
        f"to start it from the beginning: headway resume {run}"
    )


def _settled(ending: AttemptResult) -> Outcome | None:
    """Return the outcome if the run is over without a crash (finished, budget, stopped, nodes absent), else None."""
    if ending.overdue:
        return Outcome(state="budget", reason=_asked("the budget is spent", ending), exit_code=WORKER_DONE)
    done = bool(ending.exits) and all(end.code == 0 for end in ending.exits)
    if done and not ending.lost:
        state, reason = ("budget", "the budget is nearly spent") if ending.budget else ("finished", "done")
        return Outcome(state=state, reason=reason, exit_code=WORKER_DONE)
    if ending.stop:
        return Outcome(state="stopped", reason=_asked(f"{ending.stop}: asked to stop", ending), exit_code=WORKER_AGAIN)
    if ending.absent:
        return Outcome(state="failed", reason=ending.absent, exit_code=FAILED)
    if ending.crash is None and not ending.lost:
        return Outcome(state="stopped", reason="the ranks were asked to stop", exit_code=WORKER_AGAIN)
    return None


def _asked(reason: str, ending: AttemptResult) -> str:
    if not ending.killed:
        return reason
    ranks = ", ".join(map(str, ending.killed))
    return f"{reason}; rank {ranks} did not exit in time and was killed"


def _hopeless(now: AttemptHistory, enough: int) -> str:
    latest = now.crashes[-enough:]
    if len(latest) < enough or latest[-1] is None or len(set(latest)) > 1:
        return ""
    where = "before the first step" if latest[-1] == -1 else f"at step {latest[-1]}"
    return f"the last {enough} crashes were all {where}, so it is not retried"
