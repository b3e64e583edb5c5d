"""A confusion matrix that batches and ranks add to: every score from it is a ratio of sums, never a mean of means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headway.errors import BadInput

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Confusion:
    """counts[i, j]: how often class i was taken for class j. Classes are numbered from 0."""

    def __init__(self, classes: int, counts: ArrayLike | None = None) -> None:
        if classes < 1:
            raise BadInput(f"a confusion matrix needs at least one class, not {classes}")
        given = np.zeros((classes, classes), np.int64) if counts is None else np.array(counts, np.int64)
        if given.shape != (classes, classes):
            raise BadInput(f"the counts of {classes} classes are {classes} × {classes}, not {given.shape}")
        self.classes, self.counts = classes, given

    def add(self, labels: ArrayLike, predictions: ArrayLike) -> None:
        """Counts a batch."""
        truth = class_numbers("labels", labels, self.classes)
        guess = class_numbers("predictions", predictions, self.classes)
        if len(truth) != len(guess):
            raise BadInput(f"{len(guess)} predictions for {len(truth)} labels")
        cells = np.bincount(truth * self.classes + guess, minlength=self.classes**2)
        self.counts += cells.reshape(self.classes, self.classes)

    def __add__(self, other: Confusion) -> Confusion:
        """The counts of both: those of two ranks, or of two validation sets."""
        return Confusion(self.classes, self.counts + other.counts)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def accuracy(self) -> float:
        return _ratio(int(np.trace(self.counts)), self._not_empty())

    def recall(self) -> list[float | None]:
        """Of each class, the share that was recognised; None for a class without samples."""
        return _ratios(np.diag(self.counts), self.counts.sum(1))

    def precision(self) -> list[float | None]:
        """Of each class, the share of its predictions that were right; None where it was never predicted."""
        return _ratios(np.diag(self.counts), self.counts.sum(0))

    def f1(self) -> list[float | None]:
        """Of each class, twice the hits over samples plus predictions; None where it has neither."""
        return _ratios(2 * np.diag(self.counts), self.counts.sum(1) + self.counts.sum(0))

    def macro_f1(self) -> float:
        """The mean F1 of the classes that were seen or predicted. Classes that never occur do not count."""
        self._not_empty()
        return float(np.mean([value for value in self.f1() if value is not None]))

    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that have samples."""
        self._not_empty()
        return float(np.mean([value for value in self.recall() if value is not None]))

    def grouped(self, group: Sequence[int]) -> Confusion:
        """The same counts with classes put together: class i goes to group[i], as in healthy or sick."""
        if len(group) != self.classes:
            raise BadInput(f"{len(group)} groups given for {self.classes} classes")
        wanted = np.asarray(group, np.int64)
        size = int(wanted.max()) + 1
        put = np.zeros((self.classes, size), np.int64)
        put[np.arange(self.classes), wanted] = 1
        return Confusion(size, put.T @ self.counts @ put)

    def _not_empty(self) -> int:
        if not self.total:
            raise BadInput("nothing was counted: there is no score of no samples")
        return self.total


def class_numbers(what: str, given: ArrayLike, classes: int) -> Ints:
    """A flat array of class numbers, checked: whole, and within the classes there are."""
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
