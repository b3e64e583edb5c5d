"""What each input adds to a metric, as plain JSON: enough to draw intervals and compare runs long after they ended.

A record says by its `kind` how a metric comes from its inputs: `mean` of values, `kappa` of labels and predictions,
`bleu` of sums of counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from headway.errors import BadInput
from headway.score.bleu import BleuCounts
from headway.score.bootstrap import Statistic, of_bleu, of_kappa, of_mean

Record = dict[str, Any]


def of_values(values: ArrayLike) -> Record:
    """A metric that is the mean of a number for each input."""
    return {"kind": "mean", "values": [_short(value) for value in np.asarray(values, np.float64).tolist()]}


def of_grades(labels: ArrayLike, predictions: ArrayLike, classes: int) -> Record:
    """Quadratic weighted kappa. Grades are numbered from 0."""
    return {
        "kind": "kappa",
        "labels": np.asarray(labels).tolist(),
        "predictions": np.asarray(predictions).tolist(),
        "classes": classes,
    }


def of_counts(counts: BleuCounts, order: int = 4, scale: float = 1.0) -> Record:
    """Corpus BLEU; `scale` is 100 where it is given in percent."""
    return {
        "kind": "bleu",
        "order": order,
        "scale": scale,
        "correct": counts.correct.tolist(),
        "guesses": counts.guesses.tolist(),
        "length": counts.length.tolist(),
        "reference_length": counts.reference_length.tolist(),
    }


def size(record: Mapping[str, Any]) -> int:
    """How many inputs there are."""
    return len(record[{"mean": "values", "kappa": "labels", "bleu": "length"}[_kind(record)]])


def statistic(record: Mapping[str, Any]) -> Statistic:
    """The metric as a function of how often each input is counted."""
    kind = _kind(record)
    if kind == "mean":
        return of_mean(np.asarray(record["values"], np.float64))
    if kind == "kappa":
        labels, predictions = (np.asarray(record[name], np.int64) for name in ("labels", "predictions"))
        return of_kappa(labels, predictions, int(record["classes"]))
    names = ("correct", "guesses", "length", "reference_length")
    counted = of_bleu(BleuCounts(*(np.asarray(record[name], np.int64) for name in names)), int(record["order"]))
    return lambda weights: float(record["scale"]) * counted(weights)


def _kind(record: Mapping[str, Any]) -> str:
    kind = record.get("kind")
    if kind not in ("mean", "kappa", "bleu"):
        raise BadInput(f"this Headway does not know metrics of the kind {kind!r}", fix="evaluate the run again")
    return str(kind)


def _short(value: float) -> float | int:
    return int(value) if value == int(value) else round(value, 6)
