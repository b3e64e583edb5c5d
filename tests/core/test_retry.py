"""Retrying and polling: how often, how long, and what ends it."""

from __future__ import annotations

import threading

import pytest

from headway.core.errors import Conflict, StoreError, Transient
from headway.core.retry import Backoff, RetryPolicy, poll, poll_while, retry, wait_until

BRIEF = RetryPolicy(tries=4, first_pause_s=0.001, longest_pause_s=0.002)


class Call:
    def __init__(self, failures: int, error: type[Exception] = Transient) -> None:
        self.failures, self.error, self.count = failures, error, 0

    def __call__(self) -> str:
        self.count += 1
        if self.count <= self.failures:
            raise self.error("busy")
        return "done"


def test_a_call_is_repeated_until_it_works() -> None:
    call = Call(failures=3)
    assert retry(call, BRIEF) == "done"
    assert call.count == 4


def test_tries_end() -> None:
    call = Call(failures=100)
    with pytest.raises(Transient):
        retry(call, BRIEF)
    assert call.count == BRIEF.tries


def test_time_ends_tries_too() -> None:
    call = Call(failures=100)
    with pytest.raises(Transient):
        retry(call, RetryPolicy(tries=100, total_s=0.0))
    assert call.count == 1


def test_only_what_may_pass_is_repeated() -> None:
    call = Call(failures=1, error=Conflict)
    with pytest.raises(Conflict):
        retry(call, BRIEF)
    assert call.count == 1


def test_pauses_grow_differ_and_are_bounded() -> None:
    patience = RetryPolicy(tries=12, first_pause_s=1, longest_pause_s=30)
    one, other = list(patience.pauses()), list(patience.pauses())
    assert len(one) == 11
    assert one != other
    assert max(one) <= 30
    assert all(
        low / 2 <= pause <= low for pause, low in zip(one, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30], strict=True)
    )


def test_errors_to_retry_and_errors_to_raise_are_chosen_by_type() -> None:
    call = Call(failures=2, error=Conflict)
    assert retry(call, BRIEF, on=StoreError) == "done"
    call = Call(failures=2, error=Conflict)
    with pytest.raises(Conflict):
        retry(call, BRIEF, on=StoreError, unless=(Conflict,))
    assert call.count == 1


def test_a_failure_is_reported_before_each_pause_and_the_report_may_give_up() -> None:
    seen: list[str] = []
    assert retry(Call(failures=2), BRIEF, on_failure=lambda error: seen.append(str(error))) == "done"
    assert seen == ["busy", "busy"]

    def give_up(error: Exception) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retry(Call(failures=2), BRIEF, on_failure=give_up)


def test_backoff_grows_to_its_longest_and_starts_again_after_a_reset() -> None:
    backoff = Backoff(1.0, 4.0, factor=2.0)
    assert [backoff.next_s() for _ in range(4)] == [1.0, 2.0, 4.0, 4.0]
    backoff.reset()
    assert backoff.next_s() == 1.0
    assert Backoff(5.0, 0.5).next_s() == 0.5


def test_polling_looks_at_once_and_a_last_time_at_the_deadline() -> None:
    slept: list[float] = []
    assert list(poll(Backoff(1.0, 8.0), within_s=10.0, sleep=slept.append)) == pytest.approx([0, 1, 3, 7, 10], abs=0.1)
    assert slept == pytest.approx([1, 2, 4, 3], abs=0.1)
    assert list(poll(1.0, within_s=0.0, sleep=slept.append)) == [0.0]


def test_an_event_ends_polling() -> None:
    over = threading.Event()
    looks = 0
    for _ in poll(60.0, sleep=over.wait):
        looks += 1
        over.set()
    assert looks == 1


def test_waiting_says_whether_it_was_worth_it() -> None:
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), 0.001)
    assert not wait_until(lambda: False, 0.001, within_s=0.01)


def test_polling_while_something_is_left_yields_it() -> None:
    left = [3, 2, 1, 0]
    assert [found for found, _ in poll_while(lambda: left.pop(0), 0.001)] == [3, 2, 1]
