"""Accelerators: how fast they train, and which Google machine types carry them. Pure.

Speeds are for estimates: sustained, not peak, and rough. Peak figures are the vendors' (dense, mixed precision where
the device has it); the share of the peak that training reaches is our own estimate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Teraflops at mixed precision, dense; CPU cores in single precision.
PEAK_TFLOPS = {
    "P4": 5.5, "P100": 19.0, "V100": 125.0, "V100-32GB": 125.0, "T4": 65.0, "A10": 125.0, "A10G": 70.0, "A30": 165.0,
    "A40": 150.0, "A100": 312.0, "A100-80GB": 312.0, "L4": 121.0, "L40": 181.0, "L40S": 362.0, "H100": 989.0,
    "H100-MEGA": 989.0, "H200": 989.0, "GH200": 989.0, "B200": 2250.0, "B300": 2500.0, "GB200": 2500.0,
    "RTX3090": 71.0, "RTX4090": 165.0, "RTX5090": 210.0, "RTXA5000": 111.0, "RTXA6000": 155.0, "RTX6000ADA": 182.0,
    "RTXPRO6000": 250.0, "MI250X": 383.0, "MI300X": 1307.0,
}  # fmt: skip
CPU_CORE_TFLOPS = 0.11  # measured here: 218 GFLOPS on two cores
# Share of the peak. The faster a device, the less of it a model of ordinary size keeps busy: between a T4 and an A100
# people see a factor of 2.5 to 3, not 4.8 (T4 6–8 h, V100 3–4 h, A100 2–3 h for the same job).
GPU_SHARE, CPU_SHARE, DAMPED = 0.25, 0.5, 0.65


def sustained_tflops(kind: str | None, count: int = 1, *, cpus: int = 1) -> float | None:
    """Estimate the teraflops that ordinary training sustains on one node; None for a device without figures."""
    if kind is None:
        return CPU_CORE_TFLOPS * CPU_SHARE * max(1, cpus)
    peak = PEAK_TFLOPS.get(kind)
    if peak is None:
        return None
    reference = PEAK_TFLOPS["T4"]
    return float(GPU_SHARE * reference * (peak / reference) ** DAMPED * count**0.9)


# Accelerators built into their machine types: machine type by number of accelerators.
_BUILT_IN = {
    "L4": {1: "g2-standard-8", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"},
    "A100": {n: f"a2-highgpu-{n}g" for n in (1, 2, 4, 8)} | {16: "a2-megagpu-16g"},
    "A100-80GB": {n: f"a2-ultragpu-{n}g" for n in (1, 2, 4, 8)},
    "H100": {n: f"a3-highgpu-{n}g" for n in (1, 2, 4, 8)},
    "H100-MEGA": {8: "a3-megagpu-8g"},
    "H200": {8: "a3-ultragpu-8g"},
}
# Accelerators attached to general-purpose machines: with enough CPUs to feed them, up to the most that is allowed.
_MOST_CPUS = {
    "T4": {1: 16, 2: 32, 4: 96},
    "P4": {1: 16, 2: 32, 4: 96},
    "P100": {1: 16, 2: 32, 4: 32},
    "V100": {1: 8, 2: 16, 4: 32, 8: 96},
}
_FEEDS = {1: 8, 2: 16, 4: 32, 8: 64}
_N1 = (4, 8, 16, 32, 64, 96)  # n1-standard-1 and -2 are not offered for training
_G2 = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
_GIB_PER_CPU = {"n1-standard": 3.75, "n1-highmem": 6.5, "g2-standard": 4.0}


def machine_for(kind: str, count: int, *, cpus: int | None = None, memory: int | None = None) -> str | None:
    """Return the usual machine type for `count` accelerators, or the next larger with enough CPUs and bytes of memory.

    None if that combination is not sold. If none is large enough, the usual one: the target reports the problem.
    """
    if kind in _BUILT_IN:
        usual = _BUILT_IN[kind].get(count)
        sizes = [size for size, has in _G2.items() if kind == "L4" and has == count and size >= 8]
        return _smallest("g2-standard", sizes, cpus, memory) or usual
    most = _MOST_CPUS.get(kind, {}).get(count)
    if most is None:
        return None
    sizes = [size for size in _N1 if _FEEDS[count] <= size <= most]
    return _general(sizes, cpus, memory) or f"n1-standard-{_FEEDS[count]}"


def _general(sizes: Iterable[int], cpus: int | None, memory: int | None) -> str | None:
    sizes = list(sizes)
    return _smallest("n1-standard", sizes, cpus, memory) or _smallest("n1-highmem", sizes, cpus, memory)


def _smallest(family: str, sizes: Iterable[int], cpus: int | None, memory: int | None) -> str | None:
    gib = (memory or 0) / 2**30
    fitting = (size for size in sorted(sizes) if size >= (cpus or 1) and size * _GIB_PER_CPU[family] >= gib)
    return next((f"{family}-{size}" for size in fitting), None)


def accelerators_of(machine: str) -> tuple[str, int] | None:
    """Return the accelerators built into a machine type; None if it has none."""
    g2 = re.fullmatch(r"g2-standard-(\d+)", machine)
    if g2:
        return "L4", _G2.get(int(g2[1]), 1)
    families = {"a2-highgpu": "A100", "a2-megagpu": "A100", "a2-ultragpu": "A100-80GB", "a3-highgpu": "H100",
                "a3-megagpu": "H100-MEGA", "a3-ultragpu": "H200"}  # fmt: skip
    built = re.fullmatch(r"(a[23]-[a-z]+)-(\d+)g", machine)
    return (families[built[1]], int(built[2])) if built and built[1] in families else None


def machine_with(cpus: int | None, memory: int | None) -> str:
    """Return the smallest general-purpose machine type with enough CPUs and bytes of memory, if a job names none."""
    return _general(_N1, cpus, memory) or "n1-highmem-96"
