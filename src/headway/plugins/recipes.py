"""The registry of recipes: training code, as "module:name" strings that are imported on use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

from headway.core.errors import BadBundle
from headway.plugins.registry import Registry, article, is_path, object_at, unknown_path


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Training code that ships with Headway, as "module:name" strings that are imported on use.

    Attributes:
        name: Value of `recipe` in the job file.
        summary: One line, to choose by.
        config: A frozen dataclass of its settings; its module imports nothing heavy.
        train: (run, config): the training loop.
        rebuild: (config, state of the model in a checkpoint) -> model.
        bundle: (model, config, job, scores) -> BundleParts.
        evaluate: (model, config, data, split, cache=…) -> Evaluation.
        predictor: (bundle) -> a callable that maps a list of inputs to a list of predictions.
        service: (bundle) -> a `PredictionService`, the model behind `headway serve`; empty if it cannot be served.
        task: The kind of prepared data that it learns from, such as `captions`; empty if it reads none.
        data_default: The training data if the job names none.
        graphs: (model, config) -> the graphs for ONNX and torch.export; empty if not supported.
        takes: Inputs of `headway predict`: `pictures` (files) or `text`.
        phases: Whether it trains in the phases that a job names.
        extras: Pip extras of Headway that it needs besides `train`.
        sizes: (config) -> the sizes of its model, such as `image_size` or `d_model`, from which pricing/estimate.py
            estimates the training time; empty if its settings have the names that are counted there.

    Example:
        >>> from headway.plugins import RECIPES
        >>> sorted(RECIPES)
        ['captioning', 'classification', 'grading', 'translation']
        >>> RECIPES["translation"].takes
        'text'
    """

    name: str
    summary: str  # one line, to choose by
    config: str  # a frozen dataclass; its module imports nothing heavy
    train: str  # (run, config): the training loop
    rebuild: str  # (config, state of the model in a checkpoint) -> model
    bundle: str  # (model, config, job, scores) -> BundleParts
    evaluate: str  # (model, config, data, split, cache=…) -> Evaluation
    predictor: str  # (bundle) -> a callable that maps a list of inputs to a list of predictions
    service: str = ""  # (bundle) -> a PredictionService, the model behind `headway serve`; empty if not supported
    task: str = ""  # the kind of prepared data that it learns from; empty if it reads none
    data_default: str  # the training data if the job names none
    graphs: str = ""  # (model, config) -> the graphs for ONNX and torch.export; empty if not supported yet
    takes: Literal["pictures", "text"] = "pictures"  # inputs of `headway predict`: files, or typed text
    phases: bool = False  # whether it trains in the phases that a job names
    extras: tuple[str, ...] = ()  # pip extras of Headway that it needs besides `train`
    sizes: str = ""  # (config) -> sizes of its model for pricing/estimate.py; empty if its settings have those names

    def load_config(self) -> type[Any]:
        """Import the dataclass of its settings. Imports nothing heavy.

        Returns:
            The dataclass.

        Example:
            >>> from headway.plugins import RECIPES
            >>> RECIPES["captioning"].load_config().__name__
            'Config'
        """
        loaded = self.load("config")
        assert isinstance(loaded, type)
        return loaded

    def template(self) -> Path | None:
        """Return the job file that `headway init` writes: template.yaml beside the module of its settings.

        Returns:
            The file; None if there is none.

        Example:
            >>> from headway.plugins import RECIPES
            >>> RECIPES["grading"].template().name
            'template.yaml'
        """
        package = import_module(self.config.partition(":")[0].rpartition(".")[0])
        path = Path(*package.__path__) / "template.yaml"
        return path if path.is_file() else None

    def load(self, attribute: str) -> Any:
        """Import the object that one of the attributes names.

        Args:
            attribute: Name of the attribute, such as `train`.

        Returns:
            The object.
        """
        return object_at(getattr(self, attribute))


_RECIPES: Final = {
    "captioning": Recipe(
        name="captioning",
        summary="describe a picture in one sentence",
        config="headway.recipes.captioning.config:Config",
        train="headway.recipes.captioning.train:train",
        rebuild="headway.recipes.captioning.model:rebuild",
        bundle="headway.recipes.captioning.inference:bundle",
        evaluate="headway.recipes.captioning.evaluate:evaluate",
        predictor="headway.recipes.captioning.inference:Predictor",
        service="headway.recipes.captioning.inference:CaptionService",
        task="captions",
        graphs="headway.recipes.captioning.onnx:graphs",
        data_default="builtin:scenes",
        sizes="headway.recipes.captioning.config:sizes",
    ),
    "classification": Recipe(
        name="classification",
        summary="assign a picture to a class",
        config="headway.recipes.classification.config:Config",
        train="headway.recipes.classification.train:train",
        rebuild="headway.recipes.classification.model:rebuild",
        bundle="headway.recipes.classification.inference:bundle",
        evaluate="headway.recipes.classification.evaluate:evaluate",
        predictor="headway.recipes.classification.inference:Predictor",
        service="headway.recipes.classification.inference:ClassService",
        task="classes",
        graphs="headway.recipes.classification.model:graphs",
        data_default="builtin:leaves",
        sizes="headway.recipes.classification.config:sizes",
        extras=("data",),
    ),
    "grading": Recipe(
        name="grading",
        summary="grade an item from pictures of its front and back, or from one picture",
        config="headway.recipes.grading.config:Config",
        train="headway.recipes.grading.train:train",
        rebuild="headway.recipes.grading.model:rebuild",
        bundle="headway.recipes.grading.inference:bundle",
        evaluate="headway.recipes.grading.evaluate:evaluate",
        predictor="headway.recipes.grading.inference:Predictor",
        service="headway.recipes.grading.inference:GradeService",
        task="grades",
        graphs="headway.recipes.grading.model:graphs",
        data_default="builtin:cards",
        phases=True,
        sizes="headway.recipes.grading.config:sizes",
    ),
    "translation": Recipe(
        name="translation",
        summary="translate sentences into another language",
        config="headway.recipes.translation.config:Config",
        train="headway.recipes.translation.train:train",
        rebuild="headway.recipes.translation.model:rebuild",
        bundle="headway.recipes.translation.inference:bundle",
        evaluate="headway.recipes.translation.evaluate:evaluate",
        predictor="headway.recipes.translation.inference:Predictor",
        service="headway.recipes.translation.inference:TranslationService",
        task="translation",
        graphs="headway.recipes.translation.onnx:graphs",
        data_default="builtin:phrases",
        takes="text",
        extras=("translation",),
        sizes="headway.recipes.translation.config:sizes",
    ),
}


def _recipe(name: str, path: str, load: Callable[[], Any]) -> Recipe:
    found = load()
    if not isinstance(found, Recipe):
        raise TypeError(f"it must be a headway.plugins.Recipe, not {article(found)}")
    return found if found.name == name else replace(found, name=name)


RECIPES: Final = Registry("recipes", "recipe", _RECIPES, _recipe)


def require_recipe(name: str, *, where: str) -> Recipe:
    """Return the recipe that a bundle names.

    Args:
        name: The recipe's name.
        where: The bundle's location, for the error message.

    Returns:
        The recipe.

    Raises:
        BadBundle: If this Headway does not have it.

    Example:
        >>> from headway.plugins import require_recipe
        >>> require_recipe("grading", where="export").phases
        True
    """
    if name not in RECIPES:
        if is_path(name):
            raise unknown_path(name)
        raise BadBundle(
            f"it is of the recipe {name[:100]!r}, which this Headway does not have",
            where=where,
            fix="use the Headway that exported it, or a newer one",
        )
    return RECIPES[name]
