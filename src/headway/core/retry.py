"""Retrying and polling: `retry`, `poll`, `wait_until` and `Backoff`. Costs nothing to import.

Two kinds of threads retry in loops of their own, because they also react to a wake-up or to new records meanwhile:
those of `supervisor/background.py` (with `Backoff`) and the tracker clients of `training/metrics/trackers/base.py`.
Programs of a single file that are sent to other machines (the ssh agent, Vertex AI's boot script, the process reaper)
have their own, because nothing of Headway is installed there.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from headway.core.errors import Transient

Result = TypeVar("Result")
Sleep = Callable[[float], object]  # time.sleep, or the wait of a threading.Event, or one that raises to interrupt
NO_LIMIT = sys.maxsize  # tries of a policy that is limited by time, or not at all


@dataclass(slots=True)
class Backoff:
    """Pauses that grow by `factor` from `first_s` to `longest_s`, and start again after `reset`.

    With `jitter`, each is drawn from its upper half, so that ranks that failed together do not retry together.
    """

    first_s: float
    longest_s: float
    factor: float = 2.0
    jitter: bool = False
    _next_s: float = field(default=0.0, init=False)

    def next_s(self) -> float:
        """Return the next pause in seconds."""
        pause = self._next_s or min(self.first_s, self.longest_s)
        self._next_s = min(pause * self.factor, self.longest_s)
        return _draw(pause / 2, pause) if self.jitter else pause

    def reset(self) -> None:
        self._next_s = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Limits and back-off of retries: at most `tries` calls and `total_s`, then the last error is raised.

    The defaults are meant for brief faults. A run that must survive a longer outage retries at a higher level.
    """

    tries: int = 6
    total_s: float = 60.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0
    factor: float = 2.0
    connect_s: float = 5.0
    request_s: float = 60.0  # one request, from its start to the last byte of the response

    def pauses(self) -> Iterator[float]:
        """Yield the pauses between tries: exponentially growing, with jitter."""
        backoff = Backoff(self.first_pause_s, self.longest_pause_s, self.factor, jitter=True)
        return islice(iter(backoff.next_s, None), self.tries - 1)


ONCE = RetryPolicy(tries=1)


def retry(
    call: Callable[[], Result],
    policy: RetryPolicy,
    *,
    on: type[Exception] | tuple[type[Exception], ...] = Transient,
    unless: tuple[type[Exception], ...] = (),
    on_failure: Callable[[Exception], None] | None = None,
    sleep: Sleep | None = None,
) -> Result:
    """Return the call's result, retrying after `on`. Any other exception, and `unless`, is raised at once.

    `on_failure` is called before each pause and may raise to give up. `sleep` may raise too.
    """
    timer = _Timer(sleep)
    pauses = policy.pauses()
    while True:
        try:
            return call()
        except unless:
            raise
        except on as error:
            pause = next(pauses, None)
            if pause is None or timer.waited_s() + pause > policy.total_s:
                raise
            if on_failure is not None:
                on_failure(error)
        timer.sleep(pause)


def poll(
    interval: Backoff | float,
    *,
    within_s: float = math.inf,
    sleep: Sleep | None = None,
    clock: Callable[[], float] | None = None,
) -> Iterator[float]:
    """Yield the seconds waited: 0.0 now, then after every pause, and a last time when `within_s` have passed.

    Put the check into the loop's body, and the timeout into its `else`. Ends early if `sleep` returns True, as the
    `wait` of a threading.Event does.

    Example:
        >>> for waited_s in poll(0.01, within_s=5.0):
        ...     if waited_s > 0.02:
        ...         break
        ... else:
        ...     raise TimeoutError
    """
    timer = _Timer(sleep, clock)
    backoff = interval if isinstance(interval, Backoff) else Backoff(interval, interval)
    waited_s = 0.0
    while True:
        yield waited_s
        left_s = within_s - timer.waited_s()
        if left_s <= 0 or timer.sleep(min(backoff.next_s(), left_s)) is True:
            return
        waited_s = timer.waited_s()


def wait_until(
    done: Callable[[], object], interval: Backoff | float, *, within_s: float = math.inf, sleep: Sleep | None = None
) -> bool:
    """Poll until `done` returns a true value; return whether it has within the time."""
    return any(done() for _ in poll(interval, within_s=within_s, sleep=sleep))


def poll_while(
    look: Callable[[], Result], interval: Backoff | float, *, within_s: float = math.inf, sleep: Sleep | None = None
) -> Iterator[tuple[Result, float]]:
    """Poll; yield what `look` returns and the seconds waited, until it returns nothing or the time is up."""
    for waited_s in poll(interval, within_s=within_s, sleep=sleep):
        found = look()
        if not found:
            return
        yield found, waited_s


class _Timer:
    """Measures the time since it was made, by the clock and by its pauses: a fake `sleep` advances it too."""

    def __init__(self, sleep: Sleep | None, clock: Callable[[], float] | None = None) -> None:
        self._sleep, self._clock = sleep or time.sleep, clock or time.monotonic
        self._began, self._slept_s = self._clock(), 0.0

    def waited_s(self) -> float:
        return max(self._clock() - self._began, self._slept_s)

    def sleep(self, seconds: float) -> object:
        self._slept_s += seconds
        return self._sleep(seconds)


def _draw(low: float, high: float) -> float:
    import random  # not needed by programs that never retry

    return random.uniform(low, high)
