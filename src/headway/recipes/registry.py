"""The recipes that ship with Headway, by name. Imports none of them: settings are checked without their models.

A new recipe is one folder, one entry here (sorted), one job file in examples/, one folder of tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal

from headway.errors import BadBundle


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Training code that ships with Headway, as "module:name" strings that are imported on use."""

    name: str
    summary: str  # one line, for people who choose
    config: str  # a frozen dataclass; its module imports nothing heavy
    train: str  # (run, config): the loop
    rebuild: str  # (config, state of the model in a checkpoint) -> model
    bundle: str  # (model, config, job, scores) -> BundleParts
    evaluate: str  # (model, config, data, split, cache=…) -> Evaluation
    predictor: str  # (bundle) -> something that turns a list of inputs into a list of answers
    data_default: str  # what is trained on when the job names no data
    graphs: str = ""  # (model, config) -> the graphs that ONNX and torch.export get; none where there are none yet
    takes: Literal["pictures", "text"] = "pictures"  # what `headway predict` is given: files, or what is typed
    phases: bool = False  # whether it trains in the phases that a job names
    extras: tuple[str, ...] = ()  # parts of Headway it needs besides `train`

    def load_config(self) -> type[Any]:
        """The dataclass of its settings. Imports nothing heavy."""
        loaded = self.load("config")
        assert isinstance(loaded, type)
        return loaded

    def load(self, attribute: str) -> Any:
        """What one of the strings above names."""
        module, _, name = getattr(self, attribute).partition(":")
        return getattr(import_module(module), name)


RECIPES: Final[dict[str, Recipe]] = {
    "captioning": Recipe(
        name="captioning",
        summary="say what a picture shows",
        config="headway.recipes.captioning.config:Config",
        train="headway.recipes.captioning.train:train",
        rebuild="headway.recipes.captioning.model:rebuild",
        bundle="headway.recipes.captioning.predict:bundle",
        evaluate="headway.recipes.captioning.score:evaluate",
        predictor="headway.recipes.captioning.predict:Predictor",
        graphs="headway.recipes.captioning.graphs:graphs",
        data_default="builtin:scenes",
    ),
    "classification": Recipe(
        name="classification",
        summary="say to which class a picture belongs",
        config="headway.recipes.classification.config:Config",
        train="headway.recipes.classification.train:train",
        rebuild="headway.recipes.classification.model:rebuild",
        bundle="headway.recipes.classification.predict:bundle",
        evaluate="headway.recipes.classification.score:evaluate",
        predictor="headway.recipes.classification.predict:Predictor",
        graphs="headway.recipes.classification.graphs:graphs",
        data_default="builtin:leaves",
        extras=("data",),
    ),
    "grading": Recipe(
        name="grading",
        summary="grade a thing by pictures of its front and back, or by one",
        config="headway.recipes.grading.config:Config",
        train="headway.recipes.grading.train:train",
        rebuild="headway.recipes.grading.model:rebuild",
        bundle="headway.recipes.grading.predict:bundle",
        evaluate="headway.recipes.grading.score:evaluate",
        predictor="headway.recipes.grading.predict:Predictor",
        graphs="headway.recipes.grading.graphs:graphs",
        data_default="builtin:cards",
        phases=True,
    ),
    "translation": Recipe(
        name="translation",
        summary="say a sentence in another language",
        config="headway.recipes.translation.config:Config",
        train="headway.recipes.translation.train:train",
        rebuild="headway.recipes.translation.model:rebuild",
        bundle="headway.recipes.translation.predict:bundle",
        evaluate="headway.recipes.translation.score:evaluate",
        predictor="headway.recipes.translation.predict:Predictor",
        graphs="headway.recipes.translation.graphs:graphs",
        data_default="builtin:phrases",
        takes="text",
        extras=("translation",),
    ),
}


def require_recipe(name: str, *, where: str) -> Recipe:
    """The recipe that a bundle names. BadBundle for one that this Headway does not have."""
    if name not in RECIPES:
        raise BadBundle(
            f"it is of the recipe {name[:100]!r}, which this Headway does not have",
            where=where,
            fix="use the Headway that exported it, or a newer one",
        )
    return RECIPES[name]
