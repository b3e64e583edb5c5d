"""Use a model from Python: `headway.evaluate` and `headway.load_model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import needs

WEIGHT_FILES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")

if TYPE_CHECKING:
    from headway.artifacts.models import LoadedModel


def evaluate(
    ref: str,
    *,
    checkpoint: str = "best",
    split: str = "test",
    data: str | None = None,
    root: str | None = None,
    model: str | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Evaluate the model of a run or a bundle, as `headway eval` does, on its own data or on `data`.

    For a run, both reports are written to its folder; a bundle is not changed.

    Args:
        ref: A run's name, folder or URL, or the folder or URL of a bundle.
        checkpoint: A run's checkpoint: a name such as `best` or `last`, or a step.
        split: The split to evaluate on.
        data: Other data: a prepared data set, or a splits.json. None: the run's own.
        root: The folder with the images of a splits.json.
        model: Your own model's class, as "module:Class". None: the one that the run or the bundle names.
        trust: Whether code that came with the run or the bundle may run.

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
        from headway.artifacts.own_model import Choice

        choice = Choice(model=model, trust=trust)
        return evaluate(locate_model(ref), checkpoint=checkpoint, split=split, data=data, root=root, choice=choice)


def load_model(ref: str, *, model: str | None = None, trust: bool = False) -> PredictionModel:
    """Load a model to ask it, as `headway predict` does.

    Args:
        ref: A run's name, folder or URL, the folder or URL of a bundle, or a file of weights.
        model: Your own model's class, as "module:Class". None: the one that the run or the bundle names.
        trust: Whether code that came with the run or the bundle may run.

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
        from headway.artifacts.models import open_model
        from headway.artifacts.own_model import Choice

        return PredictionModel(open_model(locate_model(ref), Choice(model=model, trust=trust)))


class PredictionModel:
    """A loaded model, from `headway.load_model`.

    Args:
        model: The model.

    Example:
        >>> import headway
        >>> def reverse(ref: str) -> list[str]:
        ...     return [answer["text"] for answer in headway.load_model(ref).predict("one", "two")]
    """

    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._model.name

    @property
    def kind(self) -> str:
        """Name of its recipe, or of its class."""
        return self._model.kind

    def predict(self, *inputs: str | Path) -> list[dict[str, Any]]:
        """Answer inputs, together in batches.

        Args:
            *inputs: Texts, or paths of files.

        Returns:
            For each input, in order, at least `input` and `text`.

        Raises:
            BadInput: If an input cannot be read. None is answered then.
        """
        return [dict(each) for each in self._model.answers([str(each) for each in inputs])]


def locate_model(ref: str) -> str:
    """Return the URL of the run, the bundle or the file of weights that a name, a folder or a URL means."""
    from headway.rundir.status import find
    from headway.storage import open_store

    if ref.endswith(WEIGHT_FILES):
        return ref
    if ("/" in ref or ref == ".") and any(entry.key == "bundle.json" for entry in open_store(ref).list("bundle.json")):
        return ref
    return find(ref).url
