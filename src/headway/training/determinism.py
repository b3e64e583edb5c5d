"""Randomness as a function of where we are, not of what happened before: nothing to save. About 8 µs a step.

Every default generator (torch's on each device, Python's and numpy's) is seeded from (seed, stream, position, rank)
before each step, so a step draws the same numbers whether the run came here in one go or over ten attempts.
Generators that a script makes itself are its own: give them to `run.restore` if they have a `state_dict`, or seed them
from `run.seed` and `run.global_step`.
"""

from __future__ import annotations

import _random
import os
import platform
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from headway._version import __version__
from headway.training.rank_info import RankTopology

# What exactness depends on outside the program: device, threads, versions. Set here, recorded, compared on resume.


def choose_device(world: RankTopology) -> torch.device:
    """This rank's accelerator, or the CPU."""
    if torch.cuda.is_available():
        device = torch.device("cuda", world.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def settle(*, exact: bool) -> None:
    """Thread count as the plan has it, and deterministic kernels where asked for."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads):
        torch.set_num_threads(int(threads))
    if exact and torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def environment(world: RankTopology, device: torch.device) -> dict[str, Any]:
    """What bit-identical results were obtained with."""
    facts = {
        "headway": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": device.type,
        "ranks": world.size,
        "cpu": platform.machine(),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, what has changed since a checkpoint was written."""
    names = sorted(then.keys() | now.keys())
    return [f"{name} {then.get(name)} → {now.get(name)}" for name in names if then.get(name) != now.get(name)]


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


class RngSeeder:
    """Seeds every default generator of this process from a position."""

    def __init__(self, seed: int, rank: int = 0, *, cuda: bool = False) -> None:
        self.seed, self.rank = seed, rank
        self._bases = [mix(seed, stream, rank) for stream in range(EVALUATION + 1)]
        self._generators = [torch.default_generator]
        if cuda:
            self._generators.append(torch.cuda.default_generators[torch.cuda.current_device()])

    def reseed(self, stream: int, position: int = 0, part: int = 0) -> None:
        """From here on, draws depend on (seed, stream, rank, position, part) alone."""
        word = mix(self._bases[stream] ^ position ^ part << 48)
        for generator in self._generators:
            generator.manual_seed(word >> 1)
        _seed_python(_PYTHONS, word)
        _PYTHONS.gauss_next = None
        np.random.seed(word & 0xFFFFFFFF)
