"""Captions for pictures that a server was sent, and where the model looked for each word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from PIL import Image
from torch import Tensor, nn

from headway.bundle import Bundle
from headway.graphs import Graph
from headway.recipes.captioning.decode import Said
from headway.recipes.captioning.predict import Predictor
from headway.recipes.captioning.words import END, PAD
from headway.recipes.picture_files import middle_square
from headway.serve.engine import Run
from headway.serve.service import Answer, Field, Instance


class ComputedBy(nn.Module):
    """An encoder that is not torch's to compute."""

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
        """Of the encoder, which is one pass and most of the work where it is a published one. Torch searches words."""
        from headway.recipes.captioning.graphs import look

        return look(self._predictor.model, self._predictor.config)

    def use(self, run: Run) -> None:
        self._predictor.model.encoder = ComputedBy(run)

    def prepare(self, instance: Instance) -> Tensor:
        return middle_square(Image.fromarray(instance["image"]), self._predictor.side)

    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        if not explain:
            return [{"text": text} for text in self._predictor.captions(list(prepared))]
        said = self._predictor.described(list(prepared))
        return [self._explained(said, row) for row in range(len(prepared))]

    def _explained(self, said: Said, row: int) -> Answer:
        numbers = [number for number in said.words[row].tolist() if number not in (PAD, END)]
        words = [self._predictor.word(number) for number in numbers]
        looks = [None] * len(words) if said.looks is None else [_grid(cells) for cells in said.looks[row]]
        return {
            "text": " ".join(words),
            "log_probability": round(float(said.log_probability[row]), 4),
            "words": [{"word": word, "attention": grid} for word, grid in zip(words, looks, strict=False)],
            "alternatives": self._alternatives(said, row),
        }

    def _alternatives(self, said: Said, row: int) -> list[Answer]:
        """All that the search kept to the end, the best first, with the probability of each as a whole."""
        if said.kept is None or said.kept_log_probability is None:
            return []
        found: dict[str, float] = {}
        for numbers, sure in zip(said.kept[row].tolist(), said.kept_log_probability[row].tolist(), strict=True):
            text = " ".join(self._predictor.word(number) for number in numbers if number not in (PAD, END))
            found.setdefault(text, math.exp(sure))
        return [{"text": text, "probability": round(value, 6)} for text, value in found.items()]


def _grid(cells: Tensor) -> list[list[float]] | None:
    """Cells as rows of a square; None for a decoder whose memory is no square."""
    side = math.isqrt(len(cells))
    if side * side != len(cells):
        return None
    return [[round(value, 4) for value in line] for line in cells.reshape(side, side).tolist()]
