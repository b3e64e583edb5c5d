"""Where this rank's time goes: its phase, and the seconds it waits for data, other ranks and checkpoints. No torch.

One per process, so that the code that waits need not be handed one. Cost: two reads of a clock per wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

STEP, BETWEEN = "step", "between epochs"
DATA, RANKS, CHECKPOINT = "data", "ranks", "checkpoint"
Item = TypeVar("Item")


class StepTimes:
    """Seconds by cause since the start, and the current phase. Read by the reporter thread."""

    def __init__(self) -> None:
        self.phase = STEP
        self.waited_s = dict.fromkeys((DATA, RANKS, CHECKPOINT), 0.0)
        self.samples = 0  # rows of this rank's batches

    def begin(self, cause: str) -> float:
        """Return the time at which a wait begins, for `end`."""
        return time.perf_counter()

    def end(self, cause: str, began: float) -> None:
        self.waited_s[cause] += time.perf_counter() - began

    @contextmanager
    def during(self, phase: str, cause: str | None = None) -> Iterator[None]:
        """Report `phase` meanwhile, and count the seconds as waiting for `cause`."""
        before, self.phase, began = self.phase, phase, time.perf_counter()
        try:
            yield
        finally:
            self.phase = before
            if cause is not None:
                self.end(cause, began)

    def timed(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield the batches; count the seconds until each is there as waiting for data."""
        iterator = iter(batches)
        while True:
            began = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self.end(DATA, began)
            self.samples += rows(batch)
            yield batch


def rows(batch: Any) -> int:
    """Return the number of samples in a batch; 0 where that cannot be told."""
    inner = getattr(batch, "batch", batch)
    for _ in range(4):
        shape = getattr(inner, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else 0
        if isinstance(inner, dict) and inner:
            inner = next(iter(inner.values()))
        elif isinstance(inner, list | tuple) and inner:
            inner = inner[0]
        else:
            return 0
    return 0


TIMES = StepTimes()
