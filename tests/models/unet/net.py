"""A U-Net of two levels, from a picture to a mask, and pictures of discs to learn from."""

import torch
from torch import nn


def discs(count, seed, side=32):
    """Pictures with a bright disc on noise, and the masks of the discs."""
    made = torch.Generator().manual_seed(seed)
    middle = torch.rand(count, 2, 1, 1, generator=made) * 16 + 8
    radius = torch.rand(count, 1, 1, generator=made) * 5 + 3
    at = torch.arange(side).float()
    masks = ((at[:, None] - middle[:, 0]) ** 2 + (at - middle[:, 1]) ** 2 < radius**2).float()
    noise = torch.rand(count, 3, side, side, generator=made) * 0.5
    return (noise + 0.5 * masks[:, None]).mul(255).byte(), masks


def block(given, made):
    return nn.Sequential(
        nn.Conv2d(given, made, 3, padding=1), nn.ReLU(), nn.Conv2d(made, made, 3, padding=1), nn.ReLU()
    )


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down, self.middle, self.up = block(3, width), block(width, 2 * width), block(3 * width, width)
        self.pool, self.wider, self.last = nn.MaxPool2d(2), nn.Upsample(scale_factor=2), nn.Conv2d(width, 1, 1)

    def forward(self, x):
        fine = self.down(x.float() / 255)
        coarse = self.wider(self.middle(self.pool(fine)))
        return self.last(self.up(torch.cat([fine, coarse], 1)))[:, 0].sigmoid()
