"""Whether a model is as often right as it says: confidence against accuracy in equal bins, summed over batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from headway.errors import BadInput
from headway.score.confusion import Floats, class_numbers

_TOLERANCE = 1e-3  # how far from 1 the probabilities of a sample may sum: float16 is no better


@dataclass(frozen=True, slots=True)
class Bin:
    """Samples whose confidence lies in (low, high]."""

    low: float
    high: float
    samples: int
    confidence: float | None  # the mean of them
    accuracy: float | None


class Calibration:
    """Reliability of the probability given to the predicted class, in bins of equal width."""

    def __init__(self, bins: int = 15) -> None:
        if bins < 1:
            raise BadInput(f"calibration needs at least one bin, not {bins}")
        self.bins = bins
        self.samples = np.zeros(bins, np.int64)
        self.right = np.zeros(bins, np.int64)
        self.confidence = np.zeros(bins)

    def add(self, probabilities: ArrayLike, labels: ArrayLike, predictions: ArrayLike | None = None) -> None:
        """Counts a batch. What was predicted is the likeliest class, unless `predictions` says otherwise."""
        given = probability_rows(probabilities)
        truth = class_numbers("labels", labels, given.shape[1])
        guess = given.argmax(1) if predictions is None else class_numbers("predictions", predictions, given.shape[1])
        if not len(truth) == len(guess) == len(given):
            raise BadInput(f"{len(given)} rows of probabilities for {len(truth)} labels and {len(guess)} predictions")
        confidence = given[np.arange(len(given)), guess]
        # A bin has its upper edge: 1.0 belongs to the last, 0.0 to the first.
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
        """ECE: the mean distance between confidence and accuracy, each bin weighing as many samples as it has."""
        total = int(self.samples.sum())
        if not total:
            raise BadInput("nothing was counted: there is no calibration of no samples")
        return float(np.abs(self.confidence - self.right).sum() / total)

    def table(self) -> list[Bin]:
        """Every bin, the empty ones too."""
        edges = np.linspace(0.0, 1.0, self.bins + 1).tolist()
        rows = zip(self.samples.tolist(), self.confidence.tolist(), self.right.tolist(), strict=True)
        return [
            Bin(edges[i], edges[i + 1], n, confidence / n if n else None, right / n if n else None)
            for i, (n, confidence, right) in enumerate(rows)
        ]


def probability_rows(given: ArrayLike) -> Floats:
    """Rows of probabilities that sum to one, checked."""
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
