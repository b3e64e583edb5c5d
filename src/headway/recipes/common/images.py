"""Picture files that people hand to a model: opened, checked, turned upright. Damage and bombs are BadInput."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway.core.errors import BadInput

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from torch import Tensor

MAX_PIXELS: Final = 64_000_000  # a picture that claims more is refused before it is decoded


def open_picture(path: str) -> Picture:
    """RGB, upright by its EXIF orientation. BadInput unless it is whole and of sane size."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    from headway.data.prepare.images import DAMAGE, readable

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of bombs, where we have our own limit, and of damage that does no harm
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
    """The middle of a picture as an encoder takes it: uint8 (3, side, side)."""
    from PIL import Image, ImageOps

    return _pixels(ImageOps.fit(picture, (side, side), Image.Resampling.BICUBIC))


def squashed(picture: Picture, side: int) -> Tensor:
    """All of a picture, whatever its shape: what is cut off could not be judged."""
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
