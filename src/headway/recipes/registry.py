"""The recipes that ship with Headway, by name. Imports none of them: control checks their settings without their models.

A new recipe is one folder, one entry here (sorted), one job file in examples/, one folder of tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Training code that ships with Headway, as "module:name" strings that are imported on use."""

    name: str
    summary: str  # one line, for people who choose
    config: str  # a frozen dataclass; its module imports nothing heavy
    train: str  # (run, config) -> None
    evaluate: str  # (model, config, data, split) -> Evaluation
    restore: str  # (config, data, weights) -> BundleParts: a bundle from a checkpoint's weights
    predict: str  # (bundle) -> Predictor
    data_default: str  # what is trained on when the job names no data

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
        evaluate="headway.recipes.captioning.score:evaluate",
        restore="headway.recipes.captioning.predict:restore",
        predict="headway.recipes.captioning.predict:Predictor",
        data_default="builtin:scenes",
    ),
}
