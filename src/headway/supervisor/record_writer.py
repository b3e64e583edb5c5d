"""The thread that writes events, logs and progress to the run folder."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping
from typing import Any

from headway.core.errors import StoreError
from headway.rundir.layout import PROGRESS, RunFolder, SegmentWriter, segment_interval_s
from headway.storage import local_path
from headway.storage.redaction import Redactor
from headway.supervisor.background import BackgroundThread, StoreHealth
from headway.supervisor.event_loop import MessageQueue
from headway.supervisor.log_pipeline import Spool

_EVENTS_S = 0.5  # between segments of urgent events
_LOCAL_PROGRESS_S, _REMOTE_PROGRESS_S = 2.0, 10.0


class RecordWriter(BackgroundThread):
    """Thread that writes events, log segments and progress, in order. Adding a record never blocks."""

    def __init__(self, folder: RunFolder, inbox: MessageQueue, health: StoreHealth, redact: Redactor) -> None:
        super().__init__("record-writer", inbox, health)
        self._folder, self._redact = folder, redact
        self._progress_s = _REMOTE_PROGRESS_S if local_path(folder.url) is None else _LOCAL_PROGRESS_S
        self._started_at = time.monotonic()
        self._lock = threading.Lock()
        self._events: list[SegmentWriter] = []  # one per attempt, oldest first
        self._spools: list[Spool] = []
        self._closed: set[Spool] = set()
        self._progress: dict[str, Any] | None = None
        self._events_written = 0.0
        self._system: dict[int, SegmentWriter] = {}
        self._metrics: dict[int, SegmentWriter] = {}  # of scripts that do not write their own, by attempt
        self._due = {"events": math.inf, "logs": 0.0, "progress": 0.0}

    def open_events(self, attempt: int) -> None:
        with self._lock:
            self._events.append(SegmentWriter(self._folder.store, "events", attempt))

    def open_log(self, spool: Spool) -> None:
        with self._lock:
            self._spools.append(spool)

    def close_log(self, spool: Spool) -> None:
        """Mark a spool as complete: it is closed once its last line is in the store."""
        self._closed.add(spool)

    def event(self, record: dict[str, Any], *, soon: bool = True) -> None:
        """Add an event. Write it `soon` where users wait for it; others are batched into fewer segments."""
        line = json.dumps(record, ensure_ascii=False)
        self._events[-1].add(self._redact(line.encode("utf-8", "backslashreplace")).decode("utf-8", "replace"))
        wait = _EVENTS_S if soon else segment_interval_s(time.monotonic() - self._started_at)
        self._due["events"] = min(self._due["events"], self._events_written + wait)
        if soon:
            self.wake()

    def progress(self, record: dict[str, Any]) -> None:
        """Set the progress record to write next, replacing an unwritten one."""
        self._progress = record

    def metrics(self, attempt: int, record: Mapping[str, Any]) -> None:
        """Add a metric record of a script. Written with the logs, under a name that no rank uses."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False)
        with self._lock:
            writer = self._metrics.setdefault(attempt, SegmentWriter(self._folder.store, "metrics", attempt, "s"))
        writer.add(self._redact(line.encode("utf-8", "backslashreplace")).decode("utf-8", "replace"))

    def system(self, attempt: int, record: Mapping[str, Any]) -> None:
        """Add a sample of a machine. Written with the logs."""
        with self._lock:
            writer = self._system.setdefault(attempt, SegmentWriter(self._folder.store, "system", attempt, "s"))
        writer.add(json.dumps(record))

    @property
    def progress_s(self) -> float:
        return self._progress_s

    def work(self) -> None:
        """Write what is due, logs before events: a reader of the `ended` event finds the complete logs."""
        now = time.monotonic()
        final = self._finishing
        if final or now >= self._due["logs"]:
            self._write_logs()
            self._write_metrics()
            self._due["logs"] = now + segment_interval_s(now - self._started_at)
        if final or now >= self._due["progress"]:
            self._write_progress()
            self._due["progress"] = now + self._progress_s
        if final or now >= self._due["events"]:
            self._due["events"] = math.inf
            try:
                self._write_events()
            except StoreError:
                self._due["events"] = now
                raise
            self._events_written = now

    def interval_s(self) -> float:
        return max(0.05, min(self._due.values()) - time.monotonic())

    def _write_logs(self) -> None:
        with self._lock:
            spools = list(self._spools)
        for spool in spools:
            closed = spool in self._closed
            spool.upload(self._folder.store)
            if closed:
                spool.close()
                self._closed.discard(spool)
                with self._lock:
                    self._spools.remove(spool)

    def _write_metrics(self) -> None:
        with self._lock:
            writers = [*self._metrics.values(), *self._system.values()]
        for writer in writers:
            writer.flush()

    def _write_events(self) -> None:
        with self._lock:
            writers = list(self._events)
        for writer in writers:
            writer.flush()
        with self._lock:
            self._events = self._events[-1:] if len(writers) == len(self._events) else self._events

    def _write_progress(self) -> None:
        record, self._progress = self._progress, None
        if record is None:
            return
        try:
            self._folder.write_json(PROGRESS, record)
        except StoreError:
            self._progress = self._progress or record
            raise
