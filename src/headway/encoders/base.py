"""What every encoder promises: a grid of features from a picture, and to hold still where it is frozen."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from headway.encoders.preprocessing import IMAGENET, Preprocessing

Freeze = Literal["nothing", "norms", "all"]


class Encoder(nn.Module):
    """Pictures, normalised, to a grid (n, channels, height / stride, width / stride)."""

    name: str = ""
    preprocessing: Preprocessing = IMAGENET
    channels: int
    stride: int = 32
    first: str  # the layer that sees the pixels

    def __init__(self) -> None:
        super().__init__()
        self.frozen: Freeze = "nothing"

    def normalised(self, pictures: Tensor) -> Tensor:
        """Bytes (n, 3, h, w) as the weights expect them, on the device where they are."""
        to = self.preprocessing
        mean, std = (torch.tensor(of, device=pictures.device).view(1, -1, 1, 1) for of in (to.mean, to.std))
        return ((pictures.float() - mean) / std).contiguous(memory_format=torch.channels_last)

    def freeze(self, what: Freeze = "all") -> None:
        """`all`: nothing learns, and `train()` leaves everything in eval mode. `norms`: weights learn, but batch
        normalisation keeps the statistics it came with: those of small or unlike batches are worse than none."""
        self.frozen = what
        for parameter in self.parameters():
            parameter.requires_grad_(what != "all")
        self.train(self.training)

    def train(self, mode: bool = True) -> Encoder:
        super().train(mode and self.frozen != "all")
        self.training = mode
        if self.frozen != "nothing":
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self
