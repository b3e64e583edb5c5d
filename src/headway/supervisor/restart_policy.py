"""The restart policy: decide, when the ranks have ended, whether to restart them or end the run, and why.

Pure functions; the coordinator acts on the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core.errors import BAD_INPUT, FAILED, WORKER_DONE, WORKER_RESTART
from headway.core.plan import BEGINNING, Plan
from headway.core.python_errors import last_error
from headway.rundir.lease import LeaseRecord, seconds_spent, usd_per_hour
from headway.supervisor.processes import RankExit

MAX_SAME_STEP_CRASHES = 3  # consecutive crashes at the same step before the run fails
QUICK_CRASH_S = (
    60.0  # a crash this soon after the start, by a rank that never reported a step, counts as one at the start
)
MAX_PAUSE_S = 60.0
_MAX_DOUBLINGS = 30  # bounds the exponent: thousands of restarts would overflow a float
_NO_COMMAND = (126, 127)  # exit codes of a command that cannot be executed or is not found


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptOutcome:
    """How the run ended, as its `ended` event records it."""

    state: str  # finished, failed, budget, stopped
    reason: str
    exit_code: int
    crash: RankExit | None = None
    not_retried: str = ""  # why a crash was not retried although retries were left


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """Decision to restart the ranks under the next attempt number."""

    reason: str
    count: int  # of restarts, over all attempts
    pause_s: float
    not_counted: bool = False  # does not count as a retry, because the next attempt runs with other settings


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
    ended_by: str = ""  # why a program that does not exit counts as finished (`ends_when`)
    micro_batches: int = 0  # out of memory: the number of micro-batches per batch to try next


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptHistory:
    """Time, restarts and crashes of earlier attempts, from their events."""

    spent_s: float = 0.0
    restarts: int = 0
    crashes: tuple[int | None, ...] = ()  # the step of each crash; -1: at the start; None: unknown
    exception: str = ""  # the exception and line of the last crash; "": unknown
    micro_batches: int = 1  # micro-batches per batch, raised when memory ran out

    def with_result(self, result: AttemptResult) -> AttemptHistory:
        step = None if result.micro_batches > self.micro_batches else crash_step(result.crash)
        return replace(
            self,
            crashes=(*self.crashes, step),
            exception=result.crash.exception if result.crash else "",
            micro_batches=max(self.micro_batches, result.micro_batches),
        )


def read_history(events: Sequence[Mapping[str, Any]], record: LeaseRecord | None) -> AttemptHistory:
    """Compute the history of earlier attempts from a run's events and its lease.

    `record` is the lease of the previous holder, or ours as it was taken, which includes the previous holder's time.
    """
    crashes = [event for event in events if event.get("kind") == "rank_exit" and event.get("first")]
    return AttemptHistory(
        spent_s=seconds_spent(events, record),
        restarts=sum(event.get("kind") == "restart" and not event.get("free") for event in events),
        crashes=tuple(event.get("place") for event in crashes),
        exception=str(crashes[-1].get("exception") or "") if crashes else "",
        micro_batches=max(
            (int(event.get("cut_to", 1)) for event in events if event.get("kind") == "failed"), default=1
        ),
    )


def restarted(history: AttemptHistory, restart: Restart) -> AttemptHistory:
    return replace(history, restarts=restart.count)


def stopped(by: str) -> AttemptOutcome:
    return AttemptOutcome(state="stopped", reason=f"{by}: asked to stop", exit_code=WORKER_RESTART)


def crash_step(crash: RankExit | None) -> int | None:
    """Return the step of a crash, to compare it with the next one; -1: at the start; None: unknown."""
    if crash is None or (crash.step is None and crash.seconds > QUICK_CRASH_S):
        return None
    return -1 if crash.step is None else crash.step


def decide(
    result: AttemptResult,
    history: AttemptHistory,
    *,
    retries: int,
    first_pause_s: float = 1.0,
    max_same_step_crashes: int = MAX_SAME_STEP_CRASHES,
    no_auto_restart: str = "",
) -> AttemptOutcome | Restart:
    """Decide whether to restart the ranks or end the run.

    `history` does not include `result`. A non-empty `no_auto_restart` forbids automatic restarts and gives the reason.
    """
    outcome = _outcome_without_crash(result)
    if outcome is not None:
        return outcome
    crash = result.crash
    reason = str(crash) if crash is not None else result.lost
    if crash is not None and crash.code == BAD_INPUT:
        reason = f"{reason}: bad input, not retried"
        return AttemptOutcome(state="failed", reason=reason, exit_code=BAD_INPUT, crash=crash)
    if result.micro_batches > history.micro_batches:
        reason = f"out of memory: each batch is now computed in {result.micro_batches} micro-batches"
        return Restart(reason=reason, count=history.restarts, pause_s=0.0, not_counted=True)
    why = _certain_to_fail(history, crash) or _crash_loop(history.with_result(result), max_same_step_crashes)
    if why:
        reason = f"{reason}: {why}"
        return AttemptOutcome(state="failed", reason=reason, exit_code=FAILED, crash=crash, not_retried=why)
    if history.restarts >= retries:
        used = (
            "not retried (retries: 0)"
            if retries == 0
            else f"gave up after {retries} {'retry' if retries == 1 else 'retries'}"
        )
        return AttemptOutcome(state="failed", reason=f"{reason}: {used}", exit_code=FAILED, crash=crash)
    if no_auto_restart:
        return AttemptOutcome(state="failed", reason=f"{reason}: {no_auto_restart}", exit_code=FAILED, crash=crash)
    pause = min(MAX_PAUSE_S, first_pause_s * 2 ** min(history.restarts, _MAX_DOUBLINGS))
    return Restart(reason=reason, count=history.restarts + 1, pause_s=pause)


def costly_restart(plan: Plan, run: str) -> str:
    """Return why the ranks must not be restarted automatically, or "".

    The reason is a script that starts from the beginning on a billed target: the same work would be paid for twice.
    """
    if plan.resume != BEGINNING or usd_per_hour(plan) is None:
        return ""
    return (
        "not restarted automatically, because the script would start from the beginning and this target is billed; "
        f"to start it from the beginning: headway resume {run} --from-beginning"
    )


def _outcome_without_crash(result: AttemptResult) -> AttemptOutcome | None:
    """Return the outcome if the run is over without a crash (finished, budget, stopped, nodes absent), else None."""
    if result.overdue:
        return AttemptOutcome(
            state="budget", reason=_with_killed_ranks("the budget is spent", result), exit_code=WORKER_DONE
        )
    done = bool(result.exits) and all(end.code == 0 for end in result.exits)
    if done and not result.lost:
        state, reason = ("budget", "the budget is nearly spent") if result.budget else ("finished", "done")
        return AttemptOutcome(state=state, reason=reason, exit_code=WORKER_DONE)
    if result.ended_by and not result.crash and not result.lost:
        return AttemptOutcome(state="finished", reason=result.ended_by, exit_code=WORKER_DONE)
    if result.stop:
        return AttemptOutcome(
            state="stopped",
            reason=_with_killed_ranks(f"{result.stop}: asked to stop", result),
            exit_code=WORKER_RESTART,
        )
    if result.absent:
        return AttemptOutcome(state="failed", reason=result.absent, exit_code=FAILED)
    if result.crash is None and not result.lost:
        return AttemptOutcome(state="stopped", reason="the ranks were asked to stop", exit_code=WORKER_RESTART)
    return None


def _with_killed_ranks(reason: str, result: AttemptResult) -> str:
    if not result.killed:
        return reason
    ranks = ", ".join(map(str, result.killed))
    return f"{reason}; rank {ranks} did not exit in time and was killed"


def _certain_to_fail(history: AttemptHistory, crash: RankExit | None) -> str:
    """Return why the same code would fail again, or "".

    A missing module and a syntax error are certain at once. Any other exception is, if it was raised at the same line
    as in the attempt before, unless that attempt got less far, or a network, a disk or memory may be the cause.
    """
    if crash is None:
        return ""
    if crash.code in _NO_COMMAND and not crash.signal:
        return "the command cannot be executed, so it is not retried"
    error = last_error(crash.lines)
    if error is None or not crash.exception:
        return ""
    if error.is_fatal:
        return f"{crash.exception}: the same code would fail again, so it is not retried"
    if error.is_transient or history.exception != crash.exception:
        return ""
    before, now = history.crashes[-1] if history.crashes else None, crash_step(crash)
    if before is not None and now is not None and now > before:
        return ""
    return f"{crash.exception}, as in the attempt before, so it is not retried"


def _crash_loop(history: AttemptHistory, limit: int) -> str:
    latest = history.crashes[-limit:]
    if len(latest) < limit or latest[-1] is None or len(set(latest)) > 1:
        return ""
    where = "before the first step" if latest[-1] == -1 else f"at step {latest[-1]}"
    return f"the last {limit} crashes were all {where}, so it is not retried"
