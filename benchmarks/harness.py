"""Ratios from interleaved repetitions: on a noisy machine only measurements of the same run can be compared."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HOME = Path.home() / ".cache" / "headway-bench"


@dataclass(frozen=True)
class Row:
    """One measured entry: seconds per repetition, in order."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Return half the interquartile range, relative to the median."""
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / 2 / self.median


def interleave(cases: dict[str, Callable[[], object]], repeats: int) -> list[Row]:
    """Run all cases in rounds, so that disturbances affect all alike. The first round is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(repeats + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if round_:
                taken[name].append(time.perf_counter() - start)
    return [Row(name, tuple(seconds)) for name, seconds in taken.items()]


def show(rows: list[Row], baseline: str, *, unit_s: float = 1e-3, unit: str = "ms") -> str:
    """Render a Markdown table: medians, their spread, and each as a multiple of the baseline."""
    base = next(row.median for row in rows if row.name == baseline)
    lines = [f"| | median ({unit}) | ± | × {baseline} |", "| --- | ---: | ---: | ---: |"]
    for row in rows:
        lines.append(f"| {row.name} | {row.median / unit_s:.2f} | {row.spread:.0%} | {row.median / base:.2f} |")
    return "\n".join(lines)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    return f"{os.cpu_count()} × {model}, Python {platform.python_version()}, {platform.system()} {platform.release()}"


# -- what is kept -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Note:
    """One recorded number: a bar of the plot, a line of the table of limits."""

    group: str  # numbers of one group are compared with each other
    name: str
    value: float
    unit: str
    limit: str = ""  # what physics, or an empty process, would take
    floor: float | None = None  # in the same unit


NOTED: list[Note] = []


def note(group: str, name: str, value: float, unit: str, *, limit: str = "", floor: float | None = None) -> None:
    """Record a number for docs/benchmarks.md, besides the benchmark's output."""
    NOTED.append(Note(group=group, name=name, value=value, unit=unit, limit=limit, floor=floor))


# -- rivals -----------------------------------------------------------------------------------------------------------


class Absent(Exception):
    """Another tool cannot be measured; the message says why."""


def environment(name: str, *packages: str, share: bool = True) -> Path:
    """Return the Python of a virtual environment with these packages, created once under ~/.cache/headway-bench.

    With `share` it also uses this environment's packages and Headway, so that torch is the same.
    """
    home = HOME / name
    if not (home / ".ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        try:
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, capture_output=True, text=True)
            if share:
                site = next((home / "lib").glob("python*")) / "site-packages"
                source = Path(__file__).resolve().parents[1] / "src"
                (site / "shared.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{source}\n")
            for wanted in (["-U", "pip"], packages):  # an old pip's resolver can take many minutes over some of these
                subprocess.run([*pip, *wanted], check=True, capture_output=True, text=True, timeout=900)
        except (subprocess.SubprocessError, OSError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            raise Absent(f"does not install: {said[-1][:120] if said else error}") from None
        (home / ".ready").touch()
    return home / "bin" / "python"
