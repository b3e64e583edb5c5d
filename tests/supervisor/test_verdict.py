"""Try again or not: decided by what the ranks said, and by what earlier attempts have used up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.diagnose.matching import Retry
from headway.rundir.lease import LeaseRecord
from headway.supervisor.processes import RankExit
from headway.supervisor.restart_policy import (
    AttemptHistory,
    AttemptOutcome,
    AttemptResult,
    Restart,
    decide,
    fault_of,
    read_history,
)


def exits(*codes: int) -> tuple[RankExit, ...]:
    return tuple(RankExit(rank=rank, code=code) for rank, code in enumerate(codes))


def crash(code: int = 1, **more: Any) -> RankExit:
    return RankExit(rank=0, code=code, **more)


def outcome(ending: AttemptResult, before: AttemptHistory | None = None, retries: int = 3) -> AttemptOutcome:
    found = decide(ending, before or AttemptHistory(), retries=retries)
    assert isinstance(found, AttemptOutcome)
    return found


@pytest.mark.parametrize(
    ("ending", "state", "code"),
    [
        (AttemptResult(exits=exits(0, 0)), "finished", 0),
        (AttemptResult(exits=exits(0, 0), budget=True), "budget", 0),
        (AttemptResult(exits=exits(143, 143)), "stopped", 143),
        (AttemptResult(exits=exits(0, 143)), "stopped", 143),
        (AttemptResult(exits=exits(143), stop="SIGTERM"), "stopped", 143),
        (AttemptResult(exits=exits(1), stop="SIGTERM"), "stopped", 143),
        (AttemptResult(exits=exits(0), stop="SIGTERM"), "finished", 0),  # it was done before it heard of it
        (AttemptResult(exits=exits(0), stop="SIGTERM", interrupted=True), "stopped", 143),
        (AttemptResult(stop="SIGTERM"), "stopped", 143),
        (AttemptResult(exits=exits(137), overdue=True, killed=(0,)), "budget", 0),
        (AttemptResult(exits=exits(0), lost="node 1 is gone", stop="SIGTERM"), "stopped", 143),
        (AttemptResult(absent="node 2 of 4 never came"), "failed", 1),
        (AttemptResult(exits=exits(2), crash=crash(2)), "failed", 2),
    ],
)
def test_what_the_ranks_say_decides(ending: AttemptResult, state: str, code: int) -> None:
    found = outcome(ending)
    assert (found.state, found.exit_code) == (state, code)


def test_pauses_grow_to_a_minute() -> None:
    ending = AttemptResult(exits=exits(1), crash=crash(step=1, seconds=99))
    found = [decide(ending, AttemptHistory(restarts=used), retries=100) for used in (0, 1, 2, 5, 6, 50)]
    assert [again.pause_s for again in found if isinstance(again, Restart)] == [1, 2, 4, 32, 60, 60]


def test_a_run_of_thousands_of_restarts_still_has_a_pause() -> None:
    found = decide(
        AttemptResult(exits=exits(1), crash=crash(step=1, seconds=99)), AttemptHistory(restarts=9_999), retries=10_000
    )
    assert isinstance(found, Restart)
    assert found.pause_s == 60


def test_memory_that_ran_out_is_answered_by_a_finer_cut_and_costs_no_retry() -> None:
    ending = AttemptResult(exits=exits(1), crash=crash(step=0), micro_batches=2)
    again = decide(ending, AttemptHistory(restarts=3), retries=3)
    assert isinstance(again, Restart)
    assert (again.count, again.pause_s, again.not_counted) == (3, 0.0, True)
    assert "2 micro-batches" in again.reason
    assert AttemptHistory().with_result(ending) == AttemptHistory(
        crashes=(None,), micro_batches=2
    )  # no crash that repeats itself
    assert outcome(ending, AttemptHistory(micro_batches=2), retries=0).state == "failed"  # it was cut as fine already


def test_a_later_supervisor_knows_how_fine_batches_were_cut() -> None:
    events: list[dict[str, Any]] = [
        {"kind": "failed", "cut_to": 4},
        {"kind": "restart", "count": 0, "free": True},
        {"kind": "failed"},
    ]
    assert read_history(events, None) == AttemptHistory(micro_batches=4)


def test_a_node_that_is_gone_counts_as_a_crash() -> None:
    ending = AttemptResult(exits=exits(0), lost="node 1 of 2 is gone")
    assert isinstance(decide(ending, AttemptHistory(), retries=1), Restart)
    assert outcome(ending, AttemptHistory(restarts=1), retries=1).state == "failed"


def test_lack_of_memory_is_named() -> None:
    ending = AttemptResult(exits=exits(137), crash=crash(137, signal="SIGKILL"))
    assert "memory ran out" in outcome(ending, retries=0).reason


@pytest.mark.parametrize(
    ("before", "now", "given_up"),
    [
        ((7, 7), crash(step=7), True),
        ((7, 8), crash(step=7), False),
        ((7,), crash(step=7), False),
        ((9, 7, 7), crash(step=7), True),
        ((-1, -1), crash(seconds=2.0), True),  # thrice at the very start
        ((None, None), crash(seconds=7200.0), False),  # a script that speaks of no steps, after hours
        ((7, 7), None, False),  # this time a node was lost
    ],
)
def test_three_crashes_at_one_place_are_enough(
    before: tuple[int | None, ...], now: RankExit | None, given_up: bool
) -> None:
    ending = AttemptResult(exits=exits(1), crash=now, lost="" if now else "node 1 of 2 is gone")
    found = decide(ending, AttemptHistory(crashes=before), retries=100)
    assert isinstance(found, AttemptOutcome) == given_up


def test_the_past_is_read_from_events() -> None:
    events = [
        {"kind": "attempt", "attempt": 1, "spent_s": 0.0, "held_from_s": 0.0},
        {"kind": "rank_exit", "attempt": 1, "spent_s": 50.0, "first": True, "place": 12},
        {"kind": "rank_exit", "attempt": 1, "spent_s": 50.1},
        {"kind": "restart", "attempt": 1, "spent_s": 51.0},
        {"kind": "attempt", "attempt": 2, "spent_s": 52.0, "held_from_s": 0.0},
    ]
    held = LeaseRecord(attempt=2, holder="x", beat=30)
    assert read_history(events, held) == AttemptHistory(spent_s=300.0, restarts=1, crashes=(12,))
    assert read_history(events, LeaseRecord(attempt=2, holder=None, beat=30)).spent_s == 52.0
    assert read_history([], None) == AttemptHistory()


def test_the_past_has_what_a_lease_carries_of_holders_that_never_said_it() -> None:
    events = [{"kind": "attempt", "attempt": 1, "spent_s": 0.1, "held_from_s": 0.0}]
    freed = LeaseRecord(attempt=1, holder=None, beat=300, spent_s=3000.0)
    assert read_history(events, freed).spent_s == 3000.0
    ours = LeaseRecord(attempt=2, holder="x", spent_s=3000.0)
    assert read_history(events, ours).spent_s == 3000.0
    assert read_history(events, replace(ours, beat=4, renew_s=0.5)).spent_s == 3002.0


def test_attempts_in_place_count_from_when_their_supervisor_took_the_lease() -> None:
    events = [
        {"kind": "attempt", "attempt": 3, "spent_s": 1000.2, "held_from_s": 1000.0},
        {"kind": "restart", "attempt": 3, "spent_s": 1100.0},
        {"kind": "attempt", "attempt": 4, "spent_s": 1101.0, "held_from_s": 1000.0},
    ]
    assert read_history(events, LeaseRecord(attempt=4, holder="x", beat=50, spent_s=1000.0)).spent_s == 1500.0


def test_a_supervisor_that_said_its_last_word_has_spent_what_it_said() -> None:
    events = [
        {"kind": "attempt", "attempt": 1, "spent_s": 0.1, "held_from_s": 0.0},
        {"kind": "ended", "attempt": 1, "spent_s": 2994.5, "state": "stopped"},
    ]
    assert read_history(events, LeaseRecord(attempt=1, holder=None, beat=300)).spent_s == 2994.5
    assert (
        read_history(events, LeaseRecord(attempt=1, holder="x", beat=300)).spent_s == 2994.5
    )  # killed before it gave it up
    assert read_history(events, LeaseRecord(attempt=2, holder="y", beat=1, spent_s=2994.5)).spent_s == 3004.5


def test_ranks_that_only_a_person_may_start_again_are_not_started_again() -> None:
    killed = crash(137, signal="SIGKILL", seconds=100.0)
    found = decide(
        AttemptResult(exits=(killed,), crash=killed),
        AttemptHistory(),
        retries=3,
        no_auto_restart="it would be paid for twice",
    )
    assert isinstance(found, AttemptOutcome)
    assert (found.state, found.exit_code, found.crash) == ("failed", 1, killed)
    assert found.reason.endswith("it would be paid for twice")
    done = AttemptResult(exits=exits(0))
    assert decide(done, AttemptHistory(), retries=3, no_auto_restart="it is over") == decide(
        done, AttemptHistory(), retries=3
    )


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/code/train.py", line 6, in <module>',
    "    half(1)",
)


def raised(error: str, **more: Any) -> AttemptResult:
    kind = error.partition(":")[0]
    end = crash(lines=(*TRACEBACK, error), exception=f"{kind} at train.py:6", **more)
    return AttemptResult(exits=exits(1), crash=end)


def test_the_same_exception_at_the_same_line_is_not_tried_a_third_time() -> None:
    ending = raised("ValueError: no", seconds=7200.0)
    assert isinstance(decide(ending, AttemptHistory(), retries=100), Restart)
    found = outcome(ending, AttemptHistory().with_result(ending), retries=100)
    assert found.not_retried == "ValueError at train.py:6, as in the attempt before, so it is not retried"
    other = AttemptHistory(crashes=(None,), exception="ValueError at train.py:9")
    assert isinstance(decide(ending, other, retries=100), Restart)


def test_a_run_that_got_further_before_the_same_exception_is_tried_again() -> None:
    before = AttemptHistory().with_result(raised("ValueError: no", step=100))
    assert isinstance(decide(raised("ValueError: no", step=900), before, retries=100), Restart)
    assert outcome(raised("ValueError: no", step=100), before, retries=100).not_retried


@pytest.mark.parametrize(
    "error",
    [
        "ConnectionError: reset",
        "urllib.error.URLError: no route",
        "OSError: [Errno 5]",
        "RuntimeError: NCCL error in x",
    ],
)
def test_an_exception_that_a_network_or_a_disk_may_cause_is_tried_again(error: str) -> None:
    ending = raised(error, seconds=7200.0)
    assert isinstance(decide(ending, AttemptHistory().with_result(ending), retries=100), Restart)


@pytest.mark.parametrize(
    "error", ["ModuleNotFoundError: No module named 'x'", "SyntaxError: invalid", "ImportError: y"]
)
def test_an_exception_that_is_certain_to_come_again_is_not_tried_again(error: str) -> None:
    assert outcome(raised(error), retries=100).not_retried


@pytest.mark.parametrize(
    ("lines", "retry"),
    [
        (["urllib.error.HTTPError: HTTP Error 429: Too Many Requests"], Retry.WAIT),
        ([*TRACEBACK, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"], Retry.SMALLER),
        (["train.py: error: unrecognized arguments: --epoch 10"], Retry.NEVER),
        ([*TRACEBACK, "PermissionError: [Errno 13] Permission denied: '/data'"], Retry.NEVER),
        (["quota exceeded for the logger, going on", *TRACEBACK, "ZeroDivisionError: division by zero"], Retry.ONCE),
        (["quota exceeded for the logger, going on", *["step"] * 20, "killed"], Retry.ONCE),
        (['raise ValueError("HTTP Error 429")', *TRACEBACK, "ConnectionError: reset"], Retry.RETRY),
    ],
)
def test_the_end_of_the_output_decides_the_class_of_a_failure(lines: list[str], retry: Retry) -> None:
    assert fault_of(crash(lines=tuple(lines))).retry is retry


def test_what_only_time_mends_is_retried_after_longer_pauses() -> None:
    ending = AttemptResult(exits=exits(1), crash=crash(lines=("HTTP Error 429: Too Many Requests",), seconds=99))
    found = [decide(ending, AttemptHistory(restarts=used), retries=100) for used in (0, 1, 2, 9)]
    assert [again.pause_s for again in found if isinstance(again, Restart)] == [30, 60, 120, 600]


def test_memory_that_runs_out_twice_at_one_place_is_not_tried_a_third_time() -> None:
    ending = raised("OutOfMemoryError: CUDA out of memory", step=4)
    again = decide(ending, AttemptHistory(), retries=100)
    assert isinstance(again, Restart)
    assert outcome(ending, AttemptHistory().with_result(ending, again.fault), retries=100).not_retried


def test_a_later_supervisor_knows_the_class_of_the_last_failure() -> None:
    events: list[dict[str, Any]] = [
        {"kind": "rank_exit", "first": True, "place": 7},
        {"kind": "fault", "class": "retry once"},
    ]
    before = read_history(events, None)
    assert outcome(AttemptResult(exits=exits(1), crash=crash(step=7)), before, retries=100).not_retried
    assert isinstance(decide(AttemptResult(exits=exits(1), crash=crash(step=8)), before, retries=100), Restart)


def test_a_command_that_does_not_exist_is_not_tried_again() -> None:
    assert outcome(AttemptResult(exits=exits(127), crash=crash(127)), retries=100).not_retried


def test_a_rank_that_headway_killed_is_not_taken_for_a_lack_of_memory() -> None:
    assert str(crash(137, signal="SIGKILL", killed_by="headway")) == "rank 0 did not exit in time, so Headway killed it"
    assert "no lack of memory" in str(crash(137, signal="SIGKILL", killed_by="another process"))
