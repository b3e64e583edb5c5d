"""Where a captioner looked for each word, as a picture: one row a picture, one tile a word."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.errors import BadInput
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.decode import describe
from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.views import views
from headway.recipes.captioning.words import END, PAD

if TYPE_CHECKING:
    from PIL.Image import Image

TILE: Final = 96  # pixels
_WORD: Final = 16  # pixels below a tile
_DARKEST: Final = 0.25  # what is left of the light where it did not look at all


def attention_sheet(model: Captioner, cfg: Config, pictures: Tensor) -> bytes:
    """A PNG of `pictures` (uint8 n, 3, side, side): each whole, then darkened but for where the words came from."""
    from PIL import Image, ImageDraw

    seen = views(cfg, pictures)
    said = describe(model, seen, max_length=cfg.max_length, beam=cfg.beam, length_penalty=cfg.length_penalty)
    if said.looks is None:
        raise BadInput(f"an {cfg.decoder} decoder looks nowhere", fix="use glimpse, attention or transformer")
    rows = [[word for word in row if word not in (PAD, END)] for row in said.words.tolist()]
    width = TILE * (1 + max(map(len, rows)))
    sheet = Image.new("RGB", (width, (TILE + _WORD) * len(rows)), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (words, picture) in enumerate(zip(rows, pictures, strict=True)):
        top = number * (TILE + _WORD)
        whole = Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).resize((TILE, TILE))
        sheet.paste(whole, (0, top))
        for place, word in enumerate(words):
            light = _light(said.looks[number, place].numpy())
            sheet.paste(_lit(whole, light), (TILE * (place + 1), top))
            pen.text((TILE * (place + 1) + 2, top + TILE + 2), model.vocabulary.words[word], fill="black")
    body = io.BytesIO()
    sheet.save(body, "PNG", optimize=True)
    return body.getvalue()


def _light(looks: NDArray[np.float32]) -> NDArray[np.float32]:
    """The cells as a square of brightnesses, the most looked at brightest."""
    side = math.isqrt(len(looks))
    assert side * side == len(looks)
    grid = looks.reshape(side, side)
    light: NDArray[np.float32] = _DARKEST + (1 - _DARKEST) * grid / max(float(grid.max()), 1e-6)
    return light


def _lit(picture: Image, light: NDArray[np.float32]) -> Image:
    from PIL import Image

    mask = Image.fromarray((255 * light).astype(np.uint8)).resize((TILE, TILE), Image.Resampling.BICUBIC)
    return Image.composite(picture, Image.new("RGB", picture.size), mask)
