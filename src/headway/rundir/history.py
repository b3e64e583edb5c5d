"""Metric history of a run, read incrementally while it runs. A million points take seconds and 16 MB per metric."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from headway.core.errors import BadPlan, json_of
from headway.rundir.layout import RunFolder, Segment, read_lines, segments

# Validation scores of the best weights so far, as checkpoints and events hold them. Imports nothing heavy.


_COMMON_FIELDS: Final = (
    "attempt",
    "kind",
    "rank",
    "spent_s",
    "step",
    "time",
)  # fields of every event, whatever its kind


def scores_in(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics in a run's `score` event."""
    return {name: float(value) for name, value in event.items() if name not in _COMMON_FIELDS}


def scores_at(folder: RunFolder, step: int) -> dict[str, float]:
    """Return what the run itself measured at a step, without the metrics logged at every step."""
    records = [event for event in folder.events() if event["kind"] == "score" and event.get("step") == step]
    return scores_in(records[-1]) if records else {}


class BestScores(dict[str, float]):
    """Validation scores of the best weights so far, saved in checkpoints. Give it to `run.restore` and the bundle."""

    def state_dict(self) -> dict[str, float]:
        return dict(self)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.clear()
        self.update(state)


NON_METRIC_FIELDS: Final = frozenset({"step", "epoch", "time", "resume_step", "resume_attempt"})
_NUMBERS: Final = frozenset({int, float})  # exact types: bool is not a number here


def metric_curves(records: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return (step, value) pairs of every metric in the records of `RunFolder.metrics`, by name."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        for name, value in record.items():
            if name not in NON_METRIC_FIELDS and isinstance(value, int | float):
                curves.setdefault(name, []).append((float(record["step"]), float(value)))
    return curves


_LAST_SEGMENTS: Final = 5  # enough for metrics that are logged once per epoch, and cheap for long runs


def last_metrics(folder: RunFolder) -> dict[str, float]:
    """Return the newest value of each metric in the newest segments, without reading the whole history."""
    found: dict[str, float] = {}
    for segment in segments(folder.store, "metrics")[-_LAST_SEGMENTS:]:
        for line in read_lines(folder.store, segment):
            record = _plain_record(line)
            found |= {name: value for name, value in record.items() if _is_metric(name, value)}
    return found


def _plain_record(line: str) -> dict[str, Any]:
    try:
        record = json_of(line)
    except ValueError:  # a damaged record: `headway watch` reads all of them, and says so
        return {}
    return record if isinstance(record, dict) else {}


def _is_metric(name: str, value: object) -> bool:
    if name in NON_METRIC_FIELDS or type(value) not in _NUMBERS:
        return False
    return abs(value) <= sys.float_info.max  # type: ignore[arg-type]  # a number here; a damaged one may be a huge int


def _float_array() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Curve:
    """One metric's points by step. Points that an earlier attempt wrote past the resume step are cut off."""

    steps: array[float] = field(default_factory=_float_array)
    values: array[float] = field(default_factory=_float_array)

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: float, value: float) -> None:
        if self.steps and step <= self.steps[-1]:
            at = bisect_left(self.steps, step)
            if self.steps[at] == step:
                self.values[at] = value
                return
            del self.steps[at:], self.values[at:]  # steps go back only at a resume, which voids all later points
        self.steps.append(step)
        self.values.append(value)

    def cut(self, after: float) -> None:
        at = bisect_right(self.steps, after)
        del self.steps[at:], self.values[at:]


class Curves:
    """All curves of one run. `refresh` reads only new segments."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._read_keys: set[str] = set()
        self._attempt = 0  # newest attempt read
        self._curves: dict[str, Curve] = {}
        self.lock = Lock()  # held while curves change, and by callers that copy one

    def refresh(self) -> bool:
        """Read new segments; return whether there were any."""
        with self.lock:
            unread = [each for each in segments(self._folder.store, "metrics") if each.key not in self._read_keys]
            for segment in unread:
                self._read(segment)
                self._attempt = max(self._attempt, segment.attempt)
            return bool(unread)

    def _read(self, segment: Segment) -> None:
        try:
            self._add(segment)
        except (ValueError, TypeError, OverflowError) as error:
            where = f"{self._folder.url}/{segment.key}"
            raise BadPlan(f"a record is damaged: {error}", where=where, fix="restore the file, or remove it") from None
        self._read_keys.add(segment.key)

    def _add(self, segment: Segment) -> None:
        # One parse per segment: a third faster than one per line.
        for record in json_of(f"[{','.join(filter(None, read_lines(self._folder.store, segment)))}]"):
            if type(record) is not dict:
                continue  # not one of our records
            if record.get("resume_attempt", self._attempt) not in (self._attempt, segment.attempt):
                self._reload()  # it resumes from an attempt before the last one: rare, so read the whole folder
            elif "resume_step" in record:
                for curve in self._curves.values():
                    curve.cut(float(record["resume_step"]))
            elif "step" in record:
                self._add_record(record)

    def _reload(self) -> None:
        self._curves = {}
        for record in self._folder.metrics():
            self._add_record(record)

    def _add_record(self, record: Mapping[str, Any]) -> None:
        step, curves = float(record["step"]), self._curves
        for name, value in record.items():
            if name in NON_METRIC_FIELDS or type(value) not in _NUMBERS:
                continue
            value = float(value)  # before anything is added: may raise OverflowError
            curve = curves.get(name)
            if curve is None:
                curve = curves[name] = Curve()
            if curve.steps and step <= curve.steps[-1]:
                curve.add(step, value)
            else:  # as `add` does, without the call: this runs a million times
                curve.steps.append(step)
                curve.values.append(value)

    @property
    def names(self) -> list[str]:
        return sorted(self._curves)

    def __getitem__(self, name: str) -> Curve:
        """Return the curve, empty if no metric of that name was logged."""
        return self._curves.get(name) or Curve()

    def last(self) -> dict[str, float]:
        with self.lock:
            return {name: curve.values[-1] for name, curve in self._curves.items() if len(curve)}
