"""A dropout layer that is cheap on CPUs: one random byte per element, where torch draws a full random number.

On a CPU, nn.Dropout takes a fifth of a small Transformer's step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_LOWEST = -(2**63)


class Dropout(nn.Module):
    """Like nn.Dropout, with the probability rounded to 1/256. Uses torch's default generator."""

    def __init__(self, chance: float = 0.5) -> None:
        super().__init__()
        self._dropped = round(256 * chance)

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self._dropped):
            return x
        if x.device.type != "cpu":
            return functional.dropout(x, self._dropped / 256)
        return x * _mask(x, self._dropped)

    def extra_repr(self) -> str:
        return f"{self._dropped / 256:.3f}"


def _mask(x: Tensor, dropped: int) -> Tensor:
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(_LOWEST, None)
    kept = words.view(torch.uint8)[: x.numel()] >= dropped
    return kept.to(x.dtype).mul_(256 / (256 - dropped)).view(x.shape)
