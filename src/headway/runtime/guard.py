"""A loss that is not a number: stop before it reaches the weights, or leave the batch out and go on.

With `nan: skip` in the config, buffers are copied before each step, because a forward pass has already put the bad
batch into batch normalisation's statistics by the time the loss is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headway.errors import BadInput, RunFailed

LONGEST = 10  # bad batches in a row: then it is not the data


class NanGuard:
    """Decides what a bad loss means."""

    def __init__(self, policy: str, modules: Sequence[nn.Module]) -> None:
        if policy not in ("stop", "skip"):
            raise BadInput(f"nan: {policy} is not known", fix="choose stop or skip")
        self.skips = policy == "skip"
        self._modules = modules
        self._copies: list[Tensor] = []
        self._in_a_row = 0

    def before_step(self) -> None:
        """Remember what a bad forward pass would spoil."""
        if not self.skips:
            return
        buffers = self._buffers()
        if len(self._copies) != len(buffers):
            self._copies = [torch.empty_like(buffer) for buffer in buffers]
        if buffers:
            torch._foreach_copy_(self._copies, buffers)

    def good(self) -> None:
        self._in_a_row = 0

    def bad(self, where: str, what: str) -> None:
        """Undo and go on, or raise."""
        self._in_a_row += 1
        if not self.skips or self._in_a_row > LONGEST:
            many = f", {self._in_a_row} batches in a row" if self.skips else ""
            raise RunFailed(
                f"the loss is not finite{many}: {what}",
                where=where,
                fix="lower the learning rate, clip gradients (clip=1.0), or leave such batches out (nan: skip)",
            )
        if self._copies:
            torch._foreach_copy_(self._buffers(), self._copies)

    def _buffers(self) -> list[Tensor]:
        return [buffer for module in self._modules for buffer in module.buffers()]
