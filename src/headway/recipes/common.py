"""Helpers shared by recipes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.bundle.format import AGAIN, Bundle
from headway.core.errors import BadBundle

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


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
