"""How long is tried, and how often."""

from __future__ import annotations

import pytest

from headway.core.errors import Conflict, Transient
from headway.core.retry import RetryPolicy, retry_transient

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
    assert retry_transient(call, BRIEF) == "done"
    assert call.count == 4


def test_tries_end() -> None:
    call = Call(failures=100)
    with pytest.raises(Transient):
        retry_transient(call, BRIEF)
    assert call.count == BRIEF.tries


def test_time_ends_tries_too() -> None:
    call = Call(failures=100)
    with pytest.raises(Transient):
        retry_transient(call, RetryPolicy(tries=100, total_s=0.0))
    assert call.count == 1


def test_only_what_may_pass_is_repeated() -> None:
    call = Call(failures=1, error=Conflict)
    with pytest.raises(Conflict):
        retry_transient(call, BRIEF)
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
