"""Export of a grader as a bundle, and prediction and serving from a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from PIL import Image
from torch import Tensor

from headway.artifacts.media import open_picture
from headway.artifacts.onnx import Graph
from headway.artifacts.predictor import Answer, Field, Instance, Run
from headway.artifacts.weights import as_pth
from headway.bundle.format import Bundle, BundleParts, to_json
from headway.core.errors import BadInput
from headway.recipes.bundling import CardText, bundle_parts, copied_weights
from headway.recipes.common import resize_square, wrap_load_errors
from headway.recipes.grading.config import Config
from headway.recipes.grading.model import DAMAGE, Grader, rebuild
from headway.spec import Job
from headway.spec.loading import from_plain, to_plain

_AT_ONCE: Final = 32  # batch size
SEPARATOR: Final = ","  # front,back


def bundle(model: Grader, cfg: Config, job: Job, scores: Mapping[str, float]) -> BundleParts:
    """Collect weights, config and model card, plus the weights in torch's format under their legacy file names."""
    from headway.recipes.grading.data import CARDS  # imports data dependencies that a server lacks

    name, both, grades = job.export.name or job.name, cfg.views == "both", model.grades.tolist()
    seen = f"front by `{cfg.front}`, back by `{cfg.back}`" if both else f"one picture by `{cfg.back}`"
    state, settings = f"{name}_state_dict.pth", f"{name}_config.json"
    text = CardText(
        summary=(
            f"Grades pictures from {grades[0]} to {grades[-1]}: {seen}, {cfg.channels} channels at {cfg.side} pixels, "
            f"head `{cfg.head}`."
        ),
        example="front.png,back.png" if both else "picture.png",
        generated=(CARDS, "The drawn cards are"),
        files={
            state: "the weights for `torch.load(path, weights_only=True)`",
            settings: "the settings for programs that read that file",
        },
        inputs=f"Pictures are resized to {cfg.side} pixels a side, whatever their shape.",
        limits=(
            "It grades things like those it was trained on. Its probabilities are as good as the calibration in the "
            "run's report. A grade from pictures does not replace an inspection by a person."
        ),
    )
    files = {state: as_pth(copied_weights(model)), settings: to_json({**to_plain(cfg), "grades": grades})}
    return bundle_parts(model, cfg, job, scores, recipe="grading", files=files, text=text)


class Predictor:
    """Grades picture files with the model of a bundle. A pair is one input: `front.png,back.png`."""

    def __init__(self, bundle: Bundle) -> None:
        self.config = from_plain(bundle.config, Config, where=f"{bundle.url}/config.json")
        with wrap_load_errors(bundle):
            self.model = rebuild(self.config, bundle.weights())
        self.model.eval()

    @torch.no_grad()
    def __call__(self, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """Grade files: one answer per input, in order, with the grade, the expected grade and all probabilities."""
        views = [self._read(text) for text in inputs]
        answers: list[dict[str, Any]] = []
        for first in range(0, len(views), _AT_ONCE):
            some = views[first : first + _AT_ONCE]
            back = torch.stack([pair[-1] for pair in some])
            front = torch.stack([pair[0] for pair in some]) if self.config.views == "both" else None
            chances = self.model.probabilities(self.model(back, front))
            named = self.model.named(chances).tolist()
            answers += [
                {"input": text, **self.describe_grade(grade, row.tolist())}
                for text, grade, row in zip(inputs[first:], named, chances, strict=False)
            ]
        return answers

    def describe_grade(self, grade: int, row: list[float]) -> dict[str, Any]:
        """Return the answer for a grade and its probabilities, with text for people and fields for programs."""
        grades = self.model.grades.tolist()
        expected = sum(each * chance for each, chance in zip(grades, row, strict=True))
        likely = {str(each): round(chance, 4) for each, chance in zip(grades, row, strict=True)}
        return {
            "text": f"grade {grade} (expected {expected:.1f})",
            "grade": grade,
            "expected": round(expected, 3),
            "probabilities": likely,
        }

    def _read(self, text: str) -> list[Tensor]:
        paths = text.split(SEPARATOR)
        wanted = 2 if self.config.views == "both" else 1
        if len(paths) != wanted:
            how = "FRONT,BACK: two files with a comma between them" if wanted == 2 else "one file"
            raise BadInput(f"{text!r} is {len(paths)} files, but this grader takes {wanted} per item", fix=how)
        return [resize_square(open_picture(path), self.config.side) for path in paths]


# Serving: grades for requests with a front and a back, or one picture.


class GradeService:
    def __init__(self, bundle: Bundle) -> None:
        self._predictor = Predictor(bundle)
        self._run: Run | None = None
        both = self._predictor.config.views == "both"
        named = (("front", "its front"), ("back", "its back")) if both else (("image", "a picture"),)
        self.fields = tuple(Field(name=name, kind="picture", summary=summary) for name, summary in named)

    def prepare(self, instance: Instance) -> list[Tensor]:
        side = self._predictor.config.side
        return [resize_square(Image.fromarray(instance[field.name]), side) for field in self.fields]

    def graph(self) -> Graph:
        from headway.recipes.grading.model import graphs

        (whole,) = graphs(self._predictor.model, self._predictor.config)
        return whole

    def use(self, run: Run) -> None:
        self._run = run

    @torch.no_grad()
    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        model = self._predictor.model
        back = torch.stack([views[-1] for views in prepared])
        front = torch.stack([views[0] for views in prepared]) if len(self.fields) == 2 else None
        if self._run is not None and not explain:  # the graph does not output damage scores
            views = [back] if front is None or not bool(model.both) else [back, front]
            chances = self._run(views)[0]
        else:
            seen = model(back, front)
            chances = model.probabilities(seen)
        answers = [
            self._predictor.describe_grade(grade, row.tolist())
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
