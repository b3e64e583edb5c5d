"""A run's metrics for drawing: read once, added to as the run goes on, and thinned to what a screen can show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headway.runfolder import RunFolder
from headway.segments import Segment, lines, segments

_NOT_CURVES: Final = ("step", "epoch", "time", "resume_step")


@dataclass(slots=True)
class _Curve:
    """One metric. Grows at its end; what an earlier attempt wrote past a resume is cut off."""

    steps: NDArray[np.float64] = field(default_factory=lambda: np.empty(64))
    values: NDArray[np.float64] = field(default_factory=lambda: np.empty(64))
    size: int = 0

    def add(self, step: float, value: float) -> None:
        if self.size and step <= self.steps[self.size - 1]:
            at = int(np.searchsorted(self.steps[: self.size], step))
            if at < self.size and self.steps[at] == step:
                self.values[at] = value
                return
            self.size = at  # steps only go back at a resume, and then what was ahead is void
        if self.size == len(self.steps):
            self.steps, self.values = (
                np.concatenate([each, np.empty_like(each)]) for each in (self.steps, self.values)
            )
        self.steps[self.size], self.values[self.size] = step, value
        self.size += 1

    def cut(self, after: float) -> None:
        self.size = int(np.searchsorted(self.steps[: self.size], after, side="right"))


class Metrics:
    """All curves of one run. `refresh` reads only segments that it has not seen."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._seen: set[str] = set()
        self._attempt = 0  # the newest one read
        self._curves: dict[str, _Curve] = {}
        self._lock = Lock()

    def refresh(self) -> bool:
        """Whether there was anything new."""
        with self._lock:
            fresh = [each for each in segments(self._folder.store, "metrics") if each.key not in self._seen]
            for segment in fresh:
                self._read(segment)
                self._attempt = max(self._attempt, segment.attempt)
            return bool(fresh)

    def _read(self, segment: Segment) -> None:
        for line in lines(self._folder.store, segment):
            record = json.loads(line)
            if record.get("resume_attempt", self._attempt) not in (self._attempt, segment.attempt):
                self._begin_anew()  # it goes on from an attempt before the last one: seldom, and told by the folder
            elif "resume_step" in record:
                for curve in self._curves.values():
                    curve.cut(float(record["resume_step"]))
            elif "step" in record:
                self._take(record)
        self._seen.add(segment.key)

    def _begin_anew(self) -> None:
        self._curves = {}
        for record in self._folder.metrics():
            self._take(record)

    def _take(self, record: Mapping[str, Any]) -> None:
        step = float(record["step"])
        for name, value in record.items():
            if name not in _NOT_CURVES and isinstance(value, (int, float)) and not isinstance(value, bool):
                self._curves.setdefault(name, _Curve()).add(step, float(value))

    @property
    def names(self) -> list[str]:
        return sorted(self._curves)

    def last(self) -> dict[str, float]:
        with self._lock:
            return {name: float(curve.values[curve.size - 1]) for name, curve in self._curves.items() if curve.size}

    def curve(self, name: str, *, points: int, low: float | None = None, high: float | None = None) -> dict[str, Any]:
        """At most about `points` of a curve between two steps: the least and the most of each stretch, so that no
        spike is lost, however far one zooms out. Values that are no numbers are left out of the line."""
        with self._lock:
            curve = self._curves.get(name)
            if curve is None:
                return {"steps": [], "values": [], "total": 0}
            first = 0 if low is None else int(np.searchsorted(curve.steps[: curve.size], low))
            last = curve.size if high is None else int(np.searchsorted(curve.steps[: curve.size], high, side="right"))
            steps, values = curve.steps[first:last].copy(), curve.values[first:last].copy()
        keep = thinned(values, points)
        shown = [value if np.isfinite(value) else None for value in values[keep].tolist()]
        return {"steps": steps[keep].tolist(), "values": shown, "total": int(last - first)}


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
