"""Export of a captioner as a bundle, prediction and serving from a bundle, and attention maps."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as PilImage
from torch import Tensor, nn

from headway.artifacts.media import open_picture
from headway.artifacts.onnx import Graph
from headway.artifacts.predictor import Answer, Field, Instance, Run
from headway.bundle.format import Bundle, BundleParts
from headway.core.errors import BadInput
from headway.recipes.bundling import CardText, bundle_parts
from headway.recipes.captioning.beam_search import DecodedCaptions, describe, views
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import SCENES
from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.vocabulary import END, PAD, Vocabulary
from headway.recipes.common import center_crop, load_weights
from headway.spec import Job
from headway.spec.loading import from_plain

if TYPE_CHECKING:
    from PIL.Image import Image


# Attention maps: one row per picture, one tile per word.


TILE: Final = 96  # pixels
_WORD: Final = 16  # height of the text below a tile, in pixels
_DARKEST: Final = 0.25  # brightness of cells with zero attention


def attention_sheet(model: Captioner, cfg: Config, pictures: Tensor) -> bytes:
    """Render attention maps of `pictures` (uint8 n, 3, side, side) as PNG: per word, the picture shaded by them."""
    from PIL import Image, ImageDraw

    seen = views(cfg, pictures)
    decoded = describe(model, seen, max_length=cfg.max_length, beam=cfg.beam, length_penalty=cfg.length_penalty)
    if decoded.looks is None:
        raise BadInput(f"the {cfg.decoder} decoder has no attention", fix="use glimpse, attention or transformer")
    rows = [[word for word in row if word not in (PAD, END)] for row in decoded.words.tolist()]
    width = TILE * (1 + max(map(len, rows)))
    sheet = Image.new("RGB", (width, (TILE + _WORD) * len(rows)), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (words, picture) in enumerate(zip(rows, pictures, strict=True)):
        top = number * (TILE + _WORD)
        whole = Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).resize((TILE, TILE))
        sheet.paste(whole, (0, top))
        for place, word in enumerate(words):
            light = _light(decoded.looks[number, place].numpy())
            sheet.paste(_lit(whole, light), (TILE * (place + 1), top))
            pen.text((TILE * (place + 1) + 2, top + TILE + 2), model.vocabulary.words[word], fill="black")
    body = io.BytesIO()
    sheet.save(body, "PNG", optimize=True)
    return body.getvalue()


def _light(looks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the attention weights as a square brightness map, scaled to the maximum."""
    side = math.isqrt(len(looks))
    assert side * side == len(looks)
    grid = looks.reshape(side, side)
    light: NDArray[np.float32] = _DARKEST + (1 - _DARKEST) * grid / max(float(grid.max()), 1e-6)
    return light


def _lit(picture: Image, light: NDArray[np.float32]) -> Image:
    from PIL import Image

    mask = Image.fromarray((255 * light).astype(np.uint8)).resize((TILE, TILE), Image.Resampling.BICUBIC)
    return Image.composite(picture, Image.new("RGB", picture.size), mask)


_AT_ONCE: Final = 64  # batch size


def bundle(model: Captioner, cfg: Config, job: Job, scores: Mapping[str, float]) -> BundleParts:
    """Collect weights, config, vocabulary and model card. `scores` are the validation scores of these weights."""
    text = CardText(
        summary=(
            f"Describes a picture in one sentence. Encoder `{cfg.encoder}`, decoder `{cfg.decoder}`, "
            f"{len(model.vocabulary)} words."
        ),
        example="picture.png",
        generated=(SCENES, "The drawn scenes are"),
        files={
            "vocabulary.json": "the words in the order of their numbers",
            "word_to_id.json": "the number of each word",
            "id_to_word.json": "the word of each number",
        },
        inputs=f"Pictures are cropped to their centre square and resized to {cfg.side} pixels a side.",
        limits="It knows the words and kinds of pictures it was trained on, and describes everything in those terms.",
    )
    return bundle_parts(model, cfg, job, scores, recipe="captioning", files=model.vocabulary.files(), text=text)


class Predictor:
    """Captions picture files with the model of a bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self._cfg = from_plain(bundle.config, Config, where=f"{bundle.url}/config.json")
        self._model = Captioner(self._cfg, Vocabulary.from_file(bundle.read("vocabulary.json")), fresh=False)
        load_weights(self._model, bundle)

    @property
    def model(self) -> Captioner:
        return self._model

    @property
    def config(self) -> Config:
        return self._cfg

    @property
    def side(self) -> int:
        """Side of the square input pictures, in pixels."""
        return self._cfg.side

    def __call__(self, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """Caption files: one {"input", "text"} per input, in order. Reads all inputs before captioning the first."""
        texts = self.captions([center_crop(open_picture(path), self.side) for path in inputs])
        return [{"input": path, "text": text} for path, text in zip(inputs, texts, strict=True)]

    def captions(self, pictures: Sequence[Tensor]) -> list[str]:
        """Return the caption of each preprocessed picture."""
        decoded: list[str] = []
        for first in range(0, len(pictures), _AT_ONCE):
            rows = self.described(pictures[first : first + _AT_ONCE]).words
            decoded += [self._model.vocabulary.decode(row) for row in rows.tolist()]
        return decoded

    def described(self, pictures: Sequence[Tensor]) -> DecodedCaptions:
        """Return captions as token ids, with log-probabilities and attention weights."""
        cfg = self._cfg
        together = views(cfg, torch.stack(list(pictures)))
        return describe(
            self._model, together, max_length=cfg.max_length, beam=cfg.beam, length_penalty=cfg.length_penalty
        )

    def word(self, number: int) -> str:
        return self._model.vocabulary.words[number]


# Serving: captions for requests, with attention per word on demand.


class OnnxEncoder(nn.Module):
    """Wrapper for an encoder that runs in ONNX Runtime."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def forward(self, pictures: Tensor) -> Tensor:
        (grid,) = self._run([pictures])
        return grid


class CaptionService:
    fields = (Field(name="image", kind="picture", summary="a picture"),)

    def __init__(self, bundle: Bundle) -> None:
        self._predictor = Predictor(bundle)

    def graph(self) -> Graph:
        """Return the graph of the encoder: one forward pass and, if pretrained, most of the work.

        The word search stays in torch.
        """
        from headway.recipes.captioning.onnx import example_picture

        return example_picture(self._predictor.model, self._predictor.config)

    def use(self, run: Run) -> None:
        self._predictor.model.encoder = OnnxEncoder(run)

    def prepare(self, instance: Instance) -> Tensor:
        return center_crop(PilImage.fromarray(instance["image"]), self._predictor.side)

    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        if not explain:
            return [{"text": text} for text in self._predictor.captions(list(prepared))]
        decoded = self._predictor.described(list(prepared))
        return [self._explained(decoded, row) for row in range(len(prepared))]

    def _explained(self, decoded: DecodedCaptions, row: int) -> Answer:
        numbers = [number for number in decoded.words[row].tolist() if number not in (PAD, END)]
        words = [self._predictor.word(number) for number in numbers]
        looks = [None] * len(words) if decoded.looks is None else [_grid(cells) for cells in decoded.looks[row]]
        return {
            "text": " ".join(words),
            "log_probability": round(float(decoded.log_probability[row]), 4),
            "words": [{"word": word, "attention": grid} for word, grid in zip(words, looks, strict=False)],
            "alternatives": self._alternatives(decoded, row),
        }

    def _alternatives(self, decoded: DecodedCaptions, row: int) -> list[Answer]:
        """Return all final hypotheses of the beam search, best first, with their total probability."""
        if decoded.kept is None or decoded.kept_log_probability is None:
            return []
        found: dict[str, float] = {}
        for numbers, sure in zip(decoded.kept[row].tolist(), decoded.kept_log_probability[row].tolist(), strict=True):
            text = " ".join(self._predictor.word(number) for number in numbers if number not in (PAD, END))
            found.setdefault(text, math.exp(sure))
        return [{"text": text, "probability": round(value, 6)} for text, value in found.items()]


def _grid(cells: Tensor) -> list[list[float]] | None:
    """Return the cells as rows of a square, or None if they do not form one."""
    side = math.isqrt(len(cells))
    if side * side != len(cells):
        return None
    return [[round(value, 4) for value in line] for line in cells.reshape(side, side).tolist()]
