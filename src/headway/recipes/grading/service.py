"""Grades for the pictures that a server was sent: a front and a back, or one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from headway.bundle import Bundle
from headway.graphs import Graph
from headway.recipes.grading.model import DAMAGE
from headway.recipes.grading.predict import Predictor
from headway.recipes.picture_files import squashed
from headway.serve.engine import Run
from headway.serve.service import Answer, Field, Instance


class GradeService:
    def __init__(self, bundle: Bundle) -> None:
        self._predictor = Predictor(bundle)
        self._run: Run | None = None
        both = self._predictor.config.views == "both"
        named = (("front", "its front"), ("back", "its back")) if both else (("image", "a picture"),)
        self.fields = tuple(Field(name=name, kind="picture", summary=told) for name, told in named)

    def prepare(self, instance: Instance) -> list[Tensor]:
        side = self._predictor.config.side
        return [squashed(Image.fromarray(instance[field.name]), side) for field in self.fields]

    def graph(self) -> Graph:
        from headway.recipes.grading.graphs import graphs

        (whole,) = graphs(self._predictor.model, self._predictor.config)
        return whole

    def use(self, run: Run) -> None:
        self._run = run

    @torch.no_grad()
    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        model = self._predictor.model
        back = torch.stack([views[-1] for views in prepared])
        front = torch.stack([views[0] for views in prepared]) if len(self.fields) == 2 else None
        if self._run is not None and not explain:  # the graph does not say what was seen
            views = [back] if front is None or not bool(model.both) else [back, front]
            chances = self._run(views)[0]
        else:
            seen = model(back, front)
            chances = model.probabilities(seen)
        answers = [
            self._predictor.told(grade, row.tolist())
            for grade, row in zip(model.named(chances).tolist(), chances, strict=True)
        ]
        if explain:
            for number, answer in enumerate(answers):
                answer["distribution"] = answer["probabilities"]
                answer["evidence"] = _evidence("back", seen.back[number]) | (
                    _evidence("front", seen.front[number]) if seen.front is not None else {}
                )
        return answers


def _evidence(side: str, found: Tensor) -> dict[str, float]:
    words = {"edge": "edge damage", "across": "off centre, across", "down": "off centre, down"}
    return {f"{side}: {words[name]}": round(value, 3) for name, value in zip(DAMAGE, found.tolist(), strict=True)}
