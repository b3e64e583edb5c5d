"""An encoder with published weights, as a captioner uses it: frozen until it is told to learn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headway import encoders
from headway.encoders.folding import folded
from headway.recipes.captioning.config import Config


class Published(nn.Module):
    """Bytes (n, 3, side, side) to a grid (n, cells, channels)."""

    def __init__(self, cfg: Config, *, weights: bool = True) -> None:
        super().__init__()
        chosen = cfg.weights if weights and cfg.weights != "none" else None
        self.net = encoders.build(cfg.encoder, weights=chosen)
        self.net.freeze("all")
        self.channels = self.net.channels
        self.cells = (-(-cfg.side // self.net.stride)) ** 2
        self._fast: list[encoders.Encoder] = []  # in a list: not a part of the state

    def forward(self, pictures: Tensor) -> Tensor:
        if self.net.frozen == "all":
            with torch.no_grad():
                return self._flat(self._frozen()(self.net.normalised(pictures)))
        return self._flat(self.net(self.net.normalised(pictures)))

    def learn(self) -> None:
        """From now on its weights learn; the statistics of its batch normalisation stay as published."""
        self._fast.clear()
        self.net.freeze("norms")

    def _load_from_state_dict(self, *given: Any) -> None:
        self._fast.clear()
        super()._load_from_state_dict(*given)

    def _frozen(self) -> encoders.Encoder:
        """The same, twice as fast; made when first needed, when its weights are those it will keep."""
        if not self._fast:
            self._fast.append(folded(self.net))
        return self._fast[0]

    @staticmethod
    def _flat(grid: Tensor) -> Tensor:
        return grid.flatten(2).transpose(1, 2)
