"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS, PLAIN = "▁▂▃▄▅▆▇█", "_.-~=+*#"


def sparkline(values: Sequence[float], width: int, *, marks: str = BLOCKS) -> str:
    """At most `width` characters, each the mean of its stretch; a stretch without a finite number is a blank.

    The least mean is the lowest mark and the greatest the highest. A flat curve lies low.
    """
    if width <= 0 or not len(values):
        return ""
    means = thinned(values, width)
    known = [mean for mean in means if mean is not None]
    if not known:
        return " " * len(means)
    low, span = min(known), max(known) - min(known)
    top = len(marks) - 1

    def mark(mean: float | None) -> str:
        if mean is None:
            return " "
        # A span too wide for a number is halved on both sides of the division.
        share = (mean / 2 - low / 2) / (span / 2) if math.isfinite(span) and span > 0 else 0.0
        return marks[min(top, max(0, round(share * top)))]

    return "".join(map(mark, means))


def thinned(values: Sequence[float], most: int) -> list[float | None]:
    """The mean of each of at most `most` stretches of equal length; None for one without a finite number."""
    return [_mean(values[start:stop]) for start, stop in _stretches(len(values), most)] if len(values) else []


def _stretches(count: int, width: int) -> list[tuple[int, int]]:
    parts = min(count, width)
    edges = [n * count // parts for n in range(parts + 1)]
    return list(pairwise(edges))


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(value / len(finite) for value in finite) if finite else None
