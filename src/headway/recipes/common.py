"""Helpers shared by recipes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.bundle.format import AGAIN, Bundle
from headway.core.errors import BadBundle, BadInput

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


# Load user-supplied picture files: open, validate, apply EXIF orientation. Raises BadInput for damage and bombs.


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
            f"{path} cannot be read: {error}", fix="check that the file is complete and that you may read it"
        ) from None


def center_crop(picture: Picture, side: int) -> Tensor:
    """Return the centre square as encoder input: uint8 (3, side, side)."""
    from PIL import Image, ImageOps

    return _pixels(ImageOps.fit(picture, (side, side), Image.Resampling.BICUBIC))


def resize_square(picture: Picture, side: int) -> Tensor:
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


# A dropout layer that is cheap on CPUs: one random byte per element, where torch draws a full random number.
#
# On a CPU, nn.Dropout takes a fifth of a small Transformer's step.


_LOWEST = -(2**63)


class Dropout(nn.Module):
    """Like nn.Dropout, with the probability rounded to 1/256. Uses torch's default generator."""

    def __init__(self, chance: float = 0.5) -> None:
        super().__init__()
        self._dropped = round(256 * chance)

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self._dropped):
            return x
        if x.device.type != "cpu":
            return functional.dropout(x, self._dropped / 256)
        return x * _mask(x, self._dropped)

    def extra_repr(self) -> str:
        return f"{self._dropped / 256:.3f}"


def _mask(x: Tensor, dropped: int) -> Tensor:
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(_LOWEST, None)
    kept = words.view(torch.uint8)[: x.numel()] >= dropped
    return kept.to(x.dtype).mul_(256 / (256 - dropped)).view(x.shape)


# Load a bundle's weights into a model, strictly.


def load_weights(model: nn.Module, bundle: Bundle) -> None:
    """Load all weights and switch to eval mode. Raises BadBundle naming the first keys or shapes that do not match."""
    with wrap_load_errors(bundle):
        missing, extra = model.load_state_dict(bundle.weights(), strict=False)
    odd = [name for name in (*missing, *extra) if name != "_extra_state"]
    if odd:
        raise _mismatch_error(bundle, ", ".join(odd[:3]))
    model.eval()


@contextmanager
def wrap_load_errors(bundle: Bundle) -> Iterator[None]:
    """Convert torch's shape-mismatch error to BadBundle."""
    try:
        yield
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        raise _mismatch_error(bundle, lines[min(1, len(lines) - 1)].strip()) from None


def _mismatch_error(bundle: Bundle, what: str) -> BadBundle:
    return BadBundle(f"its weights do not fit its settings: {what}", where=bundle.url, fix=AGAIN)
