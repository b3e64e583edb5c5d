"""Image augmentation: whole-batch transforms on any device, and cropping while a batch is filled.

One resampling does crop, rotation and mirror, then colour follows. The random parameters depend on (seed, epoch,
position in the epoch) alone and travel with the batch as a small table, so a picture is augmented identically for any
world size and after any restart. Evaluation has no augmentation.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput
from headway.data.loading.sampler import uniforms

if TYPE_CHECKING:
    from torch import Tensor


_STREAM, _NUMBERS = 12, 10
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, expected by most pretrained weights
_GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True, kw_only=True, slots=True)
class Augment:
    """Ranges of the random parameters. The defaults change nothing."""

    scale: tuple[float, float] = (1.0, 1.0)  # area share kept by a random resized crop; (0.08, 1) is usual
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # aspect ratio of the crop, width / height
    size: int | None = None  # side of the result; default: same as the batch
    mirror: float = 0.0  # probability of a horizontal flip
    degrees: float = 0.0  # maximum rotation either way; uncovered pixels repeat the edge
    brightness: float = 0.0  # brightness, contrast and saturation: factor 1 ± this amount
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0  # maximum shift either way, as a share of the colour wheel (at most 0.5)

    def __post_init__(self) -> None:
        low, high = self.scale
        if not 0 < low <= high <= 1 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise BadInput(
                f"scale {self.scale} and ratio {self.ratio} are not valid for a crop", fix="for example scale (0.08, 1)"
            )
        if not 0 <= self.mirror <= 1 or not 0 <= self.hue <= 0.5 or self.degrees < 0:
            raise BadInput("mirror must be in 0 … 1, hue in 0 … 0.5, degrees above 0", fix="correct the augmentation")
        if any(not 0 <= amount <= 1 for amount in (self.brightness, self.contrast, self.saturation)):
            raise BadInput("brightness, contrast and saturation must be in 0 … 1", fix="correct the augmentation")

    def draw(self, seed: int, epoch: int, places: NDArray[np.int64]) -> Tensor:
        """Draw the parameters for `apply`, one row per picture."""
        import torch

        u = uniforms(seed, epoch, places, _NUMBERS, stream=_STREAM)
        width, height, x, y = self._windows(u)
        angle = np.deg2rad(self.degrees) * (2 * u[:, 4] - 1)
        mirror = np.where(u[:, 5] < self.mirror, -1.0, 1.0)
        factors = [1 + amount * (2 * u[:, 6 + n] - 1) for n, amount in enumerate(self._amounts)]
        hue = 2 * math.pi * self.hue * (2 * u[:, 9] - 1)
        table = np.stack([width, height, x, y, angle, mirror, *factors, hue], axis=1)
        return torch.from_numpy(table.astype(np.float32))

    @property
    def _amounts(self) -> tuple[float, float, float]:
        return self.brightness, self.contrast, self.saturation

    def _windows(self, u: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """Return the crop's width and height as shares of the picture's sides, and its centre in -1 … 1."""
        if self.scale == (1.0, 1.0):
            ones = np.ones(len(u))
            return ones, ones, 0 * ones, 0 * ones
        area = self.scale[0] + (self.scale[1] - self.scale[0]) * u[:, 0]
        low, high = np.log(self.ratio[0]), np.log(self.ratio[1])
        ratio = np.exp(low + (high - low) * u[:, 1])
        width, height = np.minimum(np.sqrt(area * ratio), 1.0), np.minimum(np.sqrt(area / ratio), 1.0)
        return width, height, (2 * u[:, 2] - 1) * (1 - width), (2 * u[:, 3] - 1) * (1 - height)

    def apply(self, pictures: Tensor, draws: Tensor) -> Tensor:
        """Augment uint8 pictures (n × 3 × height × width) on the device they are on."""
        import torch

        with torch.no_grad():
            changed = pictures.float() / 255
            if self._moves or self.size is not None:
                changed = _warp(changed, draws, self.size)
            changed = _jitter_colour(changed, draws, self)
            return (changed.clamp(0, 1) * 255).round().to(torch.uint8)

    @property
    def _moves(self) -> bool:
        return self.scale != (1.0, 1.0) or self.mirror > 0 or self.degrees > 0


def normalised(pictures: Tensor, mean: tuple[float, ...] = MEAN, std: tuple[float, ...] = STD) -> Tensor:
    """Normalise uint8 pictures to floats by mean and standard deviation, on the device they are on."""
    scale = pictures.new_tensor(std, dtype=_default()).mul(255).view(1, 3, 1, 1)
    shift = pictures.new_tensor(mean, dtype=_default()).mul(255).view(1, 3, 1, 1)
    return (pictures - shift) / scale


def _default() -> Any:
    import torch

    return torch.get_default_dtype()


def _warp(pictures: Tensor, draws: Tensor, size: int | None) -> Tensor:
    import torch
    import torch.nn.functional as functional

    width, height, x, y, angle, mirror = draws[:, :6].unbind(1)
    rows, columns = pictures.shape[2], pictures.shape[3]
    aspect = columns / rows
    cos, sin = torch.cos(angle), torch.sin(angle)
    first = torch.stack([mirror * width * cos, -height * sin / aspect, x], dim=1)
    second = torch.stack([mirror * width * sin * aspect, height * cos, y], dim=1)
    out = (size or rows, size or columns)
    grid = functional.affine_grid(torch.stack([first, second], dim=1), [len(pictures), 3, *out], align_corners=False)
    return functional.grid_sample(pictures, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _jitter_colour(pictures: Tensor, draws: Tensor, by: Augment) -> Tensor:
    """Change brightness, contrast, saturation and hue, in this order. Those that are off cost nothing."""
    factors = draws[:, 6:10].view(-1, 4, 1, 1, 1).unbind(1)
    if by.brightness:
        pictures = (pictures * factors[0]).clamp(0, 1)
    if by.contrast:
        middle = _grey(pictures).mean(dim=(1, 2, 3), keepdim=True)
        pictures = ((pictures - middle) * factors[1] + middle).clamp(0, 1)
    if by.saturation:
        grey = _grey(pictures)
        pictures = ((pictures - grey) * factors[2] + grey).clamp(0, 1)
    if by.hue:
        pictures = _rotate_hue(pictures, draws[:, 9])
    return pictures


def _grey(pictures: Tensor) -> Tensor:
    weights = pictures.new_tensor(_GREY).view(1, 3, 1, 1)
    return (pictures * weights).sum(dim=1, keepdim=True)


def _rotate_hue(pictures: Tensor, angle: Tensor) -> Tensor:
    """Rotate the hue about the grey axis in YIQ: keeps the luminance and needs no branches."""
    import torch

    to = pictures.new_tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
    back = torch.linalg.inv(to)
    cos, sin = torch.cos(angle), torch.sin(angle)
    zero, one = torch.zeros_like(cos), torch.ones_like(cos)
    turn = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], dim=1).view(-1, 3, 3)
    return torch.einsum("nij,njhw->nihw", back @ turn @ to, pictures)


# Copying of a stored picture into a batch: decode, crop and mirror with as few copies as possible.


Bytes = NDArray[np.uint8]

_scratch = threading.local()  # each thread decodes into its own reusable buffer


def copy_raw(source: Bytes, target: Bytes, top: float, left: float, mirror: bool) -> None:
    """Copy a crop of `source` into `target`. `top` and `left` (0 … 1) position it within the available margin."""
    height, width = target.shape[:2]
    y, x = int(top * (source.shape[0] - height + 1)), int(left * (source.shape[1] - width + 1))
    window = source[y : y + height, x : x + width]
    if not mirror:
        target[...] = window
        return
    for channel in range(3):  # three strided copies: numpy reverses groups of three bytes more slowly
        target[:, :, channel] = window[:, ::-1, channel]


def copy_jpeg(body: Any, target: Bytes, top: float, left: float, mirror: bool) -> None:
    pixels = decode_jpeg(body)
    height, width = target.shape[:2]
    if pixels.shape[0] < height or pixels.shape[1] < width:
        pixels = enlarge(pixels, height, width)
    copy_raw(pixels, target, top, left, mirror)


def decode_jpeg(body: Any) -> Bytes:
    """Decode into this thread's buffer. The result is valid until its next call."""
    import simplejpeg  # type: ignore[import-untyped]

    height, width, _, _ = simplejpeg.decode_jpeg_header(body)
    need = height * width * 3
    memory: bytearray | None = getattr(_scratch, "memory", None)
    if memory is None or len(memory) < need:
        memory = _scratch.memory = bytearray(need)
    pixels: Bytes = simplejpeg.decode_jpeg(body, "RGB", buffer=memory)
    return pixels


def enlarge(pixels: Bytes, height: int, width: int) -> Bytes:
    """Enlarge a picture to at least this height and width, keeping its aspect ratio."""
    from PIL import Image

    scale = max(height / pixels.shape[0], width / pixels.shape[1])
    to = max(width, round(pixels.shape[1] * scale)), max(height, round(pixels.shape[0] * scale))
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize(to, Image.Resampling.BICUBIC))


def check_crop(stored: tuple[int, int], crop: tuple[int, int]) -> None:
    if stored[0] < crop[0] or stored[1] < crop[1]:
        raise BadInput(
            f"a crop of {crop[0]} × {crop[1]} does not fit into the stored {stored[0]} × {stored[1]} pixels",
            fix=f"choose a crop of at most {min(stored)}, or prepare the data with a larger --size",
        )
