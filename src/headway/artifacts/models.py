"""Open the model that a run, a bundle or a file of weights holds, for every verb: `eval export predict serve deploy`.

The verbs see a `LoadedModel` and know neither recipes nor the project's class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from headway.artifacts.evaluate import Evaluation, bundle_of, program_has_no_model
from headway.artifacts.use import WEIGHT_FILES
from headway.bundle.format import RECORD, Bundle, read_record
from headway.core.errors import NotThere
from headway.plugins import require_recipe
from headway.rundir.layout import PLAN, RunFolder
from headway.storage import join, open_store

if TYPE_CHECKING:
    from headway.artifacts.onnx import Graph
    from headway.artifacts.own_model import Choice
    from headway.artifacts.predictor import PredictionService
    from headway.bundle.format import Record


class ScoredModel(Protocol):
    """A model at a checkpoint: what `eval` and `export --as onnx` need."""

    kind: str  # name of the recipe, or of the class
    metrics: Mapping[str, float]  # of its validation in training
    about: Mapping[str, Any]  # where it comes from, for the report

    @property
    def name(self) -> str: ...

    def evaluate(self, split: str, data: str | None, root: str | None) -> Evaluation: ...

    def graphs(self) -> Sequence[Graph]:
        """Return its graphs. Raises BadInput if it has none."""
        ...

    def companions(self) -> dict[str, bytes]:
        """Return the files that a program needs beside a graph: vocabularies and settings."""
        ...


class LoadedModel(ScoredModel, Protocol):
    """A model that answers: what `predict` and `serve` need."""

    @property
    def outputs(self) -> Sequence[Mapping[str, Any]]:
        """The declared outputs, for the try-out page. A recipe's page draws its answers' own fields."""
        ...

    @property
    def verb(self) -> str:
        """The word on the button of the try-out page."""
        ...

    def answers(self, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """Answer inputs as typed on the command line, each with at least `input` and `text`."""
        ...

    @property
    def bundle(self) -> Bundle | None:
        """The bundle of a recipe's model, whose graph a server may cache."""
        ...

    def service(self) -> PredictionService: ...


def open_model(ref: str, choice: Choice) -> LoadedModel:
    """Open a model to ask it: a bundle, the bundle or the program's model of a run, or a file of weights."""
    from headway.artifacts.own_model import open_file, open_own
    from headway.artifacts.recipe_model import BundledRecipe

    if is_weight_file(ref):
        return open_file(ref, choice)
    if not is_own(ref, choice):
        bundle = Bundle.open(bundle_of(ref))
        return BundledRecipe(require_recipe(bundle.recipe, where=bundle.url), bundle)
    inside = join(ref, "export")
    exported = choice.model is None and _has(ref, PLAN) and _record_at(inside) is not None
    return open_own(inside if exported else ref, choice)


def open_checkpoint(ref: str, choice: Choice, checkpoint: str) -> ScoredModel:
    """Open a model to score it or export its graph: a checkpoint of a run, a bundle, or a file of weights."""
    from headway.artifacts.own_model import open_file, open_own

    if is_weight_file(ref):
        return open_file(ref, choice)
    if is_own(ref, choice):
        return open_own(ref, choice, checkpoint)
    if _has(ref, RECORD):
        return open_model(ref, choice)
    from headway.artifacts.checkpoint_model import open_trained
    from headway.artifacts.recipe_model import TrainedRecipe

    return TrainedRecipe(open_trained(ref, checkpoint))


def is_own(ref: str, choice: Choice) -> bool:
    """Whether a run's or bundle's model is of a class of the user's project. Raises BadInput if nothing names one."""
    if _has(ref, RECORD):
        return choice.model is not None or _record_at(ref).model is not None  # type: ignore[union-attr]
    if not _has(ref, PLAN):
        return False  # neither a bundle nor a run: opening it says so
    run = RunFolder(open_store(ref))
    job = run.plan().job
    if job.get("recipe"):
        return False
    record = _record_at(join(ref, "export"))
    if not (choice.model or job.get("model") or (record is not None and record.model)):
        raise program_has_no_model(run.name)
    return True


def is_weight_file(ref: str) -> bool:
    return PurePosixPath(ref).suffix in WEIGHT_FILES


def _record_at(url: str) -> Record | None:
    return read_record(open_store(url), url) if _has(url, RECORD) else None


def _has(url: str, key: str) -> bool:
    try:
        open_store(url).stat(key)
    except NotThere:
        return False
    return True
