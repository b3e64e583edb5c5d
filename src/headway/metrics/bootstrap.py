"""Bootstrap confidence intervals of corpus scores: resampling with replacement, seeded and vectorised.

Only sums are resampled, so a thousand resamples of 5,000 captions take well under a second. CIDEr's document
frequencies are not resampled: n-gram weights stay those of the full set of references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headway.core.errors import BadInput
from headway.metrics.bleu import BleuCounts
from headway.metrics.classification import Confusion, Floats, Ints
from headway.metrics.ordinal import kappas, quadratic_weighted_kappa

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
        >>> from headway.metrics.bootstrap import interval, of_mean
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
        >>> from headway.metrics.bootstrap import difference, of_mean
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
        >>> from headway.metrics.bootstrap import of_mean
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
        >>> from headway.metrics.bootstrap import interval, of_bleu
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
        >>> from headway.metrics.bootstrap import of_kappa
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
        >>> from headway.metrics.bootstrap import kappa_interval
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
        raise BadInput(f"the level of an interval lies between 0 and 1, not at {level}", fix="0.95")
    defined = drawn[~np.isnan(drawn)]
    if not len(defined):
        raise BadInput("the score is undefined in every resample")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(value, low, high, level, len(defined))


def _checked(samples: int) -> int:
    if samples < 1:
        raise BadInput("there are no samples to draw from")
    return samples
