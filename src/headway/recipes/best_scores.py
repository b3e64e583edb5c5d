"""The validation scores of the best weights so far, kept in every checkpoint beside the weights."""

from __future__ import annotations

from collections.abc import Mapping


class BestScores(dict[str, float]):
    """Give it to `run.restore`, and to the bundle."""

    def state_dict(self) -> dict[str, float]:
        return dict(self)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.clear()
        self.update(state)
