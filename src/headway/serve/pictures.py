"""Pictures that strangers send: what they claim is checked before a pixel is decoded."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from headway.serve.problems import Refusal, bad_request

# Formats whose decoders are maintained against hostile files; Pillow knows many more.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def decode_picture(body: bytes, *, pixels: int, at: str) -> NDArray[np.uint8]:
    """Upright RGB pixels (height, width, 3). A Refusal for what is no picture, damaged or too large."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of bombs, and of damage that we refuse or survive
            with Image.open(io.BytesIO(body), formats=_FORMATS) as file:
                width, height = file.size
                if width * height > pixels:
                    told = f"a picture of {width} × {height} pixels: at most {pixels // 1_000_000} million are taken"
                    raise Refusal(413, told, at=at)
                return _upright(file)
    except UnidentifiedImageError:
        raise bad_request(f"this is not a picture; send one of {', '.join(_FORMATS)}", at) from None
    except (Image.DecompressionBombError, MemoryError):
        raise Refusal(413, "this picture is too large", at=at) from None
    except (OSError, SyntaxError, ValueError, IndexError, KeyError, TypeError, EOFError) as error:
        raise bad_request(f"this picture is damaged: {error}", at) from None


def _upright(file: Any) -> NDArray[np.uint8]:
    turned = ImageOps.exif_transpose(file)
    if turned.mode in ("RGBA", "LA", "PA") or "transparency" in turned.info:
        turned = turned.convert("RGBA")
        white = Image.new("RGBA", turned.size, (255, 255, 255, 255))
        turned = Image.alpha_composite(white, turned)
    return np.asarray(turned.convert("RGB"))
