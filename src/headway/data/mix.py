"""Which row stands where in an epoch: sources by weight, classes by rarity, each epoch in an order of its own.

An epoch has a fixed number of places for each pool (a source, or a class of it). Places are shuffled; a pool's places
are filled by walking through its rows in shuffled order, going on in the next epoch where this one stopped. So shares
are exact in every epoch, no row comes a third time before each has come twice, and any place is found in constant time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.data.permutation import Integers, permute
from headway.errors import BadInput

_WALKS = 0x5EED0001  # keeps a pool's walk apart from the shuffle of the places


@dataclass(frozen=True, slots=True)
class Pool:
    """Rows that are drawn from alike: their numbers, or all from one number to another. Shares are relative."""

    rows: Integers | range
    share: float


class Order:
    """`length` places an epoch, filled from pools. Pure: the same places hold the same rows whenever they are asked."""

    def __init__(self, pools: Sequence[Pool], length: int, *, shuffle: bool = True) -> None:
        usable = [pool for pool in pools if len(pool.rows) and pool.share > 0]
        if not usable or length < 1:
            raise BadInput("there are no rows to draw from", fix="check the splits, filters and weights of the data")
        self._rows = [pool.rows for pool in usable]
        self._shuffle, self.length = shuffle, length
        self.quotas = quotas([pool.share for pool in usable], length)
        self._starts = np.concatenate(([0], np.cumsum(self.quotas)))

    def __len__(self) -> int:
        return self.length

    def at(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> Integers:
        """The rows at these places of this epoch."""
        places = permute(self.length, seed, epoch, positions) if self._shuffle else positions
        if len(self._rows) == 1 and self.length == len(self._rows[0]):
            return _pick(self._rows[0], places)  # each row once: one shuffle is enough
        chosen = np.searchsorted(self._starts, places, side="right") - 1
        found = np.empty(len(places), np.int64)
        for number in np.unique(chosen):
            mine = chosen == number
            found[mine] = self._walk(seed, int(number), epoch, places[mine] - self._starts[number])
        return found

    def _walk(self, seed: int, number: int, epoch: int, places: NDArray[np.int64]) -> Integers:
        """The pool's rows in shuffled order, round after round: epoch e begins where epoch e-1 stopped."""
        rows = self._rows[number]
        rounds, steps = np.divmod(epoch * int(self.quotas[number]) + places, len(rows))
        found = np.empty(len(places), np.int64)
        for turn in np.unique(rounds):
            mine = rounds == turn
            order = permute(len(rows), seed ^ (_WALKS + number), int(turn), steps[mine]) if self._shuffle else None
            found[mine] = _pick(rows, steps[mine] if order is None else order)
        return found


def _pick(rows: Integers | range, places: Integers) -> Integers:
    return places + rows.start if isinstance(rows, range) else np.asarray(rows[places], dtype=np.int64)


def quotas(shares: Sequence[float], length: int) -> Integers:
    """Whole numbers in proportion to `shares` that add up to `length`: none is off by one or more."""
    wanted = np.asarray(shares, dtype=np.float64)
    wanted = wanted / wanted.sum() * length
    given = np.floor(wanted).astype(np.int64)
    short = length - int(given.sum())
    neediest = np.argsort(-(wanted - given), kind="stable")[:short]
    given[neediest] += 1
    return np.asarray(given, dtype=np.int64)


def balanced(rows: Integers, labels: NDArray[np.int64], *, power: float = 0.5, share: float = 1.0) -> list[Pool]:
    """A pool for each class, so that a row is drawn with P ∝ 1 / (rows of its class) ^ power.

    0 draws rows alike, 1 draws classes alike. Together the pools have `share`.
    """
    classes, counts = np.unique(labels, return_counts=True)
    weights = counts.astype(np.float64) ** (1.0 - power)
    weights *= share / weights.sum()
    return [Pool(rows[labels == label], float(weight)) for label, weight in zip(classes, weights, strict=True)]
