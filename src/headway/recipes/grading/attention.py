"""CBAM (Woo et al., 2018): what to look at, and where; with a rim, because cards wear from the outside in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.errors import BadInput


def rim_mask(height: int, width: int, share: float) -> Tensor:
    """1 on the outermost cells of a grid, 0 inside: `share` of each side, but always one cell, and always an inside."""
    if height < 3 or width < 3:
        raise BadInput(
            f"a grid of {height} × {width} cells has no inside, so no rim",
            fix="choose larger pictures: 32 pixels make a cell, so at least 96",
        )
    mask = torch.ones(height, width)
    down, across = (min(max(1, round(share * size)), (size - 1) // 2) for size in (height, width))
    mask[down : height - down, across : width - across] = 0
    return mask


class Cbam(nn.Module):
    """Weighs channels by what they say everywhere, then places by what all channels say there and whether it is rim."""

    rim: Tensor

    def __init__(self, channels: int, cells: int, *, rim: float, reduction: int = 8) -> None:
        super().__init__()
        between = max(4, channels // reduction)
        self.channel = nn.Sequential(nn.Linear(channels, between), nn.ReLU(), nn.Linear(between, channels))
        kernel = 7 if cells >= 7 else 3
        self.place = nn.Conv2d(3, 1, kernel, padding=kernel // 2)
        self.register_buffer("rim", rim_mask(cells, cells, rim)[None, None], persistent=False)

    def forward(self, grid: Tensor) -> Tensor:
        """The same grid, weighed."""
        said = self.channel(grid.mean(dim=(2, 3))) + self.channel(grid.amax(dim=(2, 3)))
        grid = grid * said.sigmoid()[:, :, None, None]
        rim = self.rim.expand(grid.shape[0], -1, -1, -1)
        seen = torch.cat([grid.mean(dim=1, keepdim=True), grid.amax(dim=1, keepdim=True), rim], dim=1)
        weighed: Tensor = grid * self.place(seen).sigmoid()
        return weighed

    def of_rim(self, grid: Tensor) -> Tensor:
        """The mean of the rim's cells."""
        return (grid * self.rim).sum(dim=(2, 3)) / self.rim.sum()
