"""Scores of classes: accuracy, top-k, per class, by groups of classes, macro F1, calibration. Sums, not means of means.

scores = ClassificationScores(["apple healthy", "apple scab"], groups={"apple healthy": "healthy", …})
for batch in batches:
    scores.add(labels, probabilities=softmax)
scores.report()["macro_f1"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from headway.errors import BadInput
from headway.score.calibration import Calibration, probability_rows
from headway.score.confusion import Confusion, Floats, Ints, class_numbers


class ClassificationScores:
    """Counts classified samples batch by batch. `groups` names the group of every class, for grouped accuracy."""

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
        """Counts a batch of class numbers. Without `predictions`, the likeliest class is the prediction."""
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
        """The counts of both, as of two ranks."""
        if self.classes != other.classes or self.top_hits.keys() != other.top_hits.keys():
            raise BadInput("scores of different classes cannot be added")
        both = ClassificationScores(
            self.classes, groups=self.groups, top=tuple(self.top_hits), bins=self.calibration.bins
        )
        both.confusion, both.calibration = self.confusion + other.confusion, self.calibration + other.calibration
        both.top_hits = {k: hits + other.top_hits[k] for k, hits in self.top_hits.items()}
        return both

    def metrics(self) -> dict[str, float]:
        """The numbers to log."""
        metrics = {"accuracy": self.confusion.accuracy(), "macro_f1": self.confusion.macro_f1()}
        metrics["balanced_accuracy"] = self.confusion.balanced_accuracy()
        if judged := int(self.calibration.samples.sum()):
            metrics |= {f"top_{k}": hits / judged for k, hits in self.top_hits.items()}
            metrics["ece"] = self.calibration.expected_error()
        if self.groups is not None:
            metrics["grouped_accuracy"] = self._grouped(self.groups)[1].accuracy()
        return metrics

    def report(self) -> dict[str, Any]:
        """The metrics, a row for each class, and the confusion matrices."""
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
    """All scores of whole lists of class numbers."""
    scores = ClassificationScores(classes, groups=groups, top=top)
    scores.add(labels, predictions, probabilities)
    return scores.report()


def _rank(rows: Floats, truth: Ints) -> Ints:
    """How many classes come before the true one; of equally likely ones the lower number, as argmax has it."""
    own = rows[np.arange(len(rows)), truth][:, None]
    before = (rows > own) | ((rows == own) & (np.arange(rows.shape[1]) < truth[:, None]))
    rank: Ints = before.sum(1)
    return rank
