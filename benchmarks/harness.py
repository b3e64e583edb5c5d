"""Ratios from interleaved repetitions: on a noisy machine only what was measured in the same run can be compared."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One contender: seconds for each repetition, in the order they were measured."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a part of the median."""
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / 2 / self.median


def interleave(cases: dict[str, Callable[[], object]], repeats: int) -> list[Row]:
    """Every case once, then every case again, …: what disturbs hits all alike. The first round is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(repeats + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if round_:
                taken[name].append(time.perf_counter() - start)
    return [Row(name, tuple(seconds)) for name, seconds in taken.items()]


def show(rows: list[Row], baseline: str, *, unit_s: float = 1e-3, unit: str = "ms") -> str:
    """A Markdown table: medians, their spread, and each as a multiple of the baseline."""
    base = next(row.median for row in rows if row.name == baseline)
    lines = [f"| | median ({unit}) | ± | × {baseline} |", "| --- | ---: | ---: | ---: |"]
    for row in rows:
        lines.append(f"| {row.name} | {row.median / unit_s:.2f} | {row.spread:.0%} | {row.median / base:.2f} |")
    return "\n".join(lines)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    return f"{os.cpu_count()} × {model}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
