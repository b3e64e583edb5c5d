"""How long to try before giving up, and the pauses in between. Costs nothing to import."""

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
    """Tries end after `tries` requests or `total_s`, whichever is first; then Transient is raised.

    A run that must outlast a longer outage waits on its own account: here is only what a hiccup takes.
    """

    tries: int = 6
    total_s: float = 60.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0
    connect_s: float = 5.0
    request_s: float = 60.0  # one request from its start to the last byte of its answer

    def pauses(self) -> Iterator[float]:
        """Growing, and each drawn at random, so that a gang that failed together does not come back together."""
        longest = self.first_pause_s
        for _ in range(self.tries - 1):
            yield random.uniform(longest / 2, longest)
            longest = min(longest * 2, self.longest_pause_s)


def keep_trying(call: Callable[[], Result], patience: RetryPolicy) -> Result:
    """The call's result. What it raises is raised at once, except Transient: that is tried again."""
    started = time.monotonic()
    for pause in patience.pauses():
        try:
            return call()
        except Transient:
            if time.monotonic() - started + pause > patience.total_s:
                raise
        time.sleep(pause)
    return call()
