"""Export of a classifier as a bundle, and prediction and serving from a bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from headway.artifacts.media import open_picture
from headway.artifacts.onnx import Graph
from headway.artifacts.predictor import Answer, Field, Instance, Run
from headway.bundle.format import Bundle, BundleParts
from headway.core.errors import BadBundle
from headway.recipes.bundling import CardText, bundle_parts
from headway.recipes.classification.config import Config
from headway.recipes.classification.model import Classifier
from headway.recipes.common import center_crop, load_weights
from headway.spec import Job
from headway.spec.loading import from_plain

CLASSES: Final = "classes.json"
_AT_ONCE: Final = 64  # batch size


def bundle(model: Classifier, cfg: Config, job: Job, scores: Mapping[str, float]) -> BundleParts:
    """Collect weights, config, class names and model card. `scores` are the validation scores of these weights."""
    from headway.recipes.classification.data import LEAVES  # imports data dependencies that a server lacks

    size = f"({cfg.model_size})" if cfg.model == "alexnet" else f"initialized with weights `{cfg.weights}`"
    text = CardText(
        summary=f"Assigns a picture to one of {len(model.classes)} classes. Model `{cfg.model}` {size}.",
        example="picture.png",
        generated=(LEAVES, "The drawn leaves are"),
        files={CLASSES: "the classes in the order of their numbers"},
        inputs=f"Pictures are cropped to their centre square and resized to {cfg.image_size} pixels a side.",
        limits=(
            "It knows these classes and pictures like those it was trained on. It assigns every other picture to one "
            "of them, too."
        ),
    )
    files = {CLASSES: (json.dumps(list(model.classes), indent=1, ensure_ascii=False) + "\n").encode()}
    return bundle_parts(model, cfg, job, scores, recipe="classification", files=files, text=text)


class Predictor:
    """Classifies picture files with the model of a bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self.config = from_plain(bundle.config, Config, where=f"{bundle.url}/config.json")
        self.model = Classifier(self.config, _classes(bundle), published=False)
        load_weights(self.model, bundle)

    @property
    def side(self) -> int:
        """Side of the square input pictures, in pixels."""
        return self.config.image_size

    def __call__(self, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """Classify files: one {"input", "text", "classes"} per input, in order.

        All are read before the first is classified.
        """
        found = self.probabilities([center_crop(open_picture(path), self.side) for path in inputs])
        return [{"input": path, **self.answer(row)} for path, row in zip(inputs, found, strict=True)]

    def probabilities(self, pictures: Sequence[Tensor]) -> list[Tensor]:
        """Return class probabilities for preprocessed pictures, uint8 (3, side, side)."""
        found: list[Tensor] = []
        with torch.inference_mode():
            for first in range(0, len(pictures), _AT_ONCE):
                together = torch.stack(list(pictures[first : first + _AT_ONCE]))
                found += list(self.model(together).softmax(dim=1))
        return found

    def answer(self, row: Tensor) -> dict[str, Any]:
        """Return the likeliest class as text, and the top classes with probabilities."""
        chances, numbers = row.topk(min(self.config.top, len(row)))
        names = [self.model.classes[number] for number in numbers.tolist()]
        listed = [{"class": name, "probability": round(p, 4)} for name, p in zip(names, chances.tolist(), strict=True)]
        return {"text": f"{names[0]} ({100 * float(chances[0]):.0f} %)", "classes": listed}


def _classes(bundle: Bundle) -> list[str]:
    try:
        found = json.loads(bundle.read(CLASSES))
    except ValueError as error:
        raise BadBundle(f"{CLASSES} is damaged: {error}", where=bundle.url, fix="export it again") from None
    return [str(name) for name in found]


# Serving: classes for requests, with an occlusion saliency map on demand.


_CELLS = 8  # cells per side of the saliency map


class ClassService:
    fields = (Field(name="image", kind="picture", summary="a picture"),)

    def __init__(self, bundle: Bundle) -> None:
        self._predictor = Predictor(bundle)
        self._run: Run | None = None

    def graph(self) -> Graph:
        from headway.recipes.classification.model import graphs

        (whole,) = graphs(self._predictor.model, self._predictor.config)
        return whole

    def use(self, run: Run) -> None:
        self._run = run

    def prepare(self, instance: Instance) -> Tensor:
        return center_crop(Image.fromarray(instance["image"]), self._predictor.side)

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
        """Return the drop in confidence when each cell is greyed out (occlusion). Works for any model."""
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
