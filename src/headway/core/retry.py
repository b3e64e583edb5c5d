"""Retry policy and loop: how long to retry and how long to pause in between. Costs nothing to import."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from headway.core.errors import Transient

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Limits and back-off of retries: at most `tries` requests and `total_s`, then Transient is raised.

    Meant for brief faults. A run that must survive a longer outage retries at a higher level.
    """

    tries: int = 6
    total_s: float = 60.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0
    connect_s: float = 5.0
    request_s: float = 60.0  # one request, from its start to the last byte of the response

    def pauses(self) -> Iterator[float]:
        """Yield exponentially growing pauses with jitter, so that ranks that failed together do not retry together."""
        longest = self.first_pause_s
        for _ in range(self.tries - 1):
            yield random.uniform(longest / 2, longest)
            longest = min(longest * 2, self.longest_pause_s)


def retry_transient(call: Callable[[], Result], policy: RetryPolicy) -> Result:
    """Return the call's result, retrying on Transient. Any other exception is raised at once."""
    started = time.monotonic()
    for pause in policy.pauses():
        try:
            return call()
        except Transient:
            if time.monotonic() - started + pause > policy.total_s:
                raise
        time.sleep(pause)
    return call()
