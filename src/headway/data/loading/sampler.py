"""Which row stands where in an epoch: sources by weight, classes by rarity, each epoch in an order of its own.

An epoch has a fixed number of places for each pool (a source, or a class of it). Places are shuffled; a pool's places
are filled by walking through its rows in shuffled order, going on in the next epoch where this one stopped. So shares
are exact in every epoch, no row comes a third time before each has come twice, and any place is found in constant time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput

# Split a global batch over ranks: which items each rank gets, and a padding batch for a rank that gets none.


@dataclass(frozen=True, slots=True)
class PaddingBatch:
    """A stand-in for an empty part: it runs through the model so that ranks keep step, and counts as nothing."""

    batch: Any


def share(size: int, part: int, parts: int) -> tuple[int, int]:
    """[start, stop) of one part: parts differ by at most one, and together are everything."""
    small, extra = divmod(size, parts)
    start = part * small + min(part, extra)
    return start, start + small + (part < extra)


# Order and randomness as pure functions of (seed, epoch, index): nothing to save or replay. Needs numpy alone.
#
# A shuffled epoch is a keyed bijection of 0 … n-1 (a Feistel network with cycle walking) that is evaluated only at
# the positions asked for, so the millionth batch costs what the first does, in constant memory.


Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

ROUNDS = 8  # four shuffle a large set well; small ones need a few more to leave no trace of the order
_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: successive multiples are spread evenly


def permute(n: int, seed: int, epoch: int, positions: NDArray[Any]) -> Integers:
    """Which of `n` things stand at `positions` of the shuffled epoch: a bijection of 0 … n-1 for every key."""
    walk: Integers = np.asarray(positions, dtype=np.int64)
    if walk.size and (n <= 0 or int(walk.min()) < 0 or int(walk.max()) >= n):
        raise IndexError(f"positions must lie in 0 … {n - 1}")
    if n <= 1:
        return np.array(walk, dtype=np.int64)
    bits = max(2, (n - 1).bit_length())
    keys = _round_keys(seed, epoch)
    out = _feistel(walk.astype(np.uint64).ravel(), bits, keys)
    while True:  # cycle walking: the network permutes 0 … 2^bits - 1; step on until inside, mostly not at all
        outside = np.flatnonzero(out >= np.uint64(n))
        if not outside.size:
            return np.asarray(out.reshape(walk.shape), dtype=np.int64)
        out[outside] = _feistel(out[outside], bits, keys)


def rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """A generator of its own for one item of one epoch: 2^128 draws before it could meet its neighbour's."""
    key = np.array([seed & _WORD, epoch & _WORD], dtype=np.uint64)
    counter = np.array([0, 0, index & _WORD, 0], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def uniforms(seed: int, epoch: int, indices: NDArray[Any], count: int, *, stream: int = 0) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for each index, as rows: many small generators at once.

    `stream` tells apart the purposes that draw for the same item (crop, flip, colour).
    """
    base = _absorb(_absorb(_absorb(0, seed), epoch), stream)
    rows = _mix(np.asarray(indices, dtype=np.int64).astype(np.uint64) ^ np.uint64(base))
    steps: Words = np.array([(_GOLDEN * (k + 1)) & _WORD for k in range(count)], dtype=np.uint64)
    words = _mix(rows[:, None] + steps[None, :])
    return np.asarray(words >> np.uint64(11), dtype=np.float64) * 2.0**-53


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    state = _absorb(_absorb(0, seed), epoch)
    return [np.uint64(_absorb(state, r)) for r in range(ROUNDS)]


def _feistel(x: Words, bits: int, keys: list[np.uint64]) -> Words:
    """Halves as even as the bits allow: a round adds a keyed hash of one half into the other, then swaps them."""
    low_bits, high_bits = bits // 2, bits - bits // 2
    low: Words = x & np.uint64((1 << low_bits) - 1)
    high: Words = x >> np.uint64(low_bits)
    for key in keys:
        high = high ^ (_mix(low ^ key) & np.uint64((1 << high_bits) - 1))
        low, high = high, low
        low_bits, high_bits = high_bits, low_bits
    return np.asarray((high << np.uint64(low_bits)) | low, dtype=np.uint64)


def _mix(x: Words) -> Words:
    """MurmurHash3's 64-bit finaliser (Stafford's 13th variant): every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)


def _absorb(state: int, value: int) -> int:
    """The same mixing on one Python integer, without numpy's overflow warnings for scalars."""
    x = ((state ^ (value & _WORD)) + _GOLDEN) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


_WALKS = 0x5EED0001  # keeps a pool's walk apart from the shuffle of the places


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Rows that are drawn from alike: their numbers, or all from one number to another. Shares are relative."""

    rows: Integers | range
    share: float


class SampleOrder:
    """`length` places an epoch, filled from pools. Pure: the same places hold the same rows whenever they are asked."""

    def __init__(self, pools: Sequence[SampleGroup], length: int, *, shuffle: bool = True) -> None:
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


def balanced(rows: Integers, labels: NDArray[np.int64], *, power: float = 0.5, share: float = 1.0) -> list[SampleGroup]:
    """A pool for each class, so that a row is drawn with P ∝ 1 / (rows of its class) ^ power.

    0 draws rows alike, 1 draws classes alike. Together the pools have `share`.
    """
    classes, counts = np.unique(labels, return_counts=True)
    weights = counts.astype(np.float64) ** (1.0 - power)
    weights *= share / weights.sum()
    return [SampleGroup(rows[labels == label], float(weight)) for label, weight in zip(classes, weights, strict=True)]
