"""Load user-supplied picture files: open, validate, apply EXIF orientation. Raises BadInput for damage and bombs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway.core.errors import BadInput

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from torch import Tensor

MAX_PIXELS: Final = 64_000_000  # pictures that claim more are rejected before decoding


def open_picture(path: str) -> Picture:
    """Open a picture as upright RGB. Raises BadInput unless it is complete and of sane size."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    from headway.data.prepare.images import DAMAGE, readable

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for bombs we have our own limit; other warnings are harmless damage
            with Image.open(Path(path), formats=readable()) as file:
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
            f"{path} cannot be read: {error}", fix="check that the file is whole and yours to read"
        ) from None


def middle_square(picture: Picture, side: int) -> Tensor:
    """Return the centre square as encoder input: uint8 (3, side, side)."""
    from PIL import Image, ImageOps

    return _pixels(ImageOps.fit(picture, (side, side), Image.Resampling.BICUBIC))


def squashed(picture: Picture, side: int) -> Tensor:
    """Resize the whole picture, ignoring its aspect ratio: a crop would hide parts that must be graded."""
    from PIL import Image

    return _pixels(picture.resize((side, side), Image.Resampling.BICUBIC))


def _pixels(square: Picture) -> Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def _refuse_bombs(path: str, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise BadInput(
            f"{path} claims {width} by {height} pixels, more than {MAX_PIXELS // 1_000_000} million",
            fix="make it smaller first",
        )
