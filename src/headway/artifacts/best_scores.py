"""The validation scores of the best weights so far, kept in every checkpoint beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_BESIDE: Final = ("attempt", "kind", "rank", "spent_s", "step", "time")  # what every event notes, whatever it is about


def scores_in(event: Mapping[str, Any]) -> dict[str, float]:
    """What a run's `score` event measured."""
    return {name: float(value) for name, value in event.items() if name not in _BESIDE}


class BestScores(dict[str, float]):
    """Give it to `run.restore`, and to the bundle."""

    def state_dict(self) -> dict[str, float]:
        return dict(self)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.clear()
        self.update(state)
