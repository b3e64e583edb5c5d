"""Classes for the pictures that a server was sent, and which parts of a picture spoke for the class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from headway.bundle import Bundle
from headway.graphs import Graph
from headway.recipes.classification.predict import Predictor
from headway.recipes.picture_files import middle_square
from headway.serve.engine import Run
from headway.serve.service import Answer, Field, Instance

_CELLS = 8  # a side of the saliency map


class ClassService:
    fields = (Field(name="image", kind="picture", summary="a picture"),)

    def __init__(self, bundle: Bundle) -> None:
        self._predictor = Predictor(bundle)
        self._run: Run | None = None

    def graph(self) -> Graph:
        from headway.recipes.classification.graphs import graphs

        (whole,) = graphs(self._predictor.model, self._predictor.config)
        return whole

    def use(self, run: Run) -> None:
        self._run = run

    def prepare(self, instance: Instance) -> Tensor:
        return middle_square(Image.fromarray(instance["image"]), self._predictor.side)

    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        found = self._probabilities(list(prepared))
        answers = [self._predictor.answer(row) for row in found]
        if explain:
            for picture, row, answer in zip(prepared, found, answers, strict=True):
                answer["top"] = [
                    {"label": each["class"], "probability": each["probability"]} for each in answer["classes"]
                ]
                answer["saliency"] = self._saliency(picture, int(row.argmax()), float(row.max()))
        return answers

    def _probabilities(self, pictures: list[Tensor]) -> list[Tensor]:
        if self._run is None:
            return self._predictor.probabilities(pictures)
        return list(self._run([torch.stack(pictures)])[0])

    def _saliency(self, picture: Tensor, number: int, whole: float) -> list[list[float]]:
        """How much less sure the model is where each part is greyed out: true of any model, and easy to explain."""
        side = picture.shape[-1]
        cell = -(-side // _CELLS)
        hidden = []
        for top in range(0, side, cell):
            for left in range(0, side, cell):
                masked = picture.clone()
                masked[:, top : top + cell, left : left + cell] = 128
                hidden.append(masked)
        sure = torch.stack([row[number] for row in self._probabilities(hidden)])
        lost = functional.relu(whole - sure).reshape(-(-side // cell), -1)
        return [[round(value, 4) for value in line] for line in lost.tolist()]
