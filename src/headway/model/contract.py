"""`headway.Model`: the class that a project writes so that every verb works on its model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headway.model.types import Input, Output

if TYPE_CHECKING:
    from headway.artifacts.onnx import Graph


@dataclass(frozen=True)
class Scores:
    """The result of `Model.evaluate`: a value per sample and metric, so that eval and compare can give intervals.

    Args:
        samples: Values by metric, one per sample, in the order of the data. The metric is their mean.
        metrics: Further metrics that are no means, such as an AUC. They get no interval.
        data: What it was measured on, in a few words. By default the name of the data.

    Example:
        >>> import headway
        >>> headway.Scores({"accuracy": [1, 0, 1, 1]}).means()
        {'accuracy': 0.75}
    """

    samples: Mapping[str, Sequence[float]]
    metrics: Mapping[str, float] = field(default_factory=dict)
    data: str = ""

    def means(self) -> dict[str, float]:
        """Return all metrics.

        Returns:
            The mean of each metric's samples, and the further metrics.
        """
        means = {name: sum(map(float, values)) / len(values) for name, values in self.samples.items() if len(values)}
        return {**means, **{name: float(value) for name, value in self.metrics.items()}}


class Model:
    """A trained model behind Headway's verbs: eval, compare, export, predict, serve.

    Write a subclass in your project and name it in the job file, `model: src.serving:Grader`, or pass it to
    `run.finish(model=Grader)`. Only `load` and `predict` are needed. Methods run in one thread at a time.

    Attributes:
        inputs: Types of the inputs by name.
        outputs: Types of the outputs by name.
        files: Patterns of the files of the run that `load` needs. Empty: all that the run has kept.

    Example:
        >>> import headway
        >>> class Price(headway.Model):
        ...     inputs = {"flat": headway.Row(["rooms", "area"])}
        ...     outputs = {"rent": headway.Number(unit="EUR")}
        ...
        ...     def load(self, folder):
        ...         self.weights = [50.0, 9.0]  # from a file in `folder`
        ...
        ...     def predict(self, batch):
        ...         return [{"rent": sum(w * x for w, x in zip(self.weights, each["flat"].values()))} for each in batch]
        >>> model = Price()
        >>> model.load(None)
        >>> model.predict([{"flat": {"rooms": 2.0, "area": 50.0}}])
        [{'rent': 550.0}]
    """

    inputs: ClassVar[Mapping[str, Input]] = {}
    outputs: ClassVar[Mapping[str, Input | Output]] = {}
    files: ClassVar[Sequence[str]] = ()

    def load(self, folder: Path) -> None:
        """Load the model. Called once, before anything else.

        Args:
            folder: The run's files under the paths that the program gave them. Of a run with `headway.start` also
                `model.safetensors`, the best weights, and `config.json`, the job's config.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method load(self, folder)")

    def predict(self, batch: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
        """Answer a batch.

        Args:
            batch: One mapping per sample, from the names of `inputs` to values of their types.

        Returns:
            One mapping per sample, from the names of `outputs` to values of their types; with a single output, the
            values alone will do.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method predict(self, batch)")

    def stream(self, sample: Mapping[str, Any]) -> Iterator[str]:
        """Answer one sample piece by piece, for models that write text. By default in one piece.

        Args:
            sample: A mapping as in a batch.

        Yields:
            The next part of the text.
        """
        (answer,) = self.predict([sample])
        yield str(next(iter(answer.values())) if isinstance(answer, Mapping) else answer)

    def evaluate(self, data: Mapping[str, Path]) -> Scores:
        """Score the model on data of your own format. By default `headway eval` reads a table and scores the outputs.

        Args:
            data: Paths by name: the job's `data`, and the split that is evaluated (`test`).

        Returns:
            Scores per sample.
        """
        raise NotImplementedError

    def graph(self) -> Graph | Sequence[Graph]:
        """Return the model as a graph for `export --as onnx` and `pt2`. By default it has none.

        Returns:
            A `headway.Graph`, or several that a program calls.
        """
        raise NotImplementedError

    @classmethod
    def implements(cls, method: str) -> bool:
        """Return whether the subclass has an own version of an optional method.

        Args:
            method: `evaluate`, `graph` or `stream`.

        Returns:
            Whether it was overridden.

        Example:
            >>> import headway
            >>> headway.Model.implements("graph")
            False
        """
        return getattr(cls, method) is not getattr(Model, method)
