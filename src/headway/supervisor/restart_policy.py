"""The restart policy: decide, when the ranks have ended, whether to restart them or end the run, and why.

Pure functions; the coordinator acts on the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core.errors import BAD_INPUT, FAILED, WORKER_DONE, WORKER_RESTART
from headway.core.plan import BEGINNING, Plan
from headway.diagnose.fault import Fault, classify
from headway.diagnose.matching import FailureRule, Retry
from headway.rundir.lease import LeaseRecord, seconds_spent, usd_per_hour
from headway.supervisor.processes import RankExit

MAX_SAME_STEP_CRASHES = 3  # consecutive crashes at the same step before the run fails
QUICK_CRASH_S = (
    60.0  # a crash this soon after the start, by a rank that never reported a step, counts as one at the start
)
MAX_PAUSE_S = 60.0
WAIT_FACTOR, MAX_WAIT_S = 30.0, 600.0  # pauses after a failure that only time mends: 30 s, 1 min, … 10 min
_MAX_DOUBLINGS = 30  # bounds the exponent: thousands of restarts would overflow a float


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptOutcome:
    """How the run ended, as its `ended` event records it."""

    state: str  # finished, failed, budget, stopped
    reason: str
    exit_code: int
    crash: RankExit | None = None
    not_retried: str = ""  # why a crash was not retried although retries were left
    fault: Fault | None = None  # the class of the crash


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """Decision to restart the ranks under the next attempt number."""

    reason: str
    count: int  # of restarts, over all attempts
    pause_s: float
    not_counted: bool = False  # does not count as a retry, because the next attempt runs with other settings
    fault: Fault | None = None  # the class of the crash


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptResult:
    """How all ranks of an attempt ended."""

    exits: tuple[RankExit, ...] = ()
    stop: str = ""  # who requested a stop
    interrupted: bool = False  # by SIGTERM, in a program whose exit code 0 may mean that it handled the signal
    overdue: bool = False  # the budget was spent before the ranks had ended
    budget: bool = False  # the ranks ended by themselves because the budget was nearly spent
    killed: tuple[int, ...] = ()  # ranks that did not end within the grace period
    lost: str = ""  # message about a node that disconnected
    absent: str = ""  # message about nodes that never joined
    released: str = ""  # message about billed nodes that are given back because others are missing
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
    retry: str = ""  # the class of the last crash
    micro_batches: int = 1  # micro-batches per batch, raised when memory ran out

    def with_result(self, result: AttemptResult, fault: Fault | None = None) -> AttemptHistory:
        step = None if result.micro_batches > self.micro_batches else crash_step(result.crash)
        return replace(
            self,
            crashes=(*self.crashes, step),
            exception=result.crash.exception if result.crash else "",
            retry=fault.retry.value if fault else "",
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
        retry=next((str(event.get("class")) for event in reversed(events) if event.get("kind") == "fault"), ""),
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
    rules: Sequence[FailureRule] = (),
) -> AttemptOutcome | Restart:
    """Decide whether to restart the ranks or end the run.

    `history` does not include `result`. A non-empty `no_auto_restart` forbids automatic restarts and gives the reason.
    `rules` are the job's own failure rules.
    """
    outcome = _outcome_without_crash(result)
    if outcome is not None:
        return outcome
    crash, fault = result.crash, fault_of(result.crash, rules)
    reason = str(crash) if crash is not None else result.lost
    if crash is not None and crash.code == BAD_INPUT:
        reason, fault = f"{reason}: bad input, not retried", replace(fault, retry=Retry.NEVER)
        return AttemptOutcome(state="failed", reason=reason, exit_code=BAD_INPUT, crash=crash, fault=fault)
    if result.micro_batches > history.micro_batches:
        reason = f"out of memory: each batch is now computed in {result.micro_batches} micro-batches"
        return Restart(reason=reason, count=history.restarts, pause_s=0.0, not_counted=True, fault=fault)
    why = _certain_to_fail(fault, history, crash) or _crash_loop(history.with_result(result), max_same_step_crashes)
    if why:
        reason = f"{reason}: {why}"
        return AttemptOutcome(
            state="failed", reason=reason, exit_code=FAILED, crash=crash, not_retried=why, fault=fault
        )
    limit = no_auto_restart
    if history.restarts >= retries:
        retried = "1 retry" if retries == 1 else f"{retries} retries"
        limit = f"gave up after {retried}" if retries else "not retried (retries: 0)"
    if limit:
        reason = f"{reason}: {limit}"
        return AttemptOutcome(state="failed", reason=reason, exit_code=FAILED, crash=crash, fault=fault)
    pause_s = _pause_s(fault, history.restarts, first_pause_s)
    return Restart(reason=reason, count=history.restarts + 1, pause_s=pause_s, fault=fault)


def fault_of(crash: RankExit | None, rules: Sequence[FailureRule] = ()) -> Fault:
    """Return the class of a crash; without one, a node was lost."""
    if crash is None:
        return Fault(retry=Retry.RETRY, why="a node was lost", name="node-lost")
    return classify(crash.lines, code=crash.code, signal=crash.signal, exception=crash.exception, rules=rules)


def _pause_s(fault: Fault, restarts: int, first_pause_s: float) -> float:
    """Return the pause before a restart: it doubles each time, and is longer where only time helps."""
    doubled: float = first_pause_s * 2 ** min(restarts, _MAX_DOUBLINGS)
    return min(MAX_WAIT_S, WAIT_FACTOR * doubled) if fault.retry is Retry.WAIT else min(MAX_PAUSE_S, doubled)


def costly_restart(plan: Plan, run: str, *, began_again: str = "") -> str:
    """Return why the ranks must not be restarted automatically, or "".

    The reason is a script that starts from the beginning on a billed target: the same work would be paid for twice.
    `began_again` says that it was seen to do so.
    """
    if usd_per_hour(plan) is None or (plan.resume != BEGINNING and not began_again):
        return ""
    if began_again:
        return (
            f"not restarted automatically, because {began_again}, and this target is billed; "
            f"to start it again: headway resume {run}"
        )
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
    if done and not result.lost and not result.interrupted:
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
    if result.released:
        return AttemptOutcome(state="stopped", reason=result.released, exit_code=FAILED)
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


def _certain_to_fail(fault: Fault, history: AttemptHistory, crash: RankExit | None) -> str:
    """Return why the same code would fail again, or "".

    A fault that no retry mends is certain at once. One that a retry may mend is retried once: if the next attempt gets
    no further, it is certain too.
    """
    if crash is None:
        return ""
    if crash.end_run:
        return "on_stall: stop, so it is not retried"
    if fault.retry is Retry.NEVER:
        what = f"{crash.exception}: the same code would fail again" if crash.exception else fault.why
        return f"{what}, so it is not retried"
    if fault.retry not in (Retry.ONCE, Retry.SMALLER) or _got_further(history, crash):
        return ""
    if crash.exception and history.exception == crash.exception:
        return f"{crash.exception}, as in the attempt before, so it is not retried"
    if history.retry == fault.retry.value:
        return f"{fault.why}, for the second time without getting further, so it is not retried"
    return ""


def _got_further(history: AttemptHistory, crash: RankExit) -> bool:
    """Whether an attempt failed at a later step than the one before, or after long if it reported no steps."""
    before, now = history.crashes[-1] if history.crashes else None, crash_step(crash)
    if before is None or now is None:
        return not crash.exception and now is None
    return now > before


def _crash_loop(history: AttemptHistory, limit: int) -> str:
    latest = history.crashes[-limit:]
    if len(latest) < limit or latest[-1] is None or len(set(latest)) > 1:
        return ""
    where = "before the first step" if latest[-1] == -1 else f"at step {latest[-1]}"
    return f"the last {limit} crashes were all {where}, so it is not retried"
