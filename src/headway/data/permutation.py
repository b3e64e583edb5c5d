"""Order and randomness as pure functions of (seed, epoch, index): nothing to save or replay. Needs numpy alone.

A shuffled epoch is a keyed bijection of 0 … n-1 (a Feistel network with cycle walking) that is evaluated only at
the positions asked for, so the millionth batch costs what the first does, in constant memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
