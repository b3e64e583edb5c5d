"""Admit requests by their cost: the bytes and pixels of all requests that are held at the same time.

A client has one request at a time per connection, so the limits of a request are those of a connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headway.artifacts.predictor import PredictionError


@dataclass(slots=True)
class Budget:
    """An amount of which requests take shares. None may take more than half of what is left.

    So a few large requests cannot use it up: small ones are still admitted when large ones are refused.
    """

    amount: int
    used: int = 0

    @contextmanager
    def share(self, refusal: PredictionError) -> Iterator[Share]:
        """Open a share that grows with `add` and is returned at the end. `refusal` is raised if it cannot grow."""
        share = Share(self, refusal)
        try:
            yield share
        finally:
            self.used -= share.taken


@dataclass(slots=True)
class Share:
    budget: Budget
    refusal: PredictionError
    taken: int = 0

    def add(self, more: int) -> None:
        others = self.budget.used - self.taken
        if more > 0 and (self.taken + more) * 2 > self.budget.amount - others:
            raise self.refusal
        self.taken += more
        self.budget.used += more


@dataclass(slots=True)
class Overload:
    """Since when requests are refused because the queue is full."""

    since: float | None = None
    seconds: float = field(default=3.0)  # for which it must be full

    def note(self, *, refused: bool) -> None:
        if not refused:
            self.since = None
        elif self.since is None:
            self.since = time.monotonic()

    @property
    def lasting(self) -> bool:
        return self.since is not None and time.monotonic() - self.since >= self.seconds
