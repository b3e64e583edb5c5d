"""CPU, memory, disk and network of this machine (or container), from /proc and the cgroup: curves beside the loss."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from headway.supervisor.topology import cpus_here

SAMPLE_S = 10.0
_TICK = os.sysconf("SC_CLK_TCK")
_SECTOR = 512
_CGROUP = Path("/sys/fs/cgroup")


class SystemMeter:
    """Measures the machine since the last sample. A sample costs less than a millisecond."""

    def __init__(self) -> None:
        self._sampled = -SAMPLE_S
        self._totals: dict[str, float] = {}

    def due(self, now: float) -> bool:
        return now - self._sampled >= SAMPLE_S

    def sample(self) -> dict[str, Any] | None:
        """Return rates since the last sample, and the memory in use; None for the first one."""
        now = time.monotonic()
        seconds, self._sampled = now - self._sampled, now
        before, self._totals = self._totals, {"cores": _cpu_s(), **_disk_bytes(), **_network_bytes()}
        if not before:
            return None
        rates = {name: max(0.0, value - before.get(name, value)) / seconds for name, value in self._totals.items()}
        found: dict[str, Any] = {name: round(rate, 2 if name == "cores" else 0) for name, rate in rates.items()}
        used, total = _memory()
        return {**found, "cpus": cpus_here(), "memory": used, "memory_total": total}


def _cpu_s() -> float:
    """Return the CPU seconds that this container has used, or else this machine."""
    for line in _lines(_CGROUP / "cpu.stat"):
        if line.startswith("usage_usec"):
            return int(line.split()[1]) / 1e6
    fields = [int(each) for each in (_lines("/proc/stat") or ["cpu"])[0].split()[1:]]
    return (sum(fields) - sum(fields[3:5])) / _TICK  # without idle and iowait


def _memory() -> tuple[int, int]:
    """Return the bytes of memory in use and in total, of this container if it has a limit, or else of this machine."""
    limit = "".join(_lines(_CGROUP / "memory.max"))
    if limit.isdigit():
        cached = next((int(line.split()[1]) for line in _lines(_CGROUP / "memory.stat") if line.startswith("file ")), 0)
        return int("".join(_lines(_CGROUP / "memory.current")) or 0) - cached, int(limit)
    sizes = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if "kB" in line}
    total = sizes.get("MemTotal", 0)
    return total - sizes.get("MemAvailable", total), total


def _disk_bytes() -> dict[str, float]:
    """Return the bytes read from and written to whole disks: partitions and loop devices would count twice."""
    read = written = 0
    for line in _lines("/proc/diskstats"):
        fields = line.split()
        if Path("/sys/block", fields[2]).exists() and not fields[2].startswith(("loop", "ram", "dm-", "md")):
            read, written = read + int(fields[5]), written + int(fields[9])
    return {"disk_read": float(read * _SECTOR), "disk_written": float(written * _SECTOR)}


def _network_bytes() -> dict[str, float]:
    received = sent = 0
    for line in _lines("/proc/net/dev")[2:]:
        name, _, numbers = line.partition(":")
        if name.strip() != "lo":
            received, sent = received + int(numbers.split()[0]), sent + int(numbers.split()[8])
    return {"received": float(received), "sent": float(sent)}


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:  # another kernel, or a cgroup of version 1
        return []
