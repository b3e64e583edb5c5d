"""The training position, the best scores and the checkpoint schedule. Plain values, without torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from headway.spec.model import Cadence, Checkpoint

DEFAULT_S, SPOT_S = 600.0, 120.0


@dataclass(slots=True)
class TrainState:
    """The position of a run: `step` counts the batches that updated weights, `updates` their optimizer updates, `batch`
    global batches in this epoch, `stage` calls of run.epochs."""

    stage: int = 0
    epoch: int = 0  # within the stage
    passed: int = 0  # epochs of all stages, the key of the data's order
    batch: int = 0
    step: int = 0
    weight: float = 0.0  # total weight of the newest multi-rank step, the divisor of the next; 0 before the first
    updates: int = -1  # key of the model's randomness. Older checkpoints lack it: their `step` counted updates

    def __post_init__(self) -> None:
        if self.updates < 0:
            self.updates = self.step

    def count_update(self, *, same_step: bool) -> None:
        """Count an optimizer update, and a step unless an earlier update of the same batch has counted it."""
        self.updates += 1
        if not same_step:
            self.step += 1

    def as_dict(self) -> dict[str, float]:
        """Return the fields; without `updates` where it equals `step`, as in checkpoints of earlier versions."""
        fields = asdict(self)
        if self.updates == self.step:
            del fields["updates"]
        return fields


@dataclass(slots=True)
class Scores:
    """Score history per best pointer, for "best" and early stopping."""

    best: dict[str, float] = field(default_factory=dict)  # per pointer name, higher is better
    best_step: dict[str, int] = field(default_factory=dict)
    since_best: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def record(self, name: str, value: float, step: int) -> bool:
        """Record a score; return True if it is the best so far under that name. NaN is never better."""
        known = self.best.get(name)
        if value == value and (known is None or value > known):
            self.best[name], self.best_step[name], self.since_best[name] = value, step, 0
            return True
        self.since_best[name] = self.since_best.get(name, 0) + 1
        return False


class CheckpointSchedule:
    """Decides when checkpoints are due, by the job's checkpoint section."""

    def __init__(self, rule: Checkpoint, *, spot: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = rule.every or Cadence(seconds=SPOT_S if spot else DEFAULT_S)
        self._keep = rule.keep_every
        self._clock = clock
        self._last = self._last_kept = clock()

    def set_keep_every(self, every: Cadence) -> None:
        self._keep = every

    def due_after_step(self, step: int) -> bool:
        every = self._every
        if every.seconds is not None:
            return self._clock() - self._last >= every.seconds
        return every.steps is not None and step % every.steps == 0

    def due_after_epoch(self, passed: int) -> bool:
        return self._every.epochs is not None and passed % self._every.epochs == 0

    def record_checkpoint(self) -> None:
        self._last = self._clock()

    def name_to_keep(self, step: int, passed: int, *, epoch_ended: bool) -> str | None:
        """Return the name under which to keep the current checkpoint permanently, or None."""
        keep = self._keep
        if keep is None:
            return None
        if keep.epochs is not None and epoch_ended and passed % keep.epochs == 0:
            return f"epoch_{passed}"
        if keep.steps is not None and step % keep.steps == 0:
            return f"step_{step}"
        if keep.seconds is not None and self._clock() - self._last_kept >= keep.seconds:
            self._last_kept = self._clock()
            return f"step_{step}"
        return None
