"""The small encoder for drawn scenes, trained from nothing together with the decoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.recipes.captioning.config import Config


class Cnn(nn.Module):
    """Form and colour, seen apart: a few convolutions over the grey picture, and colours averaged over small patches.

    Of both, the strongest answer in each cell of a 4 by 4 grid is kept. A form detector that never meets a colour works
    on every colour: with one stack for both, most of the combinations that training lacked were named wrongly.
    Group normalisation looks at one picture at a time: nothing differs between training and use, or between ranks.
    """

    cells = 16

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        width = cfg.width
        self.channels = 5 * width
        self.form = nn.Sequential(
            *_convolution(1, width, 5, stride=2),
            *_convolution(width, 2 * width, 3, stride=2),
            *_convolution(2 * width, 3 * width, 3),
            nn.MaxPool2d(2),
            *_convolution(3 * width, 4 * width, 3),
            nn.AdaptiveMaxPool2d(4),
        )
        self.colour = nn.Sequential(
            nn.AvgPool2d(4),
            nn.Conv2d(3, 2 * width, 1),
            nn.GELU(),
            nn.Conv2d(2 * width, width, 1),
            nn.GELU(),
            nn.AdaptiveMaxPool2d(4),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        pixels = (pictures.float() - 128) / 64
        grid = torch.cat([self.form(pixels.mean(dim=1, keepdim=True)), self.colour(pixels)], dim=1)
        return grid.flatten(2).transpose(1, 2)


def _convolution(channels: int, out: int, size: int, *, stride: int = 1) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(channels, out, size, stride=stride, padding=size // 2, bias=False)
    return convolution, nn.GroupNorm(4 if out % 4 == 0 else 1, out), nn.GELU()
