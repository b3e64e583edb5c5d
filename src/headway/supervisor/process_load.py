"""How busy the rank processes of this node are: CPU time and bytes moved, from /proc, with all processes below them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from headway.supervisor.processes import descendants
from headway.supervisor.watchdog import Load

SAMPLE_S = 5.0
_TREE_S = 30.0  # between two looks for new processes
_TICK = os.sysconf("SC_CLK_TCK")


class LoadMeter:
    """Measures the load since the last sample. A sample costs about 50 µs per process."""

    def __init__(self, every_s: float = SAMPLE_S) -> None:
        self._every_s = every_s
        self._pids: set[int] = set()
        self._listed = self._sampled = -_TREE_S
        self._totals: dict[int, tuple[float, float]] = {}  # CPU seconds and bytes, by process

    def due(self, now: float) -> bool:
        return now - self._sampled >= self._every_s

    def sample(self, ranks: Mapping[int, int]) -> Load | None:
        """Return the load of the ranks (rank -> pid) since the last sample; None for the first one."""
        now = time.monotonic()
        if now - self._listed >= _TREE_S or not self._pids.issuperset(ranks.values()):
            self._pids = set(ranks.values()).union(*(descendants(pid, set()) for pid in ranks.values()))
            self._listed = now
        seconds, self._sampled = now - self._sampled, now
        before, self._totals = self._totals, {pid: _used(pid) for pid in self._pids}
        if not before:
            return None
        # A process that has just been found counts from its own start; one that is gone no longer counts.
        used = [
            (cpu - before.get(pid, (cpu, 0.0))[0], moved - before.get(pid, (0.0, moved))[1])
            for pid, (cpu, moved) in self._totals.items()
        ]
        return Load(
            cores=round(max(0.0, sum(cpu for cpu, _ in used)) / seconds, 3),
            bytes_per_s=round(max(0.0, sum(moved for _, moved in used)) / seconds),
            stopped=tuple(rank for rank, pid in ranks.items() if process_state(pid) in ("T", "t")),
        )


def process_state(pid: int) -> str:
    """Return the state letter of a process: R, S, D (uninterruptible), T (stopped), Z; "" if it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def _used(pid: int) -> tuple[float, float]:
    """Return the CPU seconds and the bytes read and written, through files, pipes and sockets, of a process."""
    fields = _stat(pid)
    cpu = (int(fields[11]) + int(fields[12])) / _TICK if fields else 0.0
    try:
        moved = [line.split()[1] for line in Path(f"/proc/{pid}/io").read_text().splitlines()[:2]]
    except OSError:  # it has ended, or belongs to another user
        moved = []
    return cpu, float(sum(map(int, moved)))


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
