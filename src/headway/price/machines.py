"""Which machine carries which accelerator, as Google sells them. Pure."""

from __future__ import annotations

import re

# For kinds whose machines are made for them: how many accelerators, and the machine with so many.
_BUILT_IN = {
    "L4": {1: "g2-standard-8", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"},
    "A100": {n: f"a2-highgpu-{n}g" for n in (1, 2, 4, 8)} | {16: "a2-megagpu-16g"},
    "A100-80GB": {n: f"a2-ultragpu-{n}g" for n in (1, 2, 4, 8)},
    "H100": {n: f"a3-highgpu-{n}g" for n in (1, 2, 4, 8)},
    "H100-MEGA": {8: "a3-megagpu-8g"},
    "H200": {8: "a3-ultragpu-8g"},
}
# These are attached to a machine of the first general family; it needs CPUs enough to feed them.
_ATTACHED = {"T4": (1, 2, 4), "P4": (1, 2, 4), "P100": (1, 2, 4), "V100": (1, 2, 4, 8)}
_FEEDS = {1: "n1-standard-8", 2: "n1-standard-16", 4: "n1-standard-32", 8: "n1-standard-64"}
_G2 = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}


def machine_for(kind: str, count: int) -> str | None:
    """The usual machine for so many of a kind; None where it is not sold like that."""
    if kind in _BUILT_IN:
        return _BUILT_IN[kind].get(count)
    return _FEEDS[count] if count in _ATTACHED.get(kind, ()) else None


def accelerators_of(machine: str) -> tuple[str, int] | None:
    """What is built into a machine, by its name; None for one that has none of its own."""
    g2 = re.fullmatch(r"g2-standard-(\d+)", machine)
    if g2:
        return "L4", _G2.get(int(g2[1]), 1)
    families = {"a2-highgpu": "A100", "a2-megagpu": "A100", "a2-ultragpu": "A100-80GB", "a3-highgpu": "H100",
                "a3-megagpu": "H100-MEGA", "a3-ultragpu": "H200"}  # fmt: skip
    built = re.fullmatch(r"(a[23]-[a-z]+)-(\d+)g", machine)
    return (families[built[1]], int(built[2])) if built and built[1] in families else None


def machine_with(cpus: int | None, memory: int | None) -> str:
    """The smallest general machine with so many CPUs and so much memory, for a job that names none."""
    gib = (memory or 0) / 2**30
    for size in (2, 4, 8, 16, 32, 64, 96):
        if size >= (cpus or 1) and size * 3.75 >= gib:
            return f"n1-standard-{size}"
    return "n1-highmem-96"
