"""Read metrics from the log files that trackers write below a program's working folder, while they grow.

TensorBoard event files, W&B's `run-*.wandb`, MLflow's `mlruns/*/*/metrics/*`, and `metrics.csv` of Lightning. Only
what is written after the start is read: earlier files belong to earlier runs. Formats are read without their libraries
and without trust: a file that is damaged or of another format is left alone.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import error as StructError
from struct import unpack_from
from typing import Any, BinaryIO

MAX_METRICS = 500  # different names
_MAX_ENTRIES, _MAX_DEPTH = 20_000, 8
_MAX_RECORD = 1 << 20  # larger ones are images and histograms
_READ_BYTES = 8 << 20  # of one file at a time
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "venv", "env", "site-packages", "checkpoints"})
_RESERVED = frozenset({"step", "epoch", "time", "resume_step", "resume_attempt"})
_MLFLOW = re.compile(r"(?:^|/)mlruns/[^/]+/[^/]+/metrics/(?P<name>.+)$")


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one metric."""

    step: int
    name: str
    value: float
    time: float


class MetricFiles:
    """The tracker files below some folders. Thread-safe."""

    def __init__(self, folders: Sequence[Path], sources: frozenset[str], *, excluded: Sequence[Path] = ()) -> None:
        """Remember which files there are already, and how long they are: nothing before that is read."""
        self._folders, self._sources = tuple(folders), sources
        self._excluded = {str(path) for path in excluded}
        self._lock = threading.Lock()
        self._first_folder: str | None = None
        self._names: set[str] = set()
        self._files: dict[str, _TrackerFile] = {}
        for path, reader in self._find():
            reader.skip_existing()
            self._files[path] = reader

    def read(self) -> list[dict[str, Any]]:
        """Return the metric records that were written since the last call, one for each step of a file."""
        with self._lock:
            for path, reader in self._find():
                self._files.setdefault(path, reader)
            records: list[dict[str, Any]] = []
            for path, reader in self._files.items():
                points = reader.read_new()
                prefix = self._prefix(path, reader) if points else ""
                records += self._records(points, prefix)
            return records

    def _records(self, points: Sequence[Point], prefix: str) -> Iterator[dict[str, Any]]:
        record: dict[str, Any] = {}
        for point in points:
            name = f"{prefix}{point.name}"
            if name in _RESERVED or not self._accepts(name):
                continue
            if record and record["step"] != point.step:
                yield record
                record = {}
            record = record or {"step": point.step, "time": round(point.time or time.time(), 3)}
            record[name] = point.value if math.isfinite(point.value) else repr(point.value)
        if record:
            yield record

    def _accepts(self, name: str) -> bool:
        if name not in self._names and len(self._names) < MAX_METRICS:
            self._names.add(name)
        return name in self._names

    def _prefix(self, path: str, reader: _TrackerFile) -> str:
        """Return a prefix for the names in a file: Keras writes the same names below `train` and `validation`."""
        if not isinstance(reader, _TensorBoardFile):
            return ""
        folder = os.path.dirname(path)
        self._first_folder = self._first_folder or folder
        return "" if folder == self._first_folder else f"{os.path.basename(folder)}/"

    def _find(self) -> Iterator[tuple[str, _TrackerFile]]:
        seen = 0
        waiting = [(str(folder), 0) for folder in self._folders]
        while waiting and seen < _MAX_ENTRIES:
            folder, depth = waiting.pop(0)
            for entry in _entries(folder):
                seen += 1
                if entry.is_dir(follow_symlinks=False):
                    hidden = entry.name.startswith(".") or entry.name in _SKIPPED_FOLDERS
                    if not hidden and depth < _MAX_DEPTH and entry.path not in self._excluded:
                        waiting.append((entry.path, depth + 1))
                elif entry.path not in self._files and (reader := self._reader_of(entry)) is not None:
                    yield entry.path, reader

    def _reader_of(self, entry: os.DirEntry[str]) -> _TrackerFile | None:
        name = entry.name
        if "tensorboard" in self._sources and ".tfevents." in name:
            return _TensorBoardFile(entry.path)
        if "wandb" in self._sources and name.endswith(".wandb"):
            return _WandbFile(entry.path)
        if "lightning" in self._sources and name == "metrics.csv":
            return _CsvFile(entry.path)
        found = _MLFLOW.search(entry.path) if "mlflow" in self._sources else None
        return _MlflowFile(entry.path, found["name"]) if found else None


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []  # removed, or not allowed


class _TrackerFile(ABC):
    """A file that grows. `_parse` returns the points in new bytes and how many of them it has used."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._offset = 0
        self._damaged = False

    def skip_existing(self) -> None:
        self._offset = _size(self.path)

    def read_new(self) -> list[Point]:
        """Return the points written since the last call. A damaged file gives no more."""
        if self._damaged or _size(self.path) <= self._offset:
            return []
        points: list[Point] = []
        try:
            with open(self.path, "rb") as file:
                self._read_from(file, points)
        except OSError:
            pass  # removed meanwhile
        except (ValueError, StructError, IndexError, OverflowError):
            self._damaged = True
        return points

    def _read_from(self, file: BinaryIO, points: list[Point]) -> None:
        file.seek(self._offset)
        while data := file.read(_READ_BYTES):
            used = self._parse(data, points)
            self._offset += used
            if not used:
                return
            file.seek(self._offset)

    @abstractmethod
    def _parse(self, data: bytes, points: list[Point]) -> int: ...


class _TensorBoardFile(_TrackerFile):
    """Records of (length, checksum, Event, checksum)."""

    def _parse(self, data: bytes, points: list[Point]) -> int:
        at = 0
        while at + 12 <= len(data):
            (length,) = unpack_from("<Q", data, at)
            if length > 1 << 32:
                raise ValueError("not an event file")
            end = at + 12 + length + 4
            if end > len(data) and (length <= _MAX_RECORD or self._offset + end > _size(self.path)):
                break  # not complete yet, or in the next part
            if length <= _MAX_RECORD:
                points += _event_points(data[at + 12 : at + 12 + length])
            at = end
        return at


def _event_points(event: bytes) -> Iterator[Point]:
    step, wall_time, summaries = 0, 0.0, []
    for number, value in fields(event):
        if number == 1 and isinstance(value, bytes):
            (wall_time,) = unpack_from("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in fields(summary):
            found = _scalar(value) if number == 1 and isinstance(value, bytes) else None
            if found is not None and step < 1 << 62:
                yield Point(step, found[0], found[1], wall_time)


def _scalar(summary_value: bytes) -> tuple[str, float] | None:
    tag, number = "", None
    for field, value in fields(summary_value):
        if field == 1 and isinstance(value, bytes):
            tag = text_of(value)
        elif field == 2 and isinstance(value, bytes):
            (number,) = unpack_from("<f", value)
        elif field == 8 and isinstance(value, bytes):
            number = _tensor_scalar(value)
    return None if number is None or not tag else (tag, number)


def _tensor_scalar(tensor: bytes) -> float | None:
    """Return the only value of a float or double TensorProto, or None for any other tensor."""
    kind, content, many = 0, b"", False
    for field, value in fields(tensor):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field == 2 and isinstance(value, bytes):
            many = any(size != 1 for size in _dimensions(value))
        elif field in (4, 5, 6) and isinstance(value, bytes):
            content = value
    form, size = {1: ("<f", 4), 2: ("<d", 8)}.get(kind, ("", 0))
    return float(unpack_from(form, content)[0]) if form and not many and len(content) == size else None


def _dimensions(shape: bytes) -> Iterator[int]:
    for field, dimension in fields(shape):
        if field == 2 and isinstance(dimension, bytes):
            yield next((value for number, value in fields(dimension) if number == 1 and isinstance(value, int)), 0)


class _WandbFile(_TrackerFile):
    """LevelDB's log format: blocks of 32 KiB with (checksum, length, type, part of a Record) in them."""

    _BLOCK = 32 << 10

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._parts = b""

    def skip_existing(self) -> None:
        self._damaged = True  # a run of W&B has its own file: this one belongs to an earlier run

    def _parse(self, data: bytes, points: list[Point]) -> int:
        at = 0
        if self._offset == 0:
            if data[:4] != b":W&B":
                raise ValueError("not a file of W&B")
            at = 7
        while True:
            left = self._BLOCK - (self._offset + at) % self._BLOCK
            if left < 7:
                at += left
                continue
            if at + 7 > len(data):
                return min(at, len(data))
            length, kind = unpack_from("<HB", data, at + 4)
            if at + 7 + length > len(data) or kind == 0:
                return at
            self._add(kind, data[at + 7 : at + 7 + length], points)
            at += 7 + length

    def _add(self, kind: int, part: bytes, points: list[Point]) -> None:
        whole, first, last = 1, 2, 4
        self._parts = part if kind in (whole, first) else (self._parts + part)[: _MAX_RECORD + 1]
        if kind in (whole, last) and len(self._parts) <= _MAX_RECORD:
            points += _history_points(self._parts)


def _history_points(record: bytes) -> Iterator[Point]:
    """Yield the points of a W&B Record that is a HistoryRecord."""
    for number, value in fields(record):
        if number == 2 and isinstance(value, bytes):
            items = dict(_history_items(value))
            step = items.pop("_step", None)
            when = items.pop("_timestamp", 0.0)
            for name, amount in items.items():
                if step is not None and not name.startswith("_"):
                    yield Point(int(step), name, amount, when)


def _history_items(history: bytes) -> Iterator[tuple[str, float]]:
    for number, value in fields(history):
        if number == 1 and isinstance(value, bytes):
            key, amount = "", None
            for field, part in fields(value):
                if field in (1, 2) and isinstance(part, bytes):
                    key = f"{key}/{text_of(part)}" if key else text_of(part)
                elif field == 16 and isinstance(part, bytes):
                    amount = _json_number(text_of(part))
                elif field == 6 and isinstance(part, bytes):
                    (amount,) = unpack_from("<d", part)
            if key and amount is not None:
                yield key, amount
        elif number == 2 and isinstance(value, bytes):
            for field, part in fields(value):
                if field == 1 and isinstance(part, int):
                    yield "_step", float(part)


class _MlflowFile(_TrackerFile):
    """Lines of `timestamp value step`."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(path)
        self._name = name

    def _parse(self, data: bytes, points: list[Point]) -> int:
        used = data.rfind(b"\n") + 1
        for line in data[:used].decode("utf-8", "replace").splitlines():
            stamp, value, *step = line.split()
            points.append(Point(int(step[0]) if step else 0, self._name, float(value), int(stamp) / 1000))
        return used


class _CsvFile(_TrackerFile):
    """Lightning's `metrics.csv`. A new metric rewrites the file with another header, so rows are counted."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._rows = 0

    def skip_existing(self) -> None:
        self._rows = len(self._all_rows())
        self._offset = _size(self.path)

    def read_new(self) -> list[Point]:
        size = _size(self.path)
        if self._damaged or size == self._offset or size > _READ_BYTES:
            return []
        self._offset = size
        rows = self._all_rows()
        new, self._rows = rows[self._rows :] if len(rows) >= self._rows else rows, len(rows)
        return [point for row in new for point in _row_points(row)]

    def _parse(self, data: bytes, points: list[Point]) -> int:
        return len(data)

    def _all_rows(self) -> list[dict[str, str]]:
        try:
            with open(self.path, newline="", encoding="utf-8", errors="replace") as file:
                text = file.read(_READ_BYTES)
            return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))
        except (OSError, csv.Error):
            return []


def _row_points(row: dict[str, str]) -> Iterator[Point]:
    step = _json_number(row.get("step") or "")
    for name, text in row.items():
        value = _json_number(text) if isinstance(text, str) and isinstance(name, str) else None
        if step is not None and value is not None and name not in _RESERVED:
            yield Point(int(step), name, value, 0.0)


def _json_number(text: str) -> float | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


# Protobuf messages, read without their schema. Raises ValueError for bytes that are not one.


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value): an int for a varint, else the bytes of a number, text or message."""
    at, size = 0, len(message)
    while at < size:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"unknown wire type {kind}")
        if at + length > size:
            raise ValueError("a field is longer than its message")
        yield number, message[at : at + length]
        at += length


def text_of(value: bytes) -> str:
    """Return a text field, at most 200 characters of it."""
    return value[:800].decode("utf-8", "replace")[:200]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("an incomplete number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
