"""Decode and resize images: scaled JPEG decoding, antialiased resizing, conversion of every colour mode to RGB.

libjpeg-turbo decodes JPEGs at the smallest eighth that still has twice the needed pixels per side and a whole number of
pixels; libvips then reduces them with Lanczos-3. The result is within 45 dB (PSNR) of Pillow's LANCZOS on the full
picture, at a third of its cost (docs/decisions/0010-picture-decoding.md).
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
# Formats with a decoder inside Pillow. No others are tried: EPS, for example, would start Ghostscript on the file.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF", "JPEG2000", "ICO", "TGA")
MAX_PIXELS = 64_000_000  # pictures that claim more are rejected before decoding
# Every exception that Pillow raises for damaged bytes.
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, struct.error)
_OVERSAMPLE = 2.0  # decode at least this much larger than needed, and let the filter reduce the rest
_DIRECT = 4.0  # from this reduction factor on, libvips first averages whole pixels (box shrink)
_SMALL = 90_000  # pixels: below this, the set-up cost of libvips exceeds what it saves
_ORIENTATION = 0x0112  # the EXIF tag
_HARMLESS = ("extraneous bytes", "invalid sof marker", "unsupported marker type")  # pixels are complete


class BadPicture(Exception):
    """The picture cannot be used. The message gives the reason for the report."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Target size and fit.

    `short` keeps the aspect ratio and scales the shorter side to `size`; `crop` then takes the centre square; `squash`
    ignores the aspect ratio; `pad` keeps the whole picture and fills the rest with black.
    """

    size: int | None = 256  # None: keep the original size
    fit: Fit = "short"

    @property
    def square(self) -> bool:
        return self.size is not None and self.fit != "short"

    def scaled(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height before cropping or padding."""
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
    """Decode to upright RGB and fit to `shape`. Raises BadPicture if the data is damaged, too large or no picture."""
    if len(data) == 0:
        raise BadPicture("the file is empty")
    if bytes(data[:2]) == b"\xff\xd8":
        return _decode_jpeg(data, shape, max_pixels)
    return _decode_other(data, shape, max_pixels)


def encode_jpeg(pixels: Pixels, quality: int = 90) -> bytes:
    subsampling = "420" if quality <= 92 else "444"
    return bytes(_turbojpeg().encode_jpeg(np.ascontiguousarray(pixels), quality, "RGB", subsampling))


def perceptual_hash(pixels: Pixels) -> int | None:
    """Return a 64-bit perceptual hash (signs of the lowest 8 × 8 DCT coefficients), or None for a flat picture.

    The hash survives rescaling and re-encoding.
    """
    grey = _shrink(pixels, 32)
    if float(grey.std()) < 2.0:
        return None
    low = (_COSINES @ grey @ _COSINES.T).ravel()
    middle = np.partition(low[1:], 31)[31]  # the median, without the DC coefficient, which is only the mean brightness
    bits = low > middle
    return int(np.packbits(bits).view(">u8")[0])


def _decode_jpeg(data: bytes | memoryview, shape: Shape, max_pixels: int) -> Decoded:
    try:
        height, width, colours, _ = _turbojpeg().decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # KeyError: a colour space it has no name for
        return _decode_other(data, shape, max_pixels)
    _check_size(width, height, max_pixels)
    if colours not in ("YCbCr", "Gray", "RGB"):
        return _decode_other(data, shape, max_pixels)  # CMYK and YCCK: Pillow handles Adobe's inversion
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
    """Choose the decode size.

    A size that had to be rounded up would stretch by part of a pixel: 35 dB instead of 48.
    """
    least = [int(need * _OVERSAMPLE) for need in stored]
    for eighths in range(1, 8):
        size = full[0] * eighths / 8, full[1] * eighths / 8
        if size[0] >= least[0] and size[1] >= least[1] and size[0].is_integer() and size[1].is_integer():
            return int(size[0]), int(size[1])
    return full


def _decode_other(data: bytes | memoryview, shape: Shape, max_pixels: int) -> Decoded:
    from PIL import Image, UnidentifiedImageError

    try:  # suppress Pillow's warning about large pictures: those over our own limit go into the report
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
    """Return the FORMATS that this Pillow supports. AVIF came late, and naming an unsupported format is a KeyError."""
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
    """Convert any mode to RGB: alpha is composited over white, 16 bits keep their upper 8, palettes are looked up."""
    from PIL import Image as pil

    if picture.mode in ("I;16", "I;16B", "I;16L", "I;16N", "I", "F"):
        return pil.fromarray(_eight_bits(np.asarray(picture))).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        over = picture.convert("RGBA")
        white = pil.new("RGBA", over.size, (255, 255, 255, 255))
        return pil.alpha_composite(white, over).convert("RGB")
    return picture.convert("RGB")


def _eight_bits(values: NDArray[Any]) -> Pixels:
    """Convert deep greyscale: integers up to 65,535 keep the upper byte, floats in 0 … 1 are scaled, others clipped."""
    if values.dtype.kind == "f":
        top = float(values.max(initial=0.0))
        return np.asarray(np.clip(values * (255.0 if top <= 1.0 else 1.0), 0, 255), dtype=np.uint8)
    if int(values.max(initial=0)) > 255:
        return np.asarray(np.clip(values, 0, 65535).astype(np.uint32) >> 8, dtype=np.uint8)
    return np.asarray(np.clip(values, 0, 255), dtype=np.uint8)


def _orientation(data: bytes | memoryview) -> int:
    """Return the orientation (1 … 8) from a JPEG's EXIF segment, or 1 if it is missing or invalid."""
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
        return 1  # broken EXIF blocks are common, and the pixels do not depend on them
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
    """Resize with Lanczos in the library that is faster at this size. The choice depends on the sizes only."""
    height, width = pixels.shape[:2]
    if (width, height) == to:
        return pixels
    if width * height <= _SMALL or to[0] > width or to[1] > height:
        return _resize_small(pixels, to)
    image = _vips().Image.new_from_memory(np.ascontiguousarray(pixels), width, height, 3, "uchar")
    if max(width / to[0], height / to[1]) < _DIRECT:  # what `resize` would do, without its 0.6 ms of set-up
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
    os.environ.setdefault("VIPS_CONCURRENCY", "1")  # we parallelize over pictures, not inside one
    import pyvips  # type: ignore[import-untyped]

    pyvips.cache_set_max(0)  # it would keep the last hundred results in memory, and we never repeat one

    return pyvips


def _shrink(pixels: Pixels, side: int) -> NDArray[np.float64]:
    """Return side × side means of the green channel: close to luminance, at a third of the work."""
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
