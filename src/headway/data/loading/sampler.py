"""Deterministic sampling order: weighted sources, balanced classes, a new shuffle per epoch, and the split over ranks.

An epoch has a fixed number of positions per sample group (a source, or a class of it). Positions are shuffled; a
group's positions are filled by walking through its rows in shuffled order, continuing in the next epoch where this one
stopped. So shares are exact in every epoch, no row comes a third time before every row has come twice, and the row at
any position is found in constant time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput

# Split of a global batch over ranks.


@dataclass(frozen=True, slots=True)
class PaddingBatch:
    """A batch for a rank without items: it runs through the model to keep ranks in step, with weight 0."""

    batch: Any


def share(size: int, part: int, parts: int) -> tuple[int, int]:
    """Return [start, stop) of one part. Parts differ in size by at most one and cover everything."""
    small, extra = divmod(size, parts)
    start = part * small + min(part, extra)
    return start, start + small + (part < extra)


# Order and randomness as pure functions of (seed, epoch, index): no state to save. Needs numpy alone.


Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

ROUNDS = 8  # four are enough for large sets; small ones need a few more to hide the original order
_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: successive multiples are evenly spread


def permute(n: int, seed: int, epoch: int, positions: NDArray[Any]) -> Integers:
    """Return which of `n` items are at `positions` of the shuffled epoch: a bijection of 0 … n-1 for every key.

    A Feistel network with cycle walking, evaluated only at the requested positions: the millionth batch costs as much
    as the first, in constant memory.
    """
    walk: Integers = np.asarray(positions, dtype=np.int64)
    if walk.size and (n <= 0 or int(walk.min()) < 0 or int(walk.max()) >= n):
        raise IndexError(f"positions must be in 0 … {n - 1}")
    if n <= 1:
        return np.array(walk, dtype=np.int64)
    bits = max(2, (n - 1).bit_length())
    keys = _round_keys(seed, epoch)
    out = _feistel(walk.astype(np.uint64).ravel(), bits, keys)
    while True:  # cycle walking: repeat until inside 0 … n-1 (the network permutes 0 … 2^bits - 1)
        outside = np.flatnonzero(out >= np.uint64(n))
        if not outside.size:
            return np.asarray(out.reshape(walk.shape), dtype=np.int64)
        out[outside] = _feistel(out[outside], bits, keys)


def rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return an independent generator for one item of one epoch: 2^128 draws before streams could overlap."""
    key = np.array([seed & _WORD, epoch & _WORD], dtype=np.uint64)
    counter = np.array([0, 0, index & _WORD, 0], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def uniforms(seed: int, epoch: int, indices: NDArray[Any], count: int, *, stream: int = 0) -> NDArray[np.float64]:
    """Return `count` numbers in [0, 1) per index, as rows, without creating a generator per index.

    `stream` separates the uses that draw for the same item (crop, flip, colour).
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
    """Apply the Feistel rounds. A round XORs a keyed hash of one half into the other and swaps the halves."""
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
    """Mix one Python integer in the same way, without numpy's overflow warnings for scalars."""
    x = ((state ^ (value & _WORD)) + _GOLDEN) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


_ROW_ORDER_KEY = 0x5EED0001  # separates the groups' row order from the shuffle of positions


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Rows sampled with equal probability, as row numbers or a range. Shares are relative."""

    rows: Integers | range
    share: float


class SampleOrder:
    """The rows of an epoch of `length` positions, filled from sample groups.

    Pure: a position always gives the same row.
    """

    def __init__(self, groups: Sequence[SampleGroup], length: int, *, shuffle: bool = True) -> None:
        usable = [pool for pool in groups if len(pool.rows) and pool.share > 0]
        if not usable or length < 1:
            raise BadInput("there are no rows to sample from", fix="check the splits, filters and weights of the data")
        self._rows = [pool.rows for pool in usable]
        self._shuffle, self.length = shuffle, length
        self.quotas = quotas([pool.share for pool in usable], length)
        self._starts = np.concatenate(([0], np.cumsum(self.quotas)))

    def __len__(self) -> int:
        return self.length

    def rows_at(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> Integers:
        """Return the rows at these positions of this epoch."""
        places = permute(self.length, seed, epoch, positions) if self._shuffle else positions
        if len(self._rows) == 1 and self.length == len(self._rows[0]):
            return _pick(self._rows[0], places)  # each row once: one shuffle is enough
        chosen = np.searchsorted(self._starts, places, side="right") - 1
        found = np.empty(len(places), np.int64)
        for number in np.unique(chosen):
            mine = chosen == number
            found[mine] = self._group_rows(seed, int(number), epoch, places[mine] - self._starts[number])
        return found

    def _group_rows(self, seed: int, number: int, epoch: int, places: NDArray[np.int64]) -> Integers:
        """Return a group's rows in shuffled order, round after round: epoch e begins where epoch e-1 stopped."""
        rows = self._rows[number]
        rounds, steps = np.divmod(epoch * int(self.quotas[number]) + places, len(rows))
        found = np.empty(len(places), np.int64)
        for turn in np.unique(rounds):
            mine = rounds == turn
            order = (
                permute(len(rows), seed ^ (_ROW_ORDER_KEY + number), int(turn), steps[mine]) if self._shuffle else None
            )
            found[mine] = _pick(rows, steps[mine] if order is None else order)
        return found


def _pick(rows: Integers | range, places: Integers) -> Integers:
    return places + rows.start if isinstance(rows, range) else np.asarray(rows[places], dtype=np.int64)


def quotas(shares: Sequence[float], length: int) -> Integers:
    """Round `shares` to integers that sum to `length` (largest remainder): each is off by less than one."""
    exact = np.asarray(shares, dtype=np.float64)
    exact = exact / exact.sum() * length
    rounded = np.floor(exact).astype(np.int64)
    short = length - int(rounded.sum())
    largest_remainders = np.argsort(-(exact - rounded), kind="stable")[:short]
    rounded[largest_remainders] += 1
    return np.asarray(rounded, dtype=np.int64)


def balanced(rows: Integers, labels: NDArray[np.int64], *, power: float = 0.5, share: float = 1.0) -> list[SampleGroup]:
    """Return one sample group per class, so that a row is drawn with P ∝ 1 / (rows of its class) ^ power.

    Power 0 samples rows uniformly, 1 samples classes uniformly. The groups together have `share`.
    """
    classes, counts = np.unique(labels, return_counts=True)
    weights = counts.astype(np.float64) ** (1.0 - power)
    weights *= share / weights.sum()
    return [SampleGroup(rows[labels == label], float(weight)) for label, weight in zip(classes, weights, strict=True)]
