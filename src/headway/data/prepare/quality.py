"""Data quality: duplicate detection by hashes, and the limit for bad rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput
from headway.data.prepare.staging import RowStore

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]

BANDS = 4  # two hashes that differ in at most 3 of 64 bits agree in at least one of 4 bands
MAX_DISTANCE = BANDS - 1


def equal_groups(hashes: Words) -> Iterator[Indices]:
    """Yield groups of two or more positions with equal hashes."""
    order = np.argsort(hashes, kind="stable")
    bounds = np.flatnonzero(np.diff(hashes[order])) + 1
    for group in np.split(order, bounds):
        if len(group) > 1:
            yield np.sort(group)


def similar_groups(hashes: Words) -> Iterator[Indices]:
    """Yield groups of two or more positions whose hashes are connected by distances of at most NEAR bits."""
    unique, back = np.unique(hashes, return_inverse=True)
    roots = _UnionFind(len(unique))
    for first, second in _near_pairs(unique):
        roots.join(first, second)
    merged = np.array([roots.find(place) for place in range(len(unique))], dtype=np.uint64)
    yield from equal_groups(merged[back.ravel()])


def _near_pairs(unique: Words) -> Iterator[tuple[int, int]]:
    """Yield pairs of distinct hashes within NEAR bits.

    Compares only hashes that share a band (locality-sensitive hashing).
    """
    width = 64 // BANDS
    for band in range(BANDS):
        keys = (unique >> np.uint64(band * width)) & np.uint64((1 << width) - 1)
        for group in equal_groups(keys):
            for at, first in enumerate(group[:-1]):
                rest = group[at + 1 :]
                for second in rest[_bits(unique[rest] ^ unique[first]) <= MAX_DISTANCE]:
                    yield int(first), int(second)


def _bits(words: Words) -> Indices:
    """Count the set bits of each word (numpy 1 lacks bitwise_count)."""
    octets = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1)
    return np.asarray(octets.sum(axis=1), dtype=np.int64)


class _UnionFind:
    """Union-find with path halving."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def find(self, place: int) -> int:
        while self._above[place] != place:
            self._above[place] = self._above[self._above[place]]
            place = self._above[place]
        return place

    def join(self, first: int, second: int) -> None:
        low, high = sorted((self.find(first), self.find(second)))
        self._above[high] = low


# Error budget: preparation stops with the reasons rather than produce a poor data set.


_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Threshold:
    """The largest share, or number, of bad rows allowed."""

    share: float | None = None
    count: int | None = None

    @classmethod
    def parse(cls, text: str | float | int) -> Threshold:
        """Parse `1%`, `250`, or a share such as 0.01."""
        if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
            return cls(count=text)
        if isinstance(text, float) and 0 <= text <= 1:
            return cls(share=text)
        if isinstance(text, str) and (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)):
            if float(match[1]) <= 100:
                return cls(share=float(match[1]) / 100)
        elif isinstance(text, str) and re.fullmatch(r"\s*\d+\s*", text):
            return cls(count=int(text))
        raise BadInput(f"--max-bad {text} is neither a percentage nor a count", fix="write 1% or 250")

    def allows(self, total: int) -> int:
        return self.count if self.count is not None else int((self.share or 0.0) * total)

    def __str__(self) -> str:
        return str(self.count) if self.count is not None else f"{100 * (self.share or 0):g}%"


class TooManyBadRows(BadInput):
    """The source has more bad rows than allowed."""


def check(limit: Threshold, staging: RowStore, total: int, report: str) -> None:
    """Raise TooMuchBad, with the most frequent reasons and an example of each, if the bad rows exceed the limit."""
    bad = staging.bad_rows()
    if bad <= limit.allows(total):
        return
    lines = [f"    {count} × {reason}, such as {example}" for reason, count, example in staging.faults(_SHOWN)]
    raise TooManyBadRows(
        f"{bad} of {total} rows are bad, more than the {limit} allowed:\n" + "\n".join(lines),
        where=report,
        fix="fix the source, or allow more with --max-bad; the report lists every row",
    )
