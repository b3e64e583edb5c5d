"""A recipe's model behind the verbs, from a bundle or a checkpoint of a run. Knows no recipe by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.artifacts.evaluate import Evaluation, data_override
from headway.artifacts.predictor import PredictionService, load_from_bundle, open_service
from headway.core.errors import BadInput
from headway.plugins import Recipe
from headway.spec.model import Cache, Data

if TYPE_CHECKING:
    from headway.artifacts.checkpoint_model import CheckpointModel
    from headway.artifacts.onnx import Graph
    from headway.bundle.format import Bundle


# By the kind of data that a recipe learns from.
_VERBS = {"captions": "Describe", "classes": "Classify", "grades": "Grade", "translation": "Translate"}


class BundledRecipe:
    """A recipe's model in a bundle. Methods are those of `headway.artifacts.models.LoadedModel`."""

    def __init__(self, recipe: Recipe, bundle: Bundle) -> None:
        self._recipe, self.bundle = recipe, bundle
        self.name, self.kind = bundle.name, recipe.name
        self.metrics: Mapping[str, float] = bundle.metrics
        self.about: Mapping[str, Any] = {"bundle": bundle.url, "validation": dict(bundle.metrics)}

    @property
    def outputs(self) -> Sequence[Mapping[str, Any]]:
        return ()

    @property
    def verb(self) -> str:
        return _VERBS.get(self._recipe.task, "Run")

    @cached_property
    def _predictor(self) -> Any:
        return load_from_bundle(self._recipe, "predictor", self.bundle)

    def service(self) -> PredictionService:
        return open_service(self.bundle)

    def answers(self, inputs: Sequence[str]) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = self._predictor(list(inputs))
        return made

    def evaluate(self, split: str, data: str | None, root: str | None) -> Evaluation:
        predictor = self._predictor
        with data_override(data, root, split, predictor.config, otherwise=Data()) as read:
            found: Evaluation = self._recipe.load("evaluate")(predictor.model, predictor.config, read, split)
        return found

    def graphs(self) -> Sequence[Graph]:
        return _graphs(self._recipe, self._predictor.model, self._predictor.config)

    def companions(self) -> dict[str, bytes]:
        return {name: self.bundle.read(name) for name in self.bundle.record.files if _is_companion(name)}


class TrainedRecipe:
    """A recipe's model in a checkpoint of a run, as for `BundledRecipe`, which answers and serves, too."""

    def __init__(self, trained: CheckpointModel) -> None:
        self._trained = trained
        self.kind, self.metrics = trained.recipe.name, trained.scores
        self.about: Mapping[str, Any] = {
            "checkpoint": trained.checkpoint,
            "step": trained.step,
            "validation": dict(trained.scores),
            "environment": dict(trained.environment),
        }

    @cached_property
    def _parts(self) -> Any:
        return self._trained.bundle()

    @property
    def name(self) -> str:
        return str(self._parts.name)

    def evaluate(self, split: str, data: str | None, root: str | None) -> Evaluation:
        trained = self._trained
        with data_override(data, root, split, trained.config, otherwise=trained.job.data) as read:
            found: Evaluation = trained.recipe.load("evaluate")(
                trained.model, trained.config, read, split, cache=_cache_here(trained.job.cache)
            )
        return found

    def graphs(self) -> Sequence[Graph]:
        return _graphs(self._trained.recipe, self._trained.model, self._trained.config)

    def companions(self) -> dict[str, bytes]:
        return {name: body for name, body in self._parts.files.items() if _is_companion(name)}


def _graphs(recipe: Recipe, model: Any, config: Any) -> Sequence[Graph]:
    if not recipe.graphs:
        raise BadInput(
            f"{recipe.name} cannot be exported as a graph yet", fix="use the bundle, or --as pth for the weights"
        )
    return list(recipe.load("graphs")(model, config))


def _is_companion(name: str) -> bool:
    """Whether a program needs the file beside a graph: vocabularies and settings, but not the weights."""
    return name.endswith(".json") and name not in ("bundle.json", "config.json")


def _cache_here(cache: Cache) -> Cache:
    """Return the run's cache if its folder exists on this machine, else this machine's default."""
    return cache if cache.dir is None or Path(cache.dir).expanduser().is_dir() else replace(cache, dir=None)
