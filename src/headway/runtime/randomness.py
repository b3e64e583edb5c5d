"""Randomness as a function of where we are, not of what happened before: nothing to save. About 8 µs a step.

Every default generator (torch's on each device, Python's and numpy's) is seeded from (seed, stream, position, rank)
before each step, so a step draws the same numbers whether the run came here in one go or over ten attempts.
Generators that a script makes itself are its own: give them to `run.restore` if they have a `state_dict`, or seed them
from `run.seed` and `run.global_step`.
"""

from __future__ import annotations

import _random
import random
from typing import Any

import numpy as np
import torch

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

# Python's own generator, seeded without the wrapper that accepts anything: it is half of the cost.
_PYTHONS: Any = random.seed.__self__  # type: ignore[attr-defined]
_seed_python = _random.Random.seed

# Streams keep purposes apart: the model's dropout must not repeat the numbers that shuffled the data.
SETUP, MODEL, DATA, ITEM, EVALUATION = range(1, 6)


def mix(*words: int) -> int:
    """One 64-bit number from several, every input bit reaching every output bit (splitmix64)."""
    state = 0
    for word in words:
        state = (state ^ (word & _WORD)) + _GOLDEN & _WORD
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return state


class Dice:
    """Seeds every default generator of this process from a position."""

    def __init__(self, seed: int, rank: int = 0, *, cuda: bool = False) -> None:
        self.seed, self.rank = seed, rank
        self._bases = [mix(seed, stream, rank) for stream in range(EVALUATION + 1)]
        self._generators = [torch.default_generator]
        if cuda:
            self._generators.append(torch.cuda.default_generators[torch.cuda.current_device()])

    def roll(self, stream: int, position: int = 0, part: int = 0) -> None:
        """From here on, draws depend on (seed, stream, rank, position, part) alone."""
        word = mix(self._bases[stream] ^ position ^ part << 48)
        for generator in self._generators:
            generator.manual_seed(word >> 1)
        _seed_python(_PYTHONS, word)
        _PYTHONS.gauss_next = None
        np.random.seed(word & 0xFFFFFFFF)
