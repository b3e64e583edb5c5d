"""Determinism: thread and kernel settings, the environment recorded for resume, and stateless RNG seeding.

Randomness is a function of the position, not of earlier draws, so there is no generator state to save. RngSeeder seeds
every default generator (torch's on each device, Python's and numpy's) from (seed, stream, position, rank) before each
step, at about 8 µs, so a step draws the same numbers in a straight run and over ten attempts. Headway does not seed
generators that a script makes itself: give them to `run.restore` if they have a `state_dict`, or seed them from
`run.seed` and `run.global_step`.
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

# Settings outside the program that exact results depend on: device, threads, versions


def configure_torch(*, exact: bool, device: torch.device) -> None:
    """Set the plan's thread count and, if `exact`, deterministic kernels."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads):
        torch.set_num_threads(int(threads))
    if exact and device.type != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def describe_environment(world: RankTopology, device: torch.device) -> dict[str, Any]:
    """Describe the environment that bit-identical results depend on. Checkpoints record it; resume compares it."""
    facts = {
        "headway": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": device.type,
        "ranks": world.size,
        "cpu": platform.machine(),
    }
    if device.type != "cpu":
        module = torch.get_device_module(device)
        facts["gpu"] = module.get_device_name(device) if hasattr(module, "get_device_name") else device.type
    if device.type == "cuda":
        facts["cuda"] = torch.version.cuda or f"hip {torch.version.hip}"
    return facts


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List in words what has changed since a checkpoint was written."""
    names = sorted(then.keys() | now.keys())
    return [f"{name} {then.get(name)} → {now.get(name)}" for name in names if then.get(name) != now.get(name)]


_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

# Python's default generator, seeded without random.seed's type handling, which is half of the cost.
_PYTHON_RNG: Any = random.seed.__self__  # type: ignore[attr-defined]
_seed_python = _random.Random.seed

# Streams separate purposes: the model's dropout must not repeat the numbers that shuffled the data.
SETUP, MODEL, DATA, ITEM, EVALUATION = range(1, 6)


def mix(*words: int) -> int:
    """Hash several integers into a 64-bit one; every input bit affects every output bit (splitmix64)."""
    state = 0
    for word in words:
        state = (state ^ (word & _WORD)) + _GOLDEN & _WORD
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return state


class RngSeeder:
    """Seeds every default generator of this process as a function of the position."""

    def __init__(self, seed: int, rank: int = 0, *, device_generator: torch.Generator | None = None) -> None:
        self.seed, self.rank = seed, rank
        self._bases = [mix(seed, stream, rank) for stream in range(EVALUATION + 1)]
        self._generators = [torch.default_generator]
        if device_generator is not None:
            self._generators.append(device_generator)

    def reseed(self, stream: int, position: int = 0, part: int = 0) -> None:
        """Seed the generators so that later draws depend only on (seed, stream, rank, position, part)."""
        word = mix(self._bases[stream] ^ position ^ part << 48)
        for generator in self._generators:
            generator.manual_seed(word >> 1)
        _seed_python(_PYTHON_RNG, word)
        _PYTHON_RNG.gauss_next = None
        np.random.seed(word & 0xFFFFFFFF)
