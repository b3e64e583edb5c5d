"""What exactness depends on outside the program: device, threads, versions. Set here, recorded, compared on resume."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

import torch

from headway.runtime.identity import World
from headway.version import __version__


def choose_device(world: World) -> torch.device:
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


def environment(world: World, device: torch.device) -> dict[str, Any]:
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
