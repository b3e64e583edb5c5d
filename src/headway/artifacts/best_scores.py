"""Validation scores of the best weights so far, as checkpoints and events hold them. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_BESIDE: Final = ("attempt", "kind", "rank", "spent_s", "step", "time")  # fields of every event, whatever its kind


def scores_in(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics in a run's `score` event."""
    return {name: float(value) for name, value in event.items() if name not in _BESIDE}


class BestScores(dict[str, float]):
    """Validation scores of the best weights so far, saved in checkpoints. Give it to `run.restore` and the bundle."""

    def state_dict(self) -> dict[str, float]:
        return dict(self)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.clear()
        self.update(state)
