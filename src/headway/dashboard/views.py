"""A run's checkpoints, log lines and downsampled metrics, for the dashboard's pages."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import NotThere
from headway.core.types import LogLine
from headway.rundir.history import Curves
from headway.rundir.layout import RunFolder, Segment, checkpoint_folder, parse_log, rank_of, read_lines, segments

# Checkpoints


_READ_BYTES: Final = 8 << 20


def checkpoints(folder: RunFolder, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """List all checkpoints ever committed, oldest first; `kept` tells whether the run's index still has it."""
    kept = {each["step"]: each for each in folder.kept_checkpoints()}
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["kind"] == "checkpoint":
            shown = ("step", "names", "bytes", "seconds", "stall_ms", "attempt", "time")
            fields = {key: event.get(key) for key in shown}
            record = kept.get(event["step"])
            now = {"names": record.get("names"), "score": record.get("score")} if record else {}
            found[event["step"]] = {**fields, **now, "kept": record is not None}
    return [found[step] for step in sorted(found)]


def verified(folder: RunFolder, step: int) -> dict[str, Any]:
    """Read a whole checkpoint and compare it with its manifest. `wrong` is empty if it is intact."""
    began = time.monotonic()
    place = checkpoint_folder(step)
    wrong = list(_checkpoint_problem(folder, place))
    return {"step": step, "wrong": wrong, "seconds": round(time.monotonic() - began, 3)}


def _checkpoint_problem(folder: RunFolder, place: str) -> Iterator[str]:
    from headway.training.checkpoint.serialization import CheckpointDamaged, verify_checksum

    try:
        manifest = verify_checksum(folder.store.read(f"{place}/manifest.json"), "manifest.json")
    except NotThere:
        yield "it has been removed"
        return
    except CheckpointDamaged as error:
        yield str(error)
        return
    state = manifest["state"]
    files = {f"{place}/{name}": record for name, record in {**manifest["files"], state["name"]: state}.items()}
    frozen = {f"checkpoints/frozen/{name}.safetensors": record for name, record in manifest.get("frozen", {}).items()}
    for key, expected in {**files, **frozen}.items():
        name = key.removeprefix(f"{place}/")
        try:
            size = folder.store.stat(key).size
        except NotThere:
            yield f"{name} is missing"
            continue
        if size != expected["bytes"]:
            yield f"{name} has {size:,} bytes and should have {expected['bytes']:,}"
        elif _sha256(folder, key, size) != expected["sha256"]:
            yield f"{name} is corrupt: its checksum differs"


def _sha256(folder: RunFolder, key: str, size: int) -> str:
    digest = hashlib.sha256()
    for start in range(0, size, _READ_BYTES):
        digest.update(folder.store.read(key, (start, min(size, start + _READ_BYTES))))
    return digest.hexdigest()


# Log lines


def last_lines(folder: RunFolder, *, rank: int | None, query: str, last: int) -> list[dict[str, Any]]:
    """Return the newest lines that contain `query`, oldest first, over all ranks by time."""
    streams: dict[str, list[Segment]] = {}
    for segment in segments(folder.store, "logs"):
        if rank in (None, rank_of(segment.writer)):
            streams.setdefault(segment.writer, []).append(segment)
    ends = [_end(folder, parts, query.lower(), last) for parts in streams.values()]
    merged = list(merge(*ends, key=lambda line: line.time))[-last:] if last else []
    return [{"rank": line.rank, "time": line.time, "text": line.text} for line in merged]


def _end(folder: RunFolder, parts: list[Segment], query: str, last: int) -> list[LogLine]:
    """Return the last matching lines of one stream, reading its segments from the end backwards."""
    found: list[LogLine] = []
    for segment in reversed(parts):
        read = (parse_log(rank_of(segment.writer), line) for line in read_lines(folder.store, segment))
        found = [line for line in read if query in line.text.lower()] + found
        if len(found) >= last:
            break
    return found


Numbers = NDArray[np.float64]


class Metrics:
    """All curves of one run. `refresh` reads only new segments."""

    def __init__(self, folder: RunFolder) -> None:
        self._curves = Curves(folder)

    def refresh(self) -> bool:
        """Read new segments; return whether there were any."""
        return self._curves.refresh()

    @property
    def names(self) -> list[str]:
        return self._curves.names

    def last(self) -> dict[str, float]:
        return self._curves.last()

    def curve(self, name: str, *, points: int, low: float | None = None, high: float | None = None) -> dict[str, Any]:
        """Return a curve between two steps, downsampled to about `points` points.

        Keeps the minimum and maximum of each bin, so that no spike is lost at any zoom. Non-finite values are null.
        """
        with self._curves.lock:
            steps, values = self._part(name, low, high)
        keep = downsample(values, points)
        shown = [value if np.isfinite(value) else None for value in values[keep].tolist()]
        return {"steps": steps[keep].tolist(), "values": shown, "total": len(steps)}

    def _part(self, name: str, low: float | None, high: float | None) -> tuple[Numbers, Numbers]:
        """Copy the part between two steps: an array with an exported buffer cannot grow."""
        curve = self._curves[name]
        if not len(curve):
            return np.empty(0), np.empty(0)
        steps, values = np.frombuffer(curve.steps), np.frombuffer(curve.values)
        first = 0 if low is None else int(np.searchsorted(steps, low))
        last = len(steps) if high is None else int(np.searchsorted(steps, high, side="right"))
        return steps[first:last].copy(), values[first:last].copy()


def downsample(values: NDArray[np.float64], points: int) -> NDArray[np.int64]:
    """Return the indices to draw: both ends, and the minimum and maximum of each bin, in order."""
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
