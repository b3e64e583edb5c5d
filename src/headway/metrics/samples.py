"""Per-sample metric records as JSON, for confidence intervals and comparisons of finished runs; input validation.

A record's `kind` says how the metric is computed from its samples: `mean` of values, `kappa` of labels and predictions,
`bleu` of sums of counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from headway.core.errors import BadInput, Problem
from headway.metrics.bleu import BleuCounts
from headway.metrics.bootstrap import Statistic, of_bleu, of_kappa, of_mean

# Validation of input files. Problems are collected and counted by kind, with the first examples of each.


_SHOWN = 5  # examples per message; the rest is only counted


class InputProblems:
    """Problems of some files, reported together."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str], list[str]] = {}

    def add(self, where: Path, what: str, culprit: object, *, fix: str = "") -> None:
        """Record a problem. `what` describes all culprits of its kind, for example "captions that are empty"."""
        self._kinds.setdefault((str(where), what, fix), []).append(short(culprit))

    def refuse(self) -> None:
        """Raise BadInput with all recorded problems, if there are any."""
        problems = [
            Problem(what=f"{len(culprits):,} {what}: {_listed(culprits)}", where=where, fix=fix)
            for (where, what, fix), culprits in self._kinds.items()
        ]
        if problems:
            raise BadInput("\n".join(map(str, problems)))


def short(value: object) -> str:
    """Format a value for a message, truncated."""
    text = (
        str(value)
        if isinstance(value, str) or (isinstance(value, int) and abs(value) < 10**30)
        else _problem_kind(value)
    )
    return text if len(text) <= 60 else text[:57] + "..."


def kind(value: object) -> str:
    """Return the JSON name of a value's type."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _problem_kind(value: object) -> str:
    return "a number of many digits" if isinstance(value, int) and not isinstance(value, bool) else repr(value)


def _listed(culprits: list[str]) -> str:
    more = len(culprits) - _SHOWN
    return ", ".join(culprits[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def read_text(path: Path) -> str:
    """Read a UTF-8 file, with or without a byte order mark."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise BadInput("no such file", where=str(path)) from None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise BadInput(f"not UTF-8 text: byte {error.start:,} is {byte:#04x}", where=str(path)) from None


def parse_json(text: str, path: Path) -> Any:
    """Parse JSON. Raises BadInput with the reason and nothing else."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"not JSON: {error.msg}", where=f"{path}:{error.lineno}:{error.colno}") from None
    except RecursionError:
        raise BadInput("not JSON that can be read: nested too deeply", where=str(path)) from None
    except ValueError as error:  # Python rejects integers of more than 4,300 digits
        raise BadInput(f"not JSON that can be read: {error}", where=str(path)) from None


Record = dict[str, Any]


def of_values(values: ArrayLike) -> Record:
    """Record a metric that is the mean of one number per sample."""
    return {"kind": "mean", "values": [_short(value) for value in np.asarray(values, np.float64).tolist()]}


def of_grades(labels: ArrayLike, predictions: ArrayLike, classes: int) -> Record:
    """Record quadratic weighted kappa. Grades are numbered from 0."""
    return {
        "kind": "kappa",
        "labels": np.asarray(labels).tolist(),
        "predictions": np.asarray(predictions).tolist(),
        "classes": classes,
    }


def of_counts(counts: BleuCounts, order: int = 4, scale: float = 1.0) -> Record:
    """Record corpus BLEU; `scale` is 100 for percent."""
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
    """Return the number of samples."""
    return len(record[{"mean": "values", "kappa": "labels", "bleu": "length"}[_sample_kind(record)]])


def statistic(record: Mapping[str, Any]) -> Statistic:
    """Return the metric as a function of sample weights."""
    kind = _sample_kind(record)
    if kind == "mean":
        return of_mean(np.asarray(record["values"], np.float64))
    if kind == "kappa":
        labels, predictions = (np.asarray(record[name], np.int64) for name in ("labels", "predictions"))
        return of_kappa(labels, predictions, int(record["classes"]))
    names = ("correct", "guesses", "length", "reference_length")
    counted = of_bleu(BleuCounts(*(np.asarray(record[name], np.int64) for name in names)), int(record["order"]))
    return lambda weights: float(record["scale"]) * counted(weights)


def _sample_kind(record: Mapping[str, Any]) -> str:
    kind = record.get("kind")
    if kind not in ("mean", "kappa", "bleu"):
        raise BadInput(f"this Headway does not know metrics of the kind {kind!r}", fix="evaluate the run again")
    return str(kind)


def _short(value: float) -> float | int:
    return int(value) if value == int(value) else round(value, 6)
