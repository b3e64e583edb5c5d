"""Pictures and sound as arrays, from files of users, and pictures as PNG. Raises BadInput for damage and bombs."""

from __future__ import annotations

import base64
import io
import warnings
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


MAX_PIXELS: Final = 64_000_000  # pictures that claim more are rejected before decoding
MAX_SAMPLES: Final = 100_000_000  # of sound


def open_picture(path: str, body: bytes | None = None) -> Picture:
    """Open a picture as upright RGB, from its file or its bytes.

    Raises BadInput unless it is complete and of sane size.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    from headway.data.prepare.images import DAMAGE, readable

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for bombs we have our own limit; other warnings are harmless damage
            with Image.open(Path(path) if body is None else io.BytesIO(body), formats=readable()) as file:
                _refuse_bombs(path, *file.size)
                return ImageOps.exif_transpose(file).convert("RGB")
    except UnidentifiedImageError:
        raise BadInput(f"{path} is not a picture", fix="give a PNG, JPEG, WebP or GIF file") from None
    except Image.DecompressionBombError as error:
        raise BadInput(f"{path} is too large: {error}", fix="make it smaller first") from None
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist", fix="check the path") from None
    except DAMAGE as error:
        raise BadInput(
            f"{path} cannot be read: {error}", fix="check that the file is complete and that you may read it"
        ) from None


def _refuse_bombs(path: str, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise BadInput(
            f"{path} claims {width} by {height} pixels, more than {MAX_PIXELS // 1_000_000} million",
            fix="make it smaller first",
        )


def decode_wav(body: bytes, rate: int) -> NDArray[np.float32]:
    """Decode a WAV file to one channel between -1 and 1 at `rate` samples per second. Raises ValueError."""
    try:
        with wave.open(io.BytesIO(body)) as file:
            channels, width, given = file.getnchannels(), file.getsampwidth(), file.getframerate()
            if file.getnframes() * channels > MAX_SAMPLES or not 1 <= given <= 1_000_000:
                raise ValueError("this sound is too long, or its rate is not one of sound")
            raw = file.readframes(file.getnframes())
    except (wave.Error, EOFError, RuntimeError) as error:
        raise ValueError(f"this is not a WAV file of PCM samples: {error}") from None
    if width not in (1, 2, 4):
        raise ValueError(f"samples of {8 * width} bits cannot be read: 8, 16 and 32 can")
    raw = raw[: len(raw) - len(raw) % (width * channels)]
    values = np.frombuffer(raw, np.dtype({1: "u1", 2: "<i2", 4: "<i4"}[width])).astype(np.float64)
    samples = (values - 128) / 128 if width == 1 else values / float(1 << (8 * width - 1))
    mono = samples.reshape(-1, channels).mean(axis=1)
    if given == rate or not len(mono):
        return np.asarray(mono, np.float32)
    places = np.arange(0, len(mono), given / rate)
    return np.asarray(np.interp(places, np.arange(len(mono)), mono), np.float32)


def to_png(pixels: Any) -> bytes:
    """Encode an array (height, width) or (height, width, 3), of uint8 or of floats from 0 to 1. Raises ValueError."""
    from PIL import Image

    found = np.asarray(pixels)
    if found.ndim == 3 and found.shape[2] == 1:
        found = found[:, :, 0]
    if found.ndim not in (2, 3) or (found.ndim == 3 and found.shape[2] not in (3, 4)) or not found.size:
        raise ValueError(f"a picture has the shape (height, width) or (height, width, 3), not {found.shape}")
    if found.dtype == bool:
        found = found.astype(np.uint8) * 255
    elif found.dtype.kind == "f":
        found = (np.clip(np.nan_to_num(found), 0, 1) * 255).round()
    body = io.BytesIO()
    Image.fromarray(np.clip(found, 0, 255).astype(np.uint8)).save(body, "PNG")
    return body.getvalue()


def data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
