"""Classification metrics: accuracy, top-k, per class, by groups of classes, macro F1, calibration.

    scores = ClassificationScores(["apple healthy", "apple scab"], groups={"apple healthy": "healthy", …})
    for batch in batches:
        scores.add(labels, probabilities=softmax)
    scores.report()["macro_f1"]

All scores are ratios of sums over batches and ranks, never means of means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headway.core.errors import BadInput

# Confusion matrix, accumulated over batches and ranks.


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Confusion:
    """A confusion matrix, accumulated over batches and ranks. Classes are numbered from 0.

    Args:
        classes: Number of classes.
        counts: counts[i, j]: how often class i was predicted as class j. By default all 0.

    Raises:
        BadInput: If `counts` is not classes × classes, or there is no class.

    Example:
        >>> from headway.metrics.classification import Confusion
        >>> confusion = Confusion(2)
        >>> confusion.add(labels=[0, 0, 1, 1], predictions=[0, 1, 1, 1])
        >>> confusion.counts.tolist(), confusion.accuracy(), confusion.recall()
        ([[1, 1], [0, 2]], 0.75, [0.5, 1.0])
    """

    def __init__(self, classes: int, counts: ArrayLike | None = None) -> None:
        if classes < 1:
            raise BadInput(f"a confusion matrix needs at least one class, not {classes}")
        given = np.zeros((classes, classes), np.int64) if counts is None else np.array(counts, np.int64)
        if given.shape != (classes, classes):
            raise BadInput(f"the counts of {classes} classes are {classes} × {classes}, not {given.shape}")
        self.classes, self.counts = classes, given

    def add(self, labels: ArrayLike, predictions: ArrayLike) -> None:
        """Count a batch.

        Args:
            labels: The true class number of each sample.
            predictions: The predicted class number of each sample.

        Raises:
            BadInput: If their lengths differ, or a number is not a class.
        """
        truth = class_numbers("labels", labels, self.classes)
        guess = class_numbers("predictions", predictions, self.classes)
        if len(truth) != len(guess):
            raise BadInput(f"{len(guess)} predictions for {len(truth)} labels")
        cells = np.bincount(truth * self.classes + guess, minlength=self.classes**2)
        self.counts += cells.reshape(self.classes, self.classes)

    def __add__(self, other: Confusion) -> Confusion:
        """Return the sum of both, for two ranks or two validation sets."""
        return Confusion(self.classes, self.counts + other.counts)

    @property
    def total(self) -> int:
        """Number of samples counted."""
        return int(self.counts.sum())

    def accuracy(self) -> float:
        """Return the share of samples that were predicted correctly.

        Returns:
            A number from 0 to 1.

        Raises:
            BadInput: If nothing was counted.
        """
        return _ratio(int(np.trace(self.counts)), self._not_empty())

    def recall(self) -> list[float | None]:
        """Return the recall per class.

        Returns:
            One number per class; None for a class without samples.
        """
        return _ratios(np.diag(self.counts), self.counts.sum(1))

    def precision(self) -> list[float | None]:
        """Return the precision per class.

        Returns:
            One number per class; None for a class that was never predicted.
        """
        return _ratios(np.diag(self.counts), self.counts.sum(0))

    def f1(self) -> list[float | None]:
        """Return F1 per class: twice the hits over samples plus predictions.

        Returns:
            One number per class; None for a class with neither.
        """
        return _ratios(2 * np.diag(self.counts), self.counts.sum(1) + self.counts.sum(0))

    def macro_f1(self) -> float:
        """Return the mean F1 of the classes that have samples or predictions. Other classes do not count.

        Returns:
            A number from 0 to 1.

        Raises:
            BadInput: If nothing was counted.
        """
        self._not_empty()
        return float(np.mean([value for value in self.f1() if value is not None]))

    def balanced_accuracy(self) -> float:
        """Return the mean recall of the classes that have samples.

        Returns:
            A number from 0 to 1.

        Raises:
            BadInput: If nothing was counted.
        """
        self._not_empty()
        return float(np.mean([value for value in self.recall() if value is not None]))

    def grouped(self, group: Sequence[int]) -> Confusion:
        """Return the matrix with classes merged into groups, for example healthy and sick.

        Args:
            group: The group's number of each class.

        Returns:
            The smaller matrix.

        Raises:
            BadInput: If there is not one group per class.

        Example:
            >>> from headway.metrics.classification import Confusion
            >>> confusion = Confusion(3, [[5, 0, 0], [0, 3, 1], [0, 2, 4]])
            >>> confusion.grouped([0, 1, 1]).counts.tolist()
            [[5, 0], [0, 10]]
        """
        if len(group) != self.classes:
            raise BadInput(f"{len(group)} groups given for {self.classes} classes")
        wanted = np.asarray(group, np.int64)
        size = int(wanted.max()) + 1
        put = np.zeros((self.classes, size), np.int64)
        put[np.arange(self.classes), wanted] = 1
        return Confusion(size, put.T @ self.counts @ put)

    def _not_empty(self) -> int:
        if not self.total:
            raise BadInput("there is no score: no samples were added")
        return self.total


def class_numbers(what: str, given: ArrayLike, classes: int) -> Ints:
    """Validate a flat array of class numbers.

    Args:
        what: What the numbers are, for the error message.
        given: The numbers: integers within 0 … classes - 1, also as floats.
        classes: Number of classes.

    Returns:
        The numbers as int64.

    Raises:
        BadInput: If they are anything else.

    Example:
        >>> from headway.metrics.classification import class_numbers
        >>> class_numbers("labels", [0, 2.0, 1], classes=3).tolist()
        [0, 2, 1]
    """
    values = np.asarray(given)
    if values.ndim != 1:
        raise BadInput(f"{what} must be one class number each, not an array of shape {values.shape}")
    if values.size == 0:
        return np.zeros(0, np.int64)
    if values.dtype.kind == "f" and np.array_equal(values, np.floor(values)):
        values = values.astype(np.int64)  # 3.0 means 3; NaN and 3.5 do not pass
    if values.dtype.kind not in "iu":
        raise BadInput(f"{what} must be whole numbers, not {values.dtype}")
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= classes:
        raise BadInput(f"{what} must be between 0 and {classes - 1}, but {low if low < 0 else high} is among them")
    return values.astype(np.int64, copy=False)


def _ratio(part: int, whole: int) -> float:
    return part / whole


def _ratios(parts: Ints, wholes: Ints) -> list[float | None]:
    pairs = zip(parts.tolist(), wholes.tolist(), strict=True)
    return [part / whole if whole else None for part, whole in pairs]


# Calibration: confidence against accuracy in bins of equal width, summed over batches.


_TOLERANCE = 1e-3  # allowed deviation of a sample's probability sum from 1: float16 is not more precise


@dataclass(frozen=True, slots=True)
class Bin:
    """Samples whose confidence lies in (low, high].

    Attributes:
        low: Lower edge.
        high: Upper edge.
        samples: Number of samples.
        confidence: Mean confidence; None without samples.
        accuracy: Share of correct predictions; None without samples.
    """

    low: float
    high: float
    samples: int
    confidence: float | None  # mean over the samples
    accuracy: float | None


class Calibration:
    """Reliability of the predicted class's probability, in bins of equal width, summed over batches.

    Args:
        bins: Number of bins.

    Raises:
        BadInput: If there is no bin.

    Example:
        >>> from headway.metrics.classification import Calibration
        >>> calibration = Calibration(bins=10)
        >>> calibration.add([[0.75, 0.25], [0.75, 0.25]], labels=[0, 1])
        >>> calibration.expected_error()
        0.25
    """

    def __init__(self, bins: int = 15) -> None:
        if bins < 1:
            raise BadInput(f"calibration needs at least one bin, not {bins}")
        self.bins = bins
        self.samples = np.zeros(bins, np.int64)
        self.right = np.zeros(bins, np.int64)
        self.confidence = np.zeros(bins)

    def add(self, probabilities: ArrayLike, labels: ArrayLike, predictions: ArrayLike | None = None) -> None:
        """Count a batch.

        Args:
            probabilities: samples × classes, each row summing to 1.
            labels: The true class number of each sample.
            predictions: The predicted class number of each sample. None: the likeliest class.

        Raises:
            BadInput: If the lengths differ, or the values are not probabilities or classes.
        """
        given = probability_rows(probabilities)
        truth = class_numbers("labels", labels, given.shape[1])
        guess = given.argmax(1) if predictions is None else class_numbers("predictions", predictions, given.shape[1])
        if not len(truth) == len(guess) == len(given):
            raise BadInput(f"{len(given)} rows of probabilities for {len(truth)} labels and {len(guess)} predictions")
        confidence = given[np.arange(len(given)), guess]
        # Bins include their upper edge: 1.0 belongs to the last, 0.0 to the first.
        place = np.clip(np.ceil(confidence * self.bins).astype(np.int64) - 1, 0, self.bins - 1)
        self.samples += np.bincount(place, minlength=self.bins)
        self.right += np.bincount(place[guess == truth], minlength=self.bins)
        self.confidence += np.bincount(place, weights=confidence, minlength=self.bins)

    def __add__(self, other: Calibration) -> Calibration:
        if self.bins != other.bins:
            raise BadInput(f"{self.bins} and {other.bins} bins cannot be added")
        both = Calibration(self.bins)
        both.samples, both.right = self.samples + other.samples, self.right + other.right
        both.confidence = self.confidence + other.confidence
        return both

    def expected_error(self) -> float:
        """Return the expected calibration error: |confidence - accuracy| averaged over bins, weighted by samples.

        Returns:
            A number from 0 to 1.

        Raises:
            BadInput: If nothing was counted.
        """
        total = int(self.samples.sum())
        if not total:
            raise BadInput("there is no calibration: no samples were added")
        return float(np.abs(self.confidence - self.right).sum() / total)

    def table(self) -> list[Bin]:
        """Return every bin, including empty ones.

        Returns:
            The bins from low to high confidence.
        """
        edges = np.linspace(0.0, 1.0, self.bins + 1).tolist()
        rows = zip(self.samples.tolist(), self.confidence.tolist(), self.right.tolist(), strict=True)
        return [
            Bin(edges[i], edges[i + 1], n, confidence / n if n else None, right / n if n else None)
            for i, (n, confidence, right) in enumerate(rows)
        ]


def probability_rows(given: ArrayLike) -> Floats:
    """Validate rows of probabilities that sum to one.

    Args:
        given: samples × classes.

    Returns:
        The probabilities as float64.

    Raises:
        BadInput: If they are not finite, below 0, or do not sum to 1.

    Example:
        >>> from headway.metrics.classification import probability_rows
        >>> probability_rows([[0.5, 0.5]]).shape
        (1, 2)
    """
    rows = np.asarray(given, np.float64)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise BadInput(f"probabilities must be samples × classes, not an array of shape {rows.shape}")
    if not np.isfinite(rows).all() or (rows < 0).any():
        raise BadInput("probabilities must be finite and not below 0", fix="apply softmax to the logits first")
    if len(rows) and float(np.abs(rows.sum(1) - 1).max()) > _TOLERANCE:
        worst = int(np.abs(rows.sum(1) - 1).argmax())
        raise BadInput(
            f"the probabilities of sample {worst} sum to {rows[worst].sum():.4f}, not 1",
            fix="apply softmax to the logits first",
        )
    return rows


class ClassificationScores:
    """Accumulate classified samples batch by batch, and score them. Scores of ranks are added with `+`.

    Args:
        classes: Names of the classes, or their number.
        groups: Group of every class, for grouped accuracy.
        top: Values of k for top-k accuracy; those that are not below the number of classes are left out.
        bins: Bins of the calibration.

    Raises:
        BadInput: If two classes have the same name, or a class has no group.

    Example:
        >>> from headway.metrics.classification import ClassificationScores
        >>> groups = {"scab": "sick", "rust": "sick", "healthy": "healthy"}
        >>> scores = ClassificationScores(["scab", "rust", "healthy"], groups=groups)
        >>> scores.add([0, 1, 2, 2], predictions=[0, 0, 2, 2])
        >>> metrics = scores.metrics()
        >>> metrics["accuracy"], metrics["grouped_accuracy"]
        (0.75, 1.0)
    """

    def __init__(
        self,
        classes: Sequence[str] | int,
        *,
        groups: Mapping[str, str] | None = None,
        top: Sequence[int] = (5,),
        bins: int = 15,
    ) -> None:
        self.classes = list(map(str, range(classes))) if isinstance(classes, int) else list(classes)
        if len(set(self.classes)) != len(self.classes):
            raise BadInput("two classes have the same name")
        if groups is not None and (missing := [name for name in self.classes if name not in groups]):
            raise BadInput(f"{len(missing)} classes belong to no group, {missing[0]} among them")
        self.groups = dict(groups) if groups is not None else None
        self.confusion = Confusion(len(self.classes))
        self.calibration = Calibration(bins)
        self.top_hits = dict.fromkeys((k for k in top if 1 < k < len(self.classes)), 0)

    def add(
        self, labels: ArrayLike, predictions: ArrayLike | None = None, probabilities: ArrayLike | None = None
    ) -> None:
        """Count a batch of class numbers.

        Args:
            labels: The true class number of each sample.
            predictions: The predicted class number of each sample. None: the likeliest class.
            probabilities: samples × classes, for top-k accuracy and calibration.

        Raises:
            BadInput: If neither predictions nor probabilities are given, lengths differ, or a value is not valid.
        """
        truth = class_numbers("labels", labels, len(self.classes))
        if probabilities is None:
            if predictions is None:
                raise BadInput("either predictions or probabilities are needed")
            self.confusion.add(truth, predictions)
            return
        rows = probability_rows(probabilities)
        if rows.shape[1] != len(self.classes):
            raise BadInput(f"{rows.shape[1]} probabilities a sample for {len(self.classes)} classes")
        guess = rows.argmax(1) if predictions is None else predictions
        self.calibration.add(rows, truth, guess)
        self.confusion.add(truth, guess)
        rank = _rank(rows, truth)
        for k in self.top_hits:
            self.top_hits[k] += int((rank < k).sum())

    def __add__(self, other: ClassificationScores) -> ClassificationScores:
        """Return the sum of both, for two ranks."""
        if self.classes != other.classes or self.top_hits.keys() != other.top_hits.keys():
            raise BadInput("scores of different classes cannot be added")
        both = ClassificationScores(
            self.classes, groups=self.groups, top=tuple(self.top_hits), bins=self.calibration.bins
        )
        both.confusion, both.calibration = self.confusion + other.confusion, self.calibration + other.calibration
        both.top_hits = {k: hits + other.top_hits[k] for k, hits in self.top_hits.items()}
        return both

    def metrics(self) -> dict[str, float]:
        """Return the numbers to log.

        Returns:
            accuracy, macro_f1 and balanced_accuracy; with probabilities also top_k and ece; with groups also
            grouped_accuracy.

        Raises:
            BadInput: If nothing was counted.
        """
        metrics = {"accuracy": self.confusion.accuracy(), "macro_f1": self.confusion.macro_f1()}
        metrics["balanced_accuracy"] = self.confusion.balanced_accuracy()
        if judged := int(self.calibration.samples.sum()):
            metrics |= {f"top_{k}": hits / judged for k, hits in self.top_hits.items()}
            metrics["ece"] = self.calibration.expected_error()
        if self.groups is not None:
            metrics["grouped_accuracy"] = self._grouped(self.groups)[1].accuracy()
        return metrics

    def report(self) -> dict[str, Any]:
        """Return the metrics, a row per class, and the confusion matrices.

        Returns:
            Plain values, to be written as JSON.

        Raises:
            BadInput: If nothing was counted.
        """
        report: dict[str, Any] = {**self.metrics(), "samples": self.confusion.total, "per_class": self._per_class()}
        report["confusion"] = {"classes": self.classes, "counts": self.confusion.counts.tolist()}
        if self.groups is not None:
            names, counts = self._grouped(self.groups)
            report["grouped_confusion"] = {"classes": names, "counts": counts.counts.tolist()}
        judged = int(self.calibration.samples.sum())
        if judged:
            report["calibration"] = [asdict(row) for row in self.calibration.table() if row.samples]
        partial = 0 < judged < self.confusion.total
        note = f"top-k and ece are of the {judged:,} samples that came with probabilities"
        return {**report, "notes": [note] if partial else []}

    def _per_class(self) -> list[dict[str, Any]]:
        counts = self.confusion.counts
        columns = {
            "class": self.classes,
            "samples": counts.sum(1).tolist(),
            "accuracy": self.confusion.recall(),
            "precision": self.confusion.precision(),
            "f1": self.confusion.f1(),
            "predicted": counts.sum(0).tolist(),
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _grouped(self, groups: Mapping[str, str]) -> tuple[list[str], Confusion]:
        names = list(dict.fromkeys(groups[name] for name in self.classes))
        return names, self.confusion.grouped([names.index(groups[name]) for name in self.classes])


def score(
    labels: ArrayLike,
    predictions: ArrayLike | None = None,
    probabilities: ArrayLike | None = None,
    *,
    classes: Sequence[str] | int,
    groups: Mapping[str, str] | None = None,
    top: Sequence[int] = (5,),
) -> dict[str, Any]:
    """Return all classification scores of complete lists of class numbers.

    Args:
        labels: The true class number of each sample.
        predictions: The predicted class number of each sample. None: the likeliest class.
        probabilities: samples × classes, for top-k accuracy and calibration.
        classes: Names of the classes, or their number.
        groups: Group of every class, for grouped accuracy.
        top: Values of k for top-k accuracy.

    Returns:
        The report of `ClassificationScores`.

    Raises:
        BadInput: If lengths differ, or a value is not valid.

    Example:
        >>> from headway.metrics.classification import score
        >>> report = score([0, 0, 1, 1], [0, 1, 1, 1], classes=["cat", "dog"])
        >>> report["accuracy"], report["per_class"][0]["accuracy"]
        (0.75, 0.5)
    """
    scores = ClassificationScores(classes, groups=groups, top=top)
    scores.add(labels, predictions, probabilities)
    return scores.report()


def _rank(rows: Floats, truth: Ints) -> Ints:
    """Return how many classes rank before the true one; ties go to the lower number, as in argmax."""
    own = rows[np.arange(len(rows)), truth][:, None]
    before = (rows > own) | ((rows == own) & (np.arange(rows.shape[1]) < truth[:, None]))
    rank: Ints = before.sum(1)
    return rank
