"""Several views of a picture and one caption: every word is judged by all of them together.

Views stand in a dimension after that of the pictures: (n, views, …). Their log-probabilities are averaged, so what one
view mistakes for something else is said only where the others do not object.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.decoders import Decoder, State


class Together(NamedTuple):
    """The state of each view."""

    states: tuple[State, ...]

    @property
    def looks(self) -> Tensor | None:
        """Of the first view, which is the picture as it is."""
        return self.states[0].looks

    def of(self, rows: Tensor) -> Together:
        return Together(tuple(state.of(rows) for state in self.states))


class ByAllViews:
    """A decoder that is asked as one is that knows of one view alone."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def start(self, grids: Tensor, rows: int) -> Together:
        return Together(tuple(self._decoder.start(grid, rows=rows) for grid in grids.unbind(dim=1)))

    def __call__(self, words: Tensor, state: Together) -> tuple[Tensor, Together]:
        scores, after = zip(*(self._decoder(words, of_view) for of_view in state.states), strict=True)
        return torch.stack([view.log_softmax(dim=2) for view in scores]).mean(dim=0), Together(after)


def asked(decoder: Decoder, grid: Tensor) -> Any:
    """Who to ask about `grid` (pictures, cells, channels), or (pictures, views, cells, channels)."""
    return decoder if grid.dim() == 3 else ByAllViews(decoder)


def views(cfg: Config, pictures: Tensor) -> Tensor:
    """Pictures (n, 3, side, side) as they are to be judged; of both sides, (n, 2, 3, side, side)."""
    return torch.stack([pictures, pictures.flip(-1)], dim=1) if cfg.both_sides else pictures
