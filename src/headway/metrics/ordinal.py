"""Ordinal metrics, which weigh misses by distance: QWK, MAE, within one, per grade, calibration.

scores = OrdinalScores(grades=range(1, 11))
for batch in batches:
    scores.add(labels, predictions, probabilities)
scores.report()["qwk"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from headway.core.errors import BadInput
from headway.metrics.classification import Calibration, Confusion, Floats, Ints, class_numbers, probability_rows

_MOST_GRADES = 1000  # a matrix of a million cells


class OrdinalScores:
    """Accumulate graded samples batch by batch, and score them. Scores of ranks are added with `+`.

    Args:
        grades: Consecutive integers, such as range(1, 11).
        bins: Bins of the calibration.

    Raises:
        BadInput: If the grades are not consecutive, or more than 1,000.

    Example:
        >>> from headway.metrics.ordinal import OrdinalScores
        >>> scores = OrdinalScores(grades=range(1, 6))
        >>> scores.add(labels=[1, 2, 3, 5], predictions=[1, 2, 4, 3])
        >>> metrics = scores.metrics()
        >>> metrics["mae"], metrics["within_one"]
        (0.75, 0.75)
    """

    def __init__(self, grades: Sequence[int], *, bins: int = 15) -> None:
        if len(grades) > _MOST_GRADES:
            raise BadInput(f"{len(grades):,} grades, from {grades[0]} to {grades[-1]}: are these class numbers?")
        self.grades = list(grades)
        if not self.grades or self.grades != list(range(self.grades[0], self.grades[0] + len(self.grades))):
            raise BadInput(f"grades must be consecutive whole numbers, not {self.grades[:12]}", fix="range(1, 11)")
        self.confusion = Confusion(len(self.grades))
        self.calibration = Calibration(bins)
        self.emd_sum = 0.0

    def add(self, labels: ArrayLike, predictions: ArrayLike, probabilities: ArrayLike | None = None) -> None:
        """Count a batch.

        Args:
            labels: The true grade of each sample.
            predictions: The predicted grade of each sample.
            probabilities: samples × grades, for calibration and the earth mover's distance.

        Raises:
            BadInput: If lengths differ, or a value is not a grade or not a probability.
        """
        truth, guess = self._numbers("labels", labels), self._numbers("predictions", predictions)
        if probabilities is None:
            self.confusion.add(truth, guess)
            return
        rows = probability_rows(probabilities)
        if rows.shape[1] != len(self.grades):
            raise BadInput(f"{rows.shape[1]} probabilities a sample for {len(self.grades)} grades")
        self.calibration.add(rows, truth, guess)
        self.confusion.add(truth, guess)
        self.emd_sum += float(squared_emd(rows, truth).sum())

    def __add__(self, other: OrdinalScores) -> OrdinalScores:
        """Return the sum of both, for two ranks."""
        if self.grades != other.grades:
            raise BadInput("scores of different grades cannot be added")
        both = OrdinalScores(self.grades, bins=self.calibration.bins)
        both.confusion, both.calibration = self.confusion + other.confusion, self.calibration + other.calibration
        both.emd_sum = self.emd_sum + other.emd_sum
        return both

    def metrics(self) -> dict[str, float | None]:
        """Return the numbers to log.

        Returns:
            qwk, mae, accuracy and within_one; with probabilities also ece and emd2. qwk is None if it is undefined: all
            labels and predictions are one grade.

        Raises:
            BadInput: If nothing was counted.
        """
        accuracy, total, gaps = self.confusion.accuracy(), self.confusion.total, distances(self.confusion)
        metrics: dict[str, float | None] = {
            "qwk": quadratic_weighted_kappa(self.confusion),
            "mae": float((gaps * np.arange(len(gaps))).sum() / total),
            "accuracy": accuracy,
            "within_one": float(gaps[:2].sum() / total),
        }
        if judged := int(self.calibration.samples.sum()):
            metrics |= {"ece": self.calibration.expected_error(), "emd2": self.emd_sum / judged}
        return metrics

    def report(self) -> dict[str, Any]:
        """Return the metrics, a row per grade, the confusion matrix, and notes for the reader.

        Returns:
            Plain values, to be written as JSON.

        Raises:
            BadInput: If nothing was counted.
        """
        metrics, judged = self.metrics(), int(self.calibration.samples.sum())
        notes = []
        if metrics["qwk"] is None:
            notes.append("qwk is undefined: every label and every prediction is the same grade")
        if 0 < judged < self.confusion.total:
            notes.append(f"ece and emd2 are of the {judged:,} samples that came with probabilities")
        report: dict[str, Any] = {
            **metrics,
            "samples": self.confusion.total,
            "per_grade": self._per_grade(),
            "notes": notes,
        }
        report["confusion"] = {"grades": self.grades, "counts": self.confusion.counts.tolist()}
        if judged:
            report["calibration"] = [asdict(row) for row in self.calibration.table() if row.samples]
        return report

    def _per_grade(self) -> list[dict[str, float | int | None]]:
        counts = self.confusion.counts
        gap = np.abs(np.subtract.outer(np.arange(len(counts)), np.arange(len(counts))))
        rows = []
        for i, grade in enumerate(self.grades):
            samples = int(counts[i].sum())
            row: dict[str, float | int | None] = {"grade": grade, "samples": samples}
            for name, hits in (
                ("accuracy", int(counts[i, i])),
                ("within_one", int(counts[i][gap[i] <= 1].sum())),
                ("mae", int((counts[i] * gap[i]).sum())),
            ):
                row[name] = hits / samples if samples else None
            row["predicted"] = int(counts[:, i].sum())
            rows.append(row)
        return rows

    def _numbers(self, what: str, grades: ArrayLike) -> Ints:
        values = np.asarray(grades)
        if values.size and values.dtype.kind in "iuf":
            outside = values[~np.isin(values, self.grades)]
            if outside.size:
                raise BadInput(f"{what}: {outside.flat[0]} is not a grade from {self.grades[0]} to {self.grades[-1]}")
            values = values - self.grades[0]
        return class_numbers(what, values, len(self.grades))


def score(
    labels: ArrayLike,
    predictions: ArrayLike,
    probabilities: ArrayLike | None = None,
    *,
    grades: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return all ordinal scores of complete lists.

    Args:
        labels: The true grade of each sample.
        predictions: The predicted grade of each sample.
        probabilities: samples × grades, for calibration and the earth mover's distance.
        grades: Consecutive integers. None: the range from the lowest to the highest found.

    Returns:
        The report of `OrdinalScores`.

    Raises:
        BadInput: If there are no grades, lengths differ, or a value is not valid.

    Example:
        >>> from headway.metrics.ordinal import score
        >>> report = score([1, 2, 3, 4], [1, 2, 3, 3])
        >>> report["accuracy"], round(report["qwk"], 3)
        (0.75, 0.875)
    """
    if grades is None:
        seen = np.concatenate([np.ravel(np.asarray(labels)), np.ravel(np.asarray(predictions))])
        if not seen.size or seen.dtype.kind not in "iuf" or not np.isfinite(seen).all():
            raise BadInput("there are no grades to score, or some are not numbers")
        grades = range(int(seen.min()), int(seen.max()) + 1)
    scores = OrdinalScores(grades)
    scores.add(labels, predictions, probabilities)
    return scores.report()


def quadratic_weighted_kappa(confusion: Confusion) -> float | None:
    """Return 1 − ΣwO/ΣwE with w = (i − j)², E the outer product of the margins / n.

    Distances include grades without samples (scikit-learn closes such gaps, unless it is given all labels).

    Args:
        confusion: The confusion matrix of the grades.

    Returns:
        Kappa, at most 1; None if ΣwE is 0.

    Example:
        >>> from headway.metrics.classification import Confusion
        >>> from headway.metrics.ordinal import quadratic_weighted_kappa
        >>> quadratic_weighted_kappa(Confusion(3, [[4, 0, 0], [0, 4, 0], [0, 0, 4]]))
        1.0
    """
    kappa = float(kappas(confusion.counts[None])[0])
    return None if np.isnan(kappa) else kappa


def kappas(counts: Ints | Floats) -> Floats:
    """Return quadratic weighted kappa of many matrices.

    Args:
        counts: matrices × grades × grades.

    Returns:
        One number per matrix; NaN if undefined.

    Example:
        >>> import numpy as np
        >>> from headway.metrics.ordinal import kappas
        >>> kappas(np.array([[[3, 0], [0, 3]], [[0, 3], [3, 0]]])).tolist()
        [1.0, -1.0]
    """
    grades = np.arange(counts.shape[1])
    weight = np.subtract.outer(grades, grades).astype(np.float64) ** 2
    total = counts.sum((1, 2))
    observed = (counts * weight).sum((1, 2))
    rows, columns = counts.sum(2).astype(np.float64), counts.sum(1).astype(np.float64)
    expected = np.einsum("ri,ij,rj->r", rows, weight, columns) / np.maximum(1, total)
    ratio: Floats = np.divide(observed, expected, out=np.full(len(total), np.nan), where=expected > 0)
    return 1.0 - ratio


def distances(confusion: Confusion) -> Ints:
    """Return how many samples are off by 0, 1, 2 … grades.

    Args:
        confusion: The confusion matrix of the grades.

    Returns:
        One count per distance.

    Example:
        >>> from headway.metrics.classification import Confusion
        >>> from headway.metrics.ordinal import distances
        >>> distances(Confusion(3, [[4, 1, 0], [0, 4, 0], [2, 0, 4]])).tolist()
        [12, 1, 2]
    """
    size = confusion.classes
    gap = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    return np.bincount(gap.ravel(), weights=confusion.counts.ravel(), minlength=size).astype(np.int64)


def squared_emd(probabilities: ArrayLike, labels: ArrayLike) -> Floats:
    """Return Σ_k (CDF_p(k) − CDF_y(k))² per sample, the squared earth mover's distance.

    Args:
        probabilities: samples × grades.
        labels: The true grade of each sample, numbered from 0.

    Returns:
        One number per sample.

    Raises:
        BadInput: If lengths differ, or a value is not valid.

    Example:
        >>> from headway.metrics.ordinal import squared_emd
        >>> squared_emd([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [0, 0]).tolist()
        [0.0, 2.0]
    """
    rows = probability_rows(probabilities)
    truth = class_numbers("labels", labels, rows.shape[1])
    if len(truth) != len(rows):
        raise BadInput(f"{len(rows)} rows of probabilities for {len(truth)} labels")
    reached = np.arange(rows.shape[1]) >= truth[:, None]
    each: Floats = ((np.cumsum(rows, axis=1) - reached) ** 2).sum(1)
    return each
