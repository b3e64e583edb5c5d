"""Per-sample metric records as JSON, for confidence intervals and comparisons of finished runs; input validation.

A record's `kind` says how the metric is computed from its samples: `mean` of values, `kappa` of labels and predictions,
`bleu` of sums of counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from headway.core.errors import BadInput, Problem
from headway.metrics.bleu import BleuCounts
from headway.metrics.classification import Confusion, Floats, Ints
from headway.metrics.ordinal import kappas, quadratic_weighted_kappa

# Bootstrap confidence intervals of corpus scores: resampling with replacement, seeded and vectorised.
#
# Only sums are resampled, so a thousand resamples of 5,000 captions take well under a second. CIDEr's document
# frequencies are not resampled: n-gram weights stay those of the full set of references.


Statistic = Callable[[Floats], Floats]  # weights (resamples × samples) → one value per resample

_CELLS = 4_000_000  # weights held at a time: 32 MB


@dataclass(frozen=True, slots=True)
class Interval:
    """A score with its confidence interval.

    Attributes:
        value: The score of all samples.
        low: Lower end of the interval.
        high: Upper end of the interval.
        level: Confidence level, such as 0.95.
        resamples: Number of resamples in which the score was defined.
    """

    value: float
    low: float
    high: float
    level: float
    resamples: int  # number in which the score was defined


def interval(
    statistic: Statistic, samples: int, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Return the percentile interval of a statistic of sample weights.

    Args:
        statistic: Maps weights (resamples × samples) to one value per resample: `of_mean`, `of_bleu`, `of_kappa`.
        samples: Number of samples.
        resamples: Number of resamples.
        level: Confidence level.
        seed: Seed of the resampling.

    Returns:
        The score and its interval.

    Raises:
        BadInput: If there are no samples, `level` is not between 0 and 1, or the score is undefined in every resample.

    Example:
        >>> import numpy as np
        >>> from headway.metrics.samples import interval, of_mean
        >>> found = interval(of_mean(np.array([1.0, 0.0, 1.0, 1.0])), samples=4)
        >>> found.value, found.low <= found.value <= found.high
        (0.75, True)
    """
    value = float(statistic(np.ones((1, _checked(samples))))[0])
    drawn = np.concatenate([statistic(weights) for weights in _draws(samples, resamples, seed)])
    return _percentiles(value, drawn, level)


def difference(
    one: Statistic, other: Statistic, samples: int, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Return the interval of `other` minus `one` on the same resamples (paired bootstrap).

    Args:
        one: A statistic of sample weights.
        other: Another one, of the same samples.
        samples: Number of samples.
        resamples: Number of resamples.
        level: Confidence level.
        seed: Seed of the resampling.

    Returns:
        The difference and its interval.

    Raises:
        BadInput: As for `interval`.

    Example:
        >>> import numpy as np
        >>> from headway.metrics.samples import difference, of_mean
        >>> before, after = np.array([0.0, 1.0, 0.0]), np.array([1.0, 2.0, 1.0])
        >>> found = difference(of_mean(before), of_mean(after), samples=3)
        >>> round(found.low, 6), round(found.high, 6)
        (1.0, 1.0)
    """

    def gap(weights: Floats) -> Floats:
        return other(weights) - one(weights)

    return interval(gap, samples, resamples=resamples, level=level, seed=seed)


def of_mean(values: Floats) -> Statistic:
    """Return the mean of per-sample scores, such as CIDEr, ROUGE-L, accuracy or MAE, as a statistic.

    Args:
        values: One score per sample.

    Returns:
        A function of weights (resamples × samples).

    Example:
        >>> import numpy as np
        >>> from headway.metrics.samples import of_mean
        >>> of_mean(np.array([1.0, 3.0]))(np.array([[1.0, 1.0], [2.0, 0.0]])).tolist()
        [2.0, 1.0]
    """
    return lambda weights: weights @ values / weights.sum(1)


def of_bleu(counts: BleuCounts, order: int = 4) -> Statistic:
    """Return corpus BLEU as a statistic.

    Args:
        counts: Sufficient statistics of the hypotheses.
        order: 1 … 4, for BLEU-1 … BLEU-4.

    Returns:
        A function of weights (resamples × samples).

    Example:
        >>> from headway.metrics.samples import interval, of_bleu
        >>> from headway.metrics.captions import CaptionScorer
        >>> scores = CaptionScorer([["a dog runs on grass"]] * 3).measure(["a dog runs on grass"] * 3)
        >>> round(interval(of_bleu(scores.bleu), samples=3).low, 3)
        1.0
    """
    return lambda weights: counts.summed(weights)[:, order - 1]


def of_kappa(labels: Ints, predictions: Ints, classes: int) -> Statistic:
    """Return quadratic weighted kappa as a statistic over samples, for paired comparisons.

    Args:
        labels: The true class number of each sample.
        predictions: The predicted class number of each sample.
        classes: Number of classes.

    Returns:
        A function of weights (resamples × samples).

    Example:
        >>> import numpy as np
        >>> from headway.metrics.samples import of_kappa
        >>> of_kappa(np.array([0, 1, 2]), np.array([0, 1, 2]), classes=3)(np.ones((1, 3))).tolist()
        [1.0]
    """
    cell = np.asarray(labels) * classes + np.asarray(predictions)
    member = np.zeros((len(cell), classes**2))
    member[np.arange(len(cell)), cell] = 1.0
    return lambda weights: kappas((weights @ member).reshape(-1, classes, classes))


def kappa_interval(confusion: Confusion, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the interval of quadratic weighted kappa from a confusion matrix alone.

    Resampling samples equals drawing the matrix's cells from a multinomial, so the cost does not depend on their
    number.

    Args:
        confusion: The confusion matrix.
        resamples: Number of resamples.
        level: Confidence level.
        seed: Seed of the resampling.

    Returns:
        Kappa and its interval.

    Raises:
        BadInput: If nothing was counted, `level` is not between 0 and 1, or kappa is undefined.

    Example:
        >>> from headway.metrics.samples import kappa_interval
        >>> from headway.metrics.classification import Confusion
        >>> found = kappa_interval(Confusion(2, [[40, 10], [10, 40]]))
        >>> round(found.value, 2), found.low < found.value < found.high
        (0.6, True)
    """
    total = _checked(confusion.total)
    value = quadratic_weighted_kappa(confusion)
    if value is None:
        raise BadInput("qwk is undefined: every label and every prediction is the same grade")
    shares = confusion.counts.ravel() / total
    drawn = np.random.default_rng(seed).multinomial(total, shares, size=resamples)
    return _percentiles(value, kappas(drawn.reshape(-1, confusion.classes, confusion.classes)), level)


def _draws(samples: int, resamples: int, seed: int) -> Iterator[Floats]:
    """Yield how often each sample is drawn in each resample, in blocks that fit in memory."""
    random = np.random.default_rng(seed)
    block = max(1, _CELLS // samples)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = random.integers(samples, size=(rows, samples)) + np.arange(rows)[:, None] * samples
        # as doubles, which represent the counts exactly and multiply fast
        yield np.bincount(drawn.ravel(), minlength=rows * samples).reshape(rows, samples).astype(np.float64)


def _percentiles(value: float, drawn: Floats, level: float) -> Interval:
    if not 0 < level < 1:
        raise BadInput(f"the level of an interval must be between 0 and 1, not {level}", fix="0.95")
    defined = drawn[~np.isnan(drawn)]
    if not len(defined):
        raise BadInput("the score is undefined in every resample")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(value, low, high, level, len(defined))


def _checked(samples: int) -> int:
    if samples < 1:
        raise BadInput("there are no samples to resample")
    return samples


# Validation of input files. Problems are collected and counted by kind, with the first examples of each.


_SHOWN = 5  # examples per message; the rest is only counted


class InputProblems:
    """Problems of some files, reported together."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str], list[str]] = {}

    def add(self, where: Path, what: str, culprit: object, *, fix: str = "") -> None:
        """Record a problem. `what` describes all culprits of its kind, for example "captions that are empty"."""
        self._kinds.setdefault((str(where), what, fix), []).append(short(culprit))

    def raise_if_any(self) -> None:
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
        raise BadInput("not readable JSON: nested too deeply", where=str(path)) from None
    except ValueError as error:  # Python rejects integers of more than 4,300 digits
        raise BadInput(f"not readable JSON: {error}", where=str(path)) from None


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
        raise BadInput(f"this version of Headway does not know the metric kind {kind!r}", fix="evaluate the run again")
    return str(kind)


def _short(value: float) -> float | int:
    return int(value) if value == int(value) else round(value, 6)
