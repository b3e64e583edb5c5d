"""A run's metrics for drawing: thinned to what a screen can show."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.curves import Curves
from headway.runfolder import RunFolder

Numbers = NDArray[np.float64]


class Metrics:
    """All curves of one run. `refresh` reads only segments that it has not seen."""

    def __init__(self, folder: RunFolder) -> None:
        self._curves = Curves(folder)

    def refresh(self) -> bool:
        """Whether there was anything new."""
        return self._curves.refresh()

    @property
    def names(self) -> list[str]:
        return self._curves.names

    def last(self) -> dict[str, float]:
        return self._curves.last()

    def curve(self, name: str, *, points: int, low: float | None = None, high: float | None = None) -> dict[str, Any]:
        """At most about `points` of a curve between two steps: the least and the most of each stretch, so that no
        spike is lost, however far one zooms out. Values that are no numbers are left out of the line."""
        with self._curves.lock:
            steps, values = self._part(name, low, high)
        keep = thinned(values, points)
        shown = [value if np.isfinite(value) else None for value in values[keep].tolist()]
        return {"steps": steps[keep].tolist(), "values": shown, "total": len(steps)}

    def _part(self, name: str, low: float | None, high: float | None) -> tuple[Numbers, Numbers]:
        """Copies of what lies between two steps: an array that somebody looks into cannot grow."""
        curve = self._curves[name]
        if not len(curve):
            return np.empty(0), np.empty(0)
        steps, values = np.frombuffer(curve.steps), np.frombuffer(curve.values)
        first = 0 if low is None else int(np.searchsorted(steps, low))
        last = len(steps) if high is None else int(np.searchsorted(steps, high, side="right"))
        return steps[first:last].copy(), values[first:last].copy()


def thinned(values: NDArray[np.float64], points: int) -> NDArray[np.int64]:
    """Which values to draw: both ends, and of each stretch between them its least and its most, in order."""
    count = len(values)
    if count <= points:
        return np.arange(count)
    stretches = max(1, points // 2 - 1)
    edges = np.linspace(0, count, stretches + 1).astype(np.int64)
    low = np.where(np.isfinite(values), values, np.inf)
    high = np.where(np.isfinite(values), values, -np.inf)
    found = {0, count - 1}
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if stop > start:
            found.add(start + int(low[start:stop].argmin()))
            found.add(start + int(high[start:stop].argmax()))
    return np.array(sorted(found), dtype=np.int64)
