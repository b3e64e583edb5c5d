"""Pictures in, small arrays out: scaled JPEG decoding, an antialiased resize, and every odd colour mode made RGB.

JPEGs are decoded by libjpeg-turbo at the smallest eighth that still has twice the pixels needed along each side and is
a whole number of pixels, then reduced with Lanczos-3 by libvips. The result is within 45 dB (PSNR) of Pillow's LANCZOS
on the full picture, at a third of its cost (docs/decisions/0010-picture-decoding.md).
"""

from __future__ import annotations

import io
import os
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]  # height × width × 3, RGB
Fit = Literal["short", "crop", "squash", "pad"]

FITS: tuple[Fit, ...] = ("short", "crop", "squash", "pad")
# Formats that are read by a decoder of Pillow's own. Others are not tried: EPS would start Ghostscript on the file.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF", "JPEG2000", "ICO", "TGA")
MAX_PIXELS = 64_000_000  # a picture that claims more is refused before it is decoded
# All the ways in which Pillow says that the bytes are damaged.
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, struct.error)
_OVERSAMPLE = 2.0  # decode at least this much larger than needed, and leave the rest to the filter
_DIRECT = 4.0  # times smaller: from there on, libvips first takes means of whole pixels
_SMALL = 90_000  # pixels: below it, libvips spends more on getting ready than it saves
_ORIENTATION = 0x0112  # the EXIF tag
_HARMLESS = ("extraneous bytes", "invalid sof marker", "unsupported marker type")  # the pixels are all there


class BadPicture(Exception):
    """This file cannot be used: the message says why, in words for the report."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What pictures are brought to. `short` keeps the aspect and makes the shorter side `size`; `crop` then takes the
    middle square; `squash` ignores the aspect; `pad` keeps everything and fills the rest with black."""

    size: int | None = 256  # None: as they are
    fit: Fit = "short"

    @property
    def square(self) -> bool:
        return self.size is not None and self.fit != "short"

    def scaled(self, width: int, height: int) -> tuple[int, int]:
        """Width and height before cropping or padding."""
        if self.size is None:
            return width, height
        if self.fit == "squash":
            return self.size, self.size
        side = max(width, height) if self.fit == "pad" else min(width, height)
        return max(1, round(width * self.size / side)), max(1, round(height * self.size / side))


@dataclass(frozen=True, slots=True)
class Decoded:
    pixels: Pixels
    width: int  # of the original, upright
    height: int


def decode(data: bytes | memoryview, shape: Shape, *, max_pixels: int = MAX_PIXELS) -> Decoded:
    """The picture as RGB, upright, brought to `shape`; BadPicture if it is damaged, too large or no picture at all."""
    if len(data) == 0:
        raise BadPicture("the file is empty")
    if bytes(data[:2]) == b"\xff\xd8":
        return _decode_jpeg(data, shape, max_pixels)
    return _decode_other(data, shape, max_pixels)


def encode_jpeg(pixels: Pixels, quality: int = 90) -> bytes:
    subsampling = "420" if quality <= 92 else "444"
    return bytes(_turbojpeg().encode_jpeg(np.ascontiguousarray(pixels), quality, "RGB", subsampling))


def perceptual_hash(pixels: Pixels) -> int | None:
    """64 bits that survive rescaling and re-encoding: the signs of the 8 × 8 lowest frequencies. None if it is flat."""
    grey = _shrink(pixels, 32)
    if float(grey.std()) < 2.0:
        return None
    low = (_COSINES @ grey @ _COSINES.T).ravel()
    middle = np.partition(low[1:], 31)[31]  # the median; the first is the mean brightness, which says nothing
    bits = low > middle
    return int(np.packbits(bits).view(">u8")[0])


def _decode_jpeg(data: bytes | memoryview, shape: Shape, max_pixels: int) -> Decoded:
    try:
        height, width, colours, _ = _turbojpeg().decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # KeyError: a colour space it has no name for
        return _decode_other(data, shape, max_pixels)
    _check_size(width, height, max_pixels)
    if colours not in ("YCbCr", "Gray", "RGB"):
        return _decode_other(data, shape, max_pixels)  # CMYK and YCCK: Pillow knows Adobe's inversion
    turn = _orientation(data)
    upright = (height, width) if turn >= 5 else (width, height)
    target = shape.scaled(*upright)
    stored = target[::-1] if turn >= 5 else target
    pixels = _turbo(data, stored, (width, height))
    return Decoded(_frame(_upright(_resize(pixels, stored), turn), shape), *upright)


def _turbo(data: bytes | memoryview, stored: tuple[int, int], full: tuple[int, int]) -> Pixels:
    width, height = _scaled(stored, full)

    def run(strict: bool) -> Pixels:
        decoded: Pixels = _turbojpeg().decode_jpeg(data, "RGB", min_width=width, min_height=height, strict=strict)
        return decoded

    try:
        return run(strict=True)
    except ValueError as error:
        if not any(words in str(error).lower() for words in _HARMLESS):
            raise BadPicture(f"damaged JPEG: {_one_line(error)}") from None
    try:
        return run(strict=False)
    except ValueError as error:
        raise BadPicture(f"damaged JPEG: {_one_line(error)}") from None


def _scaled(stored: tuple[int, int], full: tuple[int, int]) -> tuple[int, int]:
    """The size to decode at. One that is rounded up would be stretched by a part of a pixel: 35 dB instead of 48."""
    least = [int(need * _OVERSAMPLE) for need in stored]
    for eighths in range(1, 8):
        size = full[0] * eighths / 8, full[1] * eighths / 8
        if size[0] >= least[0] and size[1] >= least[1] and size[0].is_integer() and size[1].is_integer():
            return int(size[0]), int(size[1])
    return full


def _decode_other(data: bytes | memoryview, shape: Shape, max_pixels: int) -> Decoded:
    from PIL import Image, UnidentifiedImageError

    try:  # Pillow's warning about large pictures is swallowed: what is over our own limit goes into the report
        with warnings.catch_warnings(record=True), Image.open(io.BytesIO(data), formats=readable()) as picture:
            _check_size(picture.width, picture.height, max_pixels)
            turn = int(picture.getexif().get(_ORIENTATION, 1) or 1)
            pixels = _upright(np.asarray(_rgb(picture)), turn)
    except UnidentifiedImageError:
        raise BadPicture("not a picture in any format known here") from None
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise BadPicture(f"cannot be decoded: {_one_line(error)}") from None
    height, width = pixels.shape[:2]
    return Decoded(_frame(_resize(pixels, shape.scaled(width, height)), shape), width, height)


@cache
def readable() -> tuple[str, ...]:
    """Those of FORMATS that this Pillow has: AVIF came late, and asking for what is not there is a KeyError."""
    from PIL import Image

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        millions = f"{width} × {height} is {width * height / 1e6:.0f} megapixels"
        raise BadPicture(f"{millions}, more than the limit of {max_pixels / 1e6:.0f}")
    if width < 1 or height < 1:
        raise BadPicture("it has no pixels")


def _rgb(picture: Image) -> Image:
    """RGB from any mode: alpha is laid over white, 16 bits keep their upper 8, a palette is looked up."""
    from PIL import Image as pil

    if picture.mode in ("I;16", "I;16B", "I;16L", "I;16N", "I", "F"):
        return pil.fromarray(_eight_bits(np.asarray(picture))).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        over = picture.convert("RGBA")
        white = pil.new("RGBA", over.size, (255, 255, 255, 255))
        return pil.alpha_composite(white, over).convert("RGB")
    return picture.convert("RGB")


def _eight_bits(values: NDArray[Any]) -> Pixels:
    """Deep greys: integers up to 65,535 by their upper byte, floats in 0 … 1 by scaling, anything else clipped."""
    if values.dtype.kind == "f":
        top = float(values.max(initial=0.0))
        return np.asarray(np.clip(values * (255.0 if top <= 1.0 else 1.0), 0, 255), dtype=np.uint8)
    if int(values.max(initial=0)) > 255:
        return np.asarray(np.clip(values, 0, 65535).astype(np.uint32) >> 8, dtype=np.uint8)
    return np.asarray(np.clip(values, 0, 255), dtype=np.uint8)


def _orientation(data: bytes | memoryview) -> int:
    """1 … 8 from the EXIF segment of a JPEG; 1 where there is none or it makes no sense."""
    head = bytes(data[:65_600])
    at = head.find(b"Exif\x00\x00")
    if at < 0:
        return 1
    from PIL import Image

    exif = Image.Exif()
    try:
        exif.load(head[at:])
        turn = int(exif.get(_ORIENTATION, 1) or 1)
    except (SyntaxError, ValueError, TypeError, KeyError, OSError, EOFError):
        return 1  # a broken EXIF block is common, and the pixels do not depend on it
    return turn if 1 <= turn <= 8 else 1


_TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: np.rot90(p, 1),
}


def _upright(pixels: Pixels, turn: int) -> Pixels:
    return np.ascontiguousarray(_TURNS[turn](pixels)) if turn in _TURNS else pixels


def _resize(pixels: Pixels, to: tuple[int, int]) -> Pixels:
    """Lanczos, by whichever library is quicker at this size: the choice depends on nothing else."""
    height, width = pixels.shape[:2]
    if (width, height) == to:
        return pixels
    if width * height <= _SMALL or to[0] > width or to[1] > height:
        return _resize_small(pixels, to)
    image = _vips().Image.new_from_memory(np.ascontiguousarray(pixels), width, height, 3, "uchar")
    if max(width / to[0], height / to[1]) < _DIRECT:  # what `resize` does there, without its 0.6 ms of getting ready
        reduced = image.reduce(width / to[0], height / to[1], kernel="lanczos3")
    else:
        reduced = image.resize(to[0] / width, vscale=to[1] / height, kernel="lanczos3")
    resized: Pixels = reduced.numpy()
    if resized.shape[:2] == (to[1], to[0]):
        return resized
    return _resize_small(pixels, to)  # libvips rounds extreme aspect ratios to a neighbouring size


def _resize_small(pixels: Pixels, to: tuple[int, int]) -> Pixels:
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize(to, Image.Resampling.LANCZOS))


def _frame(pixels: Pixels, shape: Shape) -> Pixels:
    if shape.size is None or shape.fit in ("short", "squash"):
        return pixels
    height, width = pixels.shape[:2]
    if shape.fit == "crop":
        top, left = (height - shape.size) // 2, (width - shape.size) // 2
        return np.ascontiguousarray(pixels[top : top + shape.size, left : left + shape.size])
    framed = np.zeros((shape.size, shape.size, 3), np.uint8)
    top, left = (shape.size - height) // 2, (shape.size - width) // 2
    framed[top : top + height, left : left + width] = pixels
    return framed


def _turbojpeg() -> Any:
    import simplejpeg  # type: ignore[import-untyped]

    return simplejpeg


@cache
def _vips() -> Any:
    os.environ.setdefault("VIPS_CONCURRENCY", "1")  # we are parallel over pictures, not inside one
    import pyvips  # type: ignore[import-untyped]

    pyvips.cache_set_max(0)  # it would keep the last hundred pictures in memory, and we never ask twice

    return pyvips


def _shrink(pixels: Pixels, side: int) -> NDArray[np.float64]:
    """side × side means of the green channel: close to brightness, and a third of the work."""
    height, width = pixels.shape[:2]
    rows = np.linspace(0, height, side, endpoint=False).astype(np.int64)
    columns = np.linspace(0, width, side, endpoint=False).astype(np.int64)
    sums = np.add.reduceat(np.ascontiguousarray(pixels[:, :, 1]), rows, axis=0, dtype=np.uint32)
    sums = np.add.reduceat(sums, columns, axis=1)
    area = np.outer(np.maximum(np.diff(rows, append=height), 1), np.maximum(np.diff(columns, append=width), 1))
    return np.asarray(sums / area, dtype=np.float64)


def _cosine_rows(size: int, keep: int) -> NDArray[np.float64]:
    row, column = np.arange(keep)[:, None], np.arange(size)[None, :]
    return np.asarray(np.cos(np.pi * row * (2 * column + 1) / (2 * size)), dtype=np.float64)


_COSINES = _cosine_rows(32, 8)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
