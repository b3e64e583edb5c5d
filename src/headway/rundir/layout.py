"""Layout of the run folder: file names, append-only segments, and `RunFolder`, which reads and writes its records.

The names inside a checkpoint are in `training/checkpoint/`, those below files/ in `supervisor/file_sync.py`. A run can
be understood from its folder alone. No torch.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.errors import BadPlan, Conflict, NotThere, StoreError, UnknownRun, json_of
from headway.core.plan import Plan
from headway.core.types import LogLine
from headway.storage.base import ABSENT, Store

# Segments: immutable numbered objects, the way to append where a store cannot.


MIN_SEGMENT_S, MAX_SEGMENT_S = 2.0, 60.0
_NAME = re.compile(r"a(?P<attempt>\d{4,})-(?:(?P<writer>[a-z]\d*)-)?(?P<number>\d{7,})\.(?:jsonl|log)$")


def segment_interval_s(age_s: float) -> float:
    """Return the time to the next segment: short at first, for people who wait, then longer, to keep listings small."""
    return min(MAX_SEGMENT_S, max(MIN_SEGMENT_S, age_s / 100))


def segment_prefix(attempt: int, writer: str = "") -> str:
    """Return the prefix `a0001-`, or `a0001-r0-` for one of several writers: rank r0, supervisor s, node n1."""
    return f"a{attempt:04d}-{writer}-" if writer else f"a{attempt:04d}-"


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    attempt: int
    writer: str
    number: int
    key: str


class SegmentWriter:
    """Writes lines into numbered segments under one prefix, in order, each segment once. Thread-safe."""

    def __init__(self, store: Store, folder: str, attempt: int, writer: str = "", suffix: str = "jsonl") -> None:
        self._store = store
        self._prefix = f"{folder}/{segment_prefix(attempt, writer)}"
        self._suffix = suffix
        self._number = 1
        self._lines: list[str] = []
        self._unwritten: bytes | None = None  # a segment whose write failed; its number and bytes stay the same
        self._lines_lock, self._write_lock = threading.Lock(), threading.Lock()

    def add(self, line: str) -> None:
        with self._lines_lock:
            self._lines.append(line)

    @property
    def pending(self) -> int:
        return len(self._lines) + (self._unwritten is not None)

    def flush(self) -> None:
        """Write everything added so far to the store. On a StoreError nothing is lost: call flush again."""
        with self._write_lock:
            if self._unwritten is not None:
                self._write(self._unwritten)
            with self._lines_lock:
                lines, self._lines = self._lines, []
            if lines:
                self._write(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))

    def _write(self, body: bytes) -> None:
        self._unwritten = body
        key = f"{self._prefix}{self._number:07d}.{self._suffix}"
        try:
            self._store.write(key, body, when=ABSENT)
        except Conflict:
            # Our own write whose response was lost, or a second writer, which the lease should have made impossible.
            if self._store.read(key) != body:
                raise StoreError(f"{key} was written by another process", where=self._store.url) from None
        self._number += 1
        self._unwritten = None


def segments(store: Store, folder: str) -> list[Segment]:
    """List the segments below `folder`, by attempt, then writer, then number. Other files are skipped."""
    found = []
    for entry in store.list(f"{folder}/"):
        match = _NAME.search(entry.key)
        if match:
            attempt, number = int(match["attempt"]), int(match["number"])
            found.append(Segment(attempt, match["writer"] or "", number, entry.key))
    return sorted(found)


def read_lines(store: Store, segment: Segment) -> Iterator[str]:
    try:
        text = store.read(segment.key).decode("utf-8", "replace")
    except NotThere:  # removed between listing and reading
        return
    yield from text.split("\n")[:-1] if text.endswith("\n") else text.split("\n")


PLAN, SUBMISSION, STOP, PROGRESS = "plan.json", "intent.json", "stop.json", "progress.json"
CODE_LISTING = "code.json"  # {"sha256", "files": {name: [size, sha256]}}: contents of the code archive
REPORT, RECEIPT, BUNDLE = "report.json", "teardown.json", "export/bundle.json"
LAST_CHECKPOINT = "checkpoints/last.json"
SUPERVISOR = -1  # the rank under which the supervisor's own lines are logged


_PROGRESS_FIELDS = ("step", "steps", "epoch", "epochs", "eta_s", "rate", "spent_s", "loss", "usd", "budget_usd")
_NUMERIC_EVENT_FIELDS = ("attempt", "spent_s", "held_from_s")  # fields of events that must be numbers


def checkpoint_folder(step: int) -> str:
    return f"checkpoints/{step:08d}"


def encode(value: Any) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


class RunFolder:
    """Reads and writes one run's records. Holds no state but its store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def url(self) -> str:
        return self.store.url

    @property
    def name(self) -> str:
        return self.url.rstrip("/").rsplit("/", 1)[-1]

    def plan(self) -> Plan:
        try:
            return Plan.from_json(self.store.read(PLAN), where=f"{self.url}/{PLAN}")
        except NotThere:
            raise UnknownRun(f"{self.url} is not a run folder: it has no {PLAN}", fix="headway ps") from None

    def read_json(self, key: str) -> dict[str, Any] | None:
        """Read a record; None if it was never written. Raises BadPlan if it is damaged."""
        try:
            text = self.store.read(key)
        except NotThere:
            return None
        try:
            value = json_of(text)
        except ValueError as error:
            raise BadPlan(f"damaged: {error}", where=f"{self.url}/{key}") from None
        if not isinstance(value, dict):
            raise BadPlan("damaged: not a record", where=f"{self.url}/{key}")
        return value

    def write_json(self, key: str, value: Any, *, when: str | None = None) -> str:
        return self.store.write(key, encode(value), when=when)

    def create_json(self, key: str, value: Any) -> str:
        """Write a record that must not exist yet. Raises Conflict if it does."""
        return self.write_json(key, value, when=ABSENT)

    def progress(self) -> dict[str, Any] | None:
        """Read the newest progress record, its numbers checked; None if there is none."""
        record = self.read_json(PROGRESS)
        for name in _PROGRESS_FIELDS:
            if record is not None and record.get(name) is not None and not is_number(record[name]):
                raise BadPlan(f"damaged: {name} is not a number", where=f"{self.url}/{PROGRESS}")
        return record

    def kept_checkpoints(self) -> list[dict[str, Any]]:
        """Read the checkpoint index: each has a step, names and perhaps a score. It may lag behind the manifests."""
        record = self.read_json(LAST_CHECKPOINT) or {}
        problem = checkpoint_list_problem(record.get("kept") or [])
        if problem is not None:
            raise BadPlan(
                f"damaged: {problem}", where=f"{self.url}/{LAST_CHECKPOINT}", fix="restore the file, or remove it"
            )
        return record.get("kept") or []

    def events(self) -> list[dict[str, Any]]:
        """Read all events, oldest first, each with its attempt. Raises BadPlan for a damaged one."""
        return [
            {"attempt": segment.attempt, **_validated_event(record, f"{self.url}/{segment.key}")}
            for segment in segments(self.store, "events")
            for record in _records(self.store, segment, {"kind": str})
        ]

    def metrics(self) -> list[dict[str, Any]]:
        """Return one history without gaps or duplicates: one record per step; repeated steps replace earlier ones.

        A step's numbers may come in pieces: its loss, and later the score of an evaluation, which may be repeated.
        """
        history: dict[int, dict[str, Any]] = {}
        histories: dict[
            int, dict[int, dict[str, Any]]
        ] = {}  # by attempt: its history, including all attempts before it
        for segment in segments(self.store, "metrics"):
            for record in _records(self.store, segment, {"step": int, "resume_step": int}):
                if "resume_step" in record:
                    start = record["resume_step"]
                    before = histories.get(record.get("resume_attempt", -1), history)
                    history = {step: dict(kept) for step, kept in before.items() if step <= start}
                    histories[segment.attempt] = history
                elif "step" in record:
                    history.setdefault(record["step"], {}).update(record)
        return list(history.values())

    def log_lines(self, rank: int | None = None) -> Iterator[LogLine]:
        """Yield the logged lines, in order within a rank and merged by time over ranks."""
        streams: dict[int, list[Segment]] = {}
        for segment in segments(self.store, "logs"):
            streams.setdefault(rank_of(segment.writer), []).append(segment)
        if rank is not None:
            streams = {rank: streams.get(rank, [])}
        from heapq import merge

        yield from merge(*(_read_log(self.store, r, s) for r, s in streams.items()), key=lambda line: line.time)

    def ended(self) -> dict[str, Any] | None:
        """Return the newest attempt's `ended` event; None while it runs, or if it ended without one."""
        events = self.events()
        newest = max((event["attempt"] for event in events), default=0)
        end_events = [event for event in events if event["attempt"] == newest and event["kind"] == "ended"]
        return end_events[-1] if end_events else None


def rank_of(writer: str) -> int:
    return SUPERVISOR if writer.startswith("s") else int(writer[1:] or 0)


def parse_log(rank: int, line: str) -> LogLine:
    time, _, text = line.partition(" ")
    return LogLine(rank=rank, time=time, text=text)


def _read_log(store: Store, rank: int, parts: list[Segment]) -> Iterator[LogLine]:
    for segment in parts:
        for line in read_lines(store, segment):
            yield parse_log(rank, line)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def checkpoint_list_problem(entries: object) -> str | None:
    """Return what is wrong with a list of committed checkpoints; None if it is valid."""
    if not isinstance(entries, list):
        return "'kept' is not a list"
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
            return "a checkpoint has no step"
        names = entry.get("names", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return f"the names of the checkpoint of step {entry['step']} are not strings"
        if entry.get("score") is not None and not is_number(entry["score"]):
            return f"the score of the checkpoint of step {entry['step']} is not a number"
    return None


def _validated_event(event: dict[str, Any], where: str) -> dict[str, Any]:
    required = ("step",) if event["kind"] == "checkpoint" else ()
    for name in (*_NUMERIC_EVENT_FIELDS, *required):
        if (name in event or name in required) and not is_number(event.get(name)):
            what = f"a record is damaged: the {name} of an event '{event['kind'][:40]}' is not a number"
            raise BadPlan(what, where=where, fix="restore the file, or remove it")
    return event


def _records(store: Store, segment: Segment, required_types: Mapping[str, type]) -> Iterator[dict[str, Any]]:
    """Yield the records that have one of these fields with its type; skip others. A line that is not JSON is damage."""
    for number, line in enumerate(read_lines(store, segment), 1):
        try:
            record = json_of(line)
        except ValueError as error:
            where = f"{store.url}/{segment.key}:{number}"
            raise BadPlan(f"a record is damaged: {error}", where=where, fix="restore the file, or remove it") from None
        if isinstance(record, dict) and any(
            isinstance(record.get(name), kind) for name, kind in required_types.items()
        ):
            yield record
