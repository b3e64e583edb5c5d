"""Six input channels from a picture: CLAHE-L, a, b, |Sobel x|, |Sobel y|, |Laplacian|, each scaled to about -1 … 1.

L, a, b are the Lab colours; CLAHE equalises the contrast of L. Runs on whole batches, on their own device, in
operations that ONNX has. CLAHE and gradients match OpenCV exactly; Lab is within two levels of 255 of it.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

COUNT: Final = 6
_TILES: Final = 8  # equalised in 8 × 8 tiles, interpolated between their centres
_LEVELS: Final = 256
_LIMIT: Final = 2.0  # clip limit: a histogram bin holds at most this many times the mean
_TO_XYZ: Final = (
    (0.412453 / 0.950456, 0.357580 / 0.950456, 0.180423 / 0.950456),  # divided by the D65 white point
    (0.212671, 0.715160, 0.072169),
    (0.019334 / 1.088754, 0.119193 / 1.088754, 0.950227 / 1.088754),
)


def six_channels(pictures: Tensor) -> Tensor:
    """Convert uint8 (n, 3, height, width) to float (n, 6, height, width). Sides must be multiples of 8."""
    lab = to_lab(pictures)
    light = clahe(lab[:, :1].round())
    slopes = _slopes(light)
    return torch.cat([light / 127.5 - 1, (lab[:, 1:] - 128) / 64, slopes], dim=1)


def to_lab(pictures: Tensor) -> Tensor:
    """Convert RGB to Lab as OpenCV scales it to 8 bits: 0 … 255, with a and b centred at 128. Not rounded."""
    rgb = pictures.float() / 255
    linear = torch.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    red, green, blue = linear[:, :1], linear[:, 1:2], linear[:, 2:]
    # Sums of planes instead of a convolution, which takes five times as long with so few channels.
    xyz = torch.cat([r * red + g * green + b * blue for r, g, b in _TO_XYZ], dim=1)
    root = torch.where(xyz > 0.008856, xyz.clamp_min(1e-6) ** (1 / 3), 7.787 * xyz + 16 / 116)
    x, y, z = root[:, :1], root[:, 1:2], root[:, 2:]
    return torch.cat([(116 * y - 16) * 2.55, 500 * (x - y) + 128, 200 * (y - z) + 128], dim=1)


def clahe(light: Tensor) -> Tensor:
    """Apply contrast-limited adaptive histogram equalisation to levels 0 … 255 of shape (n, 1, height, width)."""
    count, _, height, width = light.shape
    assert height % _TILES == 0 == width % _TILES, "the config must have checked the picture's side"
    level = light.clamp(0, _LEVELS - 1).long().view(count, height, width)
    rows, columns = (_tile(size, light.device) for size in (height, width))
    tile = rows[:, None] * _TILES + columns[None, :]
    table = _tables(level, tile, height * width // _TILES**2)
    return _between(level, table, height, width).view(count, 1, height, width)


def _tile(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device) * _TILES // size


def _tables(level: Tensor, tile: Tensor, area: int) -> Tensor:
    """Return the lookup table of each tile: (n, tiles × levels)."""
    count, tiles = level.shape[0], _TILES**2
    place = (tile[None] * _LEVELS + level).view(count, -1)
    seen = torch.zeros(count, tiles * _LEVELS, device=level.device)
    seen = seen.scatter_add(1, place, torch.ones_like(place, dtype=seen.dtype)).view(count, tiles, _LEVELS)
    most = float(max(1, int(_LIMIT * area / _LEVELS)))
    excess = (seen - most).clamp_min(0).sum(dim=2, keepdim=True)
    even = torch.floor(excess / _LEVELS)
    seen = seen.clamp_max(most) + even + _leftovers(excess - even * _LEVELS)
    table = (seen.cumsum(dim=2) * ((_LEVELS - 1) / area)).round().clamp(0, _LEVELS - 1)
    return table.view(count, -1)


def _leftovers(rest: Tensor) -> Tensor:
    """Distribute the remainder of the clipped excess one by one to every n-th bin, as OpenCV does."""
    step = torch.floor(_LEVELS / rest.clamp_min(1)).clamp_min(1)
    number = torch.arange(_LEVELS, device=rest.device, dtype=rest.dtype)
    turn = torch.floor(number / step)
    return ((number - turn * step == 0) & (turn < rest)).to(rest.dtype)


def _between(level: Tensor, table: Tensor, height: int, width: int) -> Tensor:
    """Interpolate each pixel's new level bilinearly between the four nearest tiles."""
    (top, bottom, down), (left, right, along) = (_neighbours(size, level.device) for size in (height, width))
    down, along = down[:, None], along[None, :]
    flat = level.view(level.shape[0], -1)

    def at(row: Tensor, column: Tensor) -> Tensor:
        place = ((row[:, None] * _TILES + column[None, :]) * _LEVELS).view(1, -1) + flat
        return table.gather(1, place).view(level.shape[0], height, width)

    upper = at(top, left) * (1 - along) + at(top, right) * along
    lower = at(bottom, left) * (1 - along) + at(bottom, right) * along
    return (upper * (1 - down) + lower * down).round()


def _neighbours(size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each row or column, the tiles before and after it and the interpolation weight of the second."""
    place = torch.arange(size, device=device) * (_TILES / size) - 0.5
    before = torch.floor(place)
    share = place - before
    return before.clamp(0, _TILES - 1).long(), (before + 1).clamp(0, _TILES - 1).long(), share


def _slopes(light: Tensor) -> Tensor:
    """Return |Sobel x|, |Sobel y| and |Laplacian|, with reflected borders."""
    padded = functional.pad(light / 255, (1, 1, 1, 1), mode="reflect")
    up, middle, down = padded[:, :, :-2], padded[:, :, 1:-1], padded[:, :, 2:]
    columns, rows = up + 2 * middle + down, down - up
    across = columns[..., 2:] - columns[..., :-2]
    along = rows[..., :-2] + 2 * rows[..., 1:-1] + rows[..., 2:]
    curved = (up + down)[..., 1:-1] + middle[..., :-2] + middle[..., 2:] - 4 * middle[..., 1:-1]
    return torch.cat([across, along, curved], dim=1).abs()
