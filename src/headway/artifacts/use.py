"""Use a model from Python: `headway.evaluate` and `headway.load_model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import needs

if TYPE_CHECKING:
    from headway.artifacts.evaluate import Answer
    from headway.plugins import Recipe


def evaluate(
    ref: str,
    *,
    checkpoint: str = "best",
    split: str = "test",
    data: str | None = None,
    root: str | None = None,
) -> dict[str, Any]:
    """Evaluate the model of a run or a bundle, as `headway eval` does, on its own data or on `data`.

    For a run, both reports are written to its folder; a bundle is not changed.

    Args:
        ref: A run's name, folder or URL, or the folder or URL of a bundle.
        checkpoint: A run's checkpoint: a name such as `best` or `last`, or a step.
        split: The split to evaluate on.
        data: Other data: a prepared data set, or a splits.json. None: the run's own.
        root: The folder with the images of a splits.json.

    Returns:
        The contents of report.json: `metrics`, `count`, `data`, …

    Raises:
        BadInput: If there is no such split or checkpoint, or the model cannot be evaluated.

    Example:
        >>> import headway
        >>> headway.evaluate("runs/night", split="all")
        Traceback (most recent call last):
            ...
        headway.core.errors.BadInput: there is no split 'all'
            fix: choose one of train, val, test
    """
    with needs("train", "eval"):
        from headway.artifacts.evaluate import evaluate

        return evaluate(locate_model(ref), checkpoint=checkpoint, split=split, data=data, root=root)


def load_model(ref: str) -> PredictionModel:
    """Load an exported model to ask it, as `headway predict` does.

    Args:
        ref: A run's name, folder or URL, or the folder or URL of a bundle.

    Returns:
        The model.

    Raises:
        BadInput: If there is no model.
        BadBundle: If it is damaged, or of a recipe that is not installed.

    Example:
        >>> import headway
        >>> from headway.core.errors import BadInput
        >>> try:
        ...     headway.load_model("runs/night").predict("a sentence")
        ... except BadInput:
        ...     print("this run has exported no model")
        this run has exported no model
    """
    with needs("train", "predict"):
        from headway.artifacts.evaluate import open_predictor

        return PredictionModel(*open_predictor(locate_model(ref)))


class PredictionModel:
    """A loaded model, from `headway.load_model`.

    Args:
        recipe: The recipe that it is of.
        answer: Answers a list of inputs.

    Example:
        >>> from headway.artifacts.use import PredictionModel
        >>> from headway.plugins import RECIPES
        >>> backwards = lambda texts: [{"input": text, "text": text[::-1]} for text in texts]
        >>> model = PredictionModel(RECIPES["translation"], backwards)
        >>> model.predict("one", "two")
        [{'input': 'one', 'text': 'eno'}, {'input': 'two', 'text': 'owt'}]
    """

    def __init__(self, recipe: Recipe, answer: Answer) -> None:
        self._recipe, self._answer = recipe, answer

    @property
    def name(self) -> str:
        """Name of its recipe."""
        return self._recipe.name

    def predict(self, *inputs: str | Path) -> list[dict[str, Any]]:
        """Answer inputs, together in batches.

        Args:
            *inputs: Texts, or paths of files.

        Returns:
            For each input, in order, at least `input` and `text`.

        Raises:
            BadInput: If an input cannot be read. None is answered then.
        """
        return [dict(each) for each in self._answer([str(each) for each in inputs])]


def locate_model(ref: str) -> str:
    """Return the URL of the run or the bundle that a name, a folder or a URL means."""
    from headway.rundir.status import find
    from headway.storage import open_store

    if ("/" in ref or ref == ".") and any(entry.key == "bundle.json" for entry in open_store(ref).list("bundle.json")):
        return ref
    return find(ref).url
