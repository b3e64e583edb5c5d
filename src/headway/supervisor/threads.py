"""The supervisor's background threads, which talk to the store: lease heartbeat and record writer.

They post messages to the event loop. While the store is down, training continues, records wait on local disk, and one
message is posted when it goes down and one when it recovers.
"""

from __future__ import annotations

import json
import math
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from headway.core.errors import HeadwayError, StoreError
from headway.rundir.layout import PROGRESS, STOP, RunFolder, SegmentWriter, segment_interval_s
from headway.rundir.lease import RENEW_S, Lease, LeaseLost
from headway.storage import local_path
from headway.supervisor.event_loop import LeaseLostMessage, MessageQueue, StopRequested, ThreadDied
from headway.supervisor.log_pipeline import Redactor, Spool

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_EVENTS_S = 0.5  # between segments of urgent events
_LOCAL_PROGRESS_S, _REMOTE_PROGRESS_S = 2.0, 10.0


@dataclass(frozen=True, slots=True)
class StoreDown:
    error: str


@dataclass(frozen=True, slots=True)
class StoreRecovered:
    seconds: float


@dataclass(frozen=True, slots=True)
class AttemptAdvanced:
    """The lease now has the next attempt number."""

    attempt: int


@dataclass(frozen=True, slots=True)
class TaskDone:
    """A background thread has finished its last work."""

    name: str


class StoreHealth:
    """Whether the store responds, over all threads. Posts `StoreDown` and `StoreRecovered` once per change."""

    def __init__(self, inbox: MessageQueue) -> None:
        self._inbox, self._lock = inbox, threading.Lock()
        self._failing: set[str] = set()
        self._since = 0.0

    def report_failure(self, name: str, error: StoreError) -> None:
        with self._lock:
            if not self._failing:
                self._since = time.monotonic()
                self._inbox.post(StoreDown(str(error.problem.what)))
            self._failing.add(name)

    def report_success(self, name: str) -> None:
        with self._lock:
            if name in self._failing:
                self._failing.discard(name)
                if not self._failing:
                    self._inbox.post(StoreRecovered(round(time.monotonic() - self._since, 1)))


class BackgroundThread(threading.Thread, ABC):
    """Thread that calls `work` every `interval_s` or when woken, and retries with back-off after a StoreError."""

    def __init__(self, name: str, inbox: MessageQueue, health: StoreHealth) -> None:
        super().__init__(name=name, daemon=True)
        self._inbox, self._health = inbox, health
        self._woken = threading.Event()
        self._finishing = False  # finish what there is, then end
        self._halted = False  # end without touching the store again

    @abstractmethod
    def work(self) -> None: ...

    @abstractmethod
    def interval_s(self) -> float: ...

    def wake(self) -> None:
        self._woken.set()

    def finish(self) -> None:
        """Ask the thread to do its last work and end; it retries until the store has it, then posts `TaskDone`."""
        self._finishing = True
        self.wake()

    def halt(self) -> None:
        self._halted = True
        self.wake()

    def run(self) -> None:
        pause = _FIRST_PAUSE_S
        try:
            while not self._halted:
                last = self._finishing
                try:
                    self.work()
                except LeaseLost as error:
                    self._inbox.post(LeaseLostMessage(error.problem.what))
                    return
                except StoreError as error:
                    self._health.report_failure(self.name, error)
                    self._sleep(pause)
                    pause = min(_LONGEST_PAUSE_S, pause * 2)
                    continue
                pause = _FIRST_PAUSE_S
                self._health.report_success(self.name)
                if last:
                    self._inbox.post(TaskDone(self.name))
                    return
                self._sleep(self.interval_s())
        except BaseException as error:  # noqa: BLE001  the main thread ends the run with this as its reason
            self._inbox.post(ThreadDied(self.name, error))

    def _sleep(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()


class Heartbeat(BackgroundThread):
    """Thread that renews the lease and polls for stop.json. No other thread touches the lease."""

    def __init__(
        self, folder: RunFolder, lease: Lease, inbox: MessageQueue, health: StoreHealth, *, renew_s: float = RENEW_S
    ) -> None:
        super().__init__("heartbeat", inbox, health)
        self._folder, self._lease, self._renew_s = folder, lease, renew_s
        self._advance = False
        self._stop_posted = False

    def advance(self) -> None:
        """Ask for the next attempt number; `AttemptAdvanced` is posted once the store has it."""
        self._advance = True
        self.wake()

    def work(self) -> None:
        if self._finishing:
            self._lease.release()
            return
        if self._advance:
            attempt = self._lease.advance()
            self._advance = False
            self._inbox.post(AttemptAdvanced(attempt))
        else:
            self._lease.renew()
        self._poll_stop_file()

    def interval_s(self) -> float:
        return self._renew_s

    def _poll_stop_file(self) -> None:
        if self._stop_posted:
            return
        reason = stop_reason(self._folder)
        if reason is not None:
            self._stop_posted = True
            self._inbox.post(StopRequested(reason))


def stop_reason(folder: RunFolder) -> str | None:
    """Return who requested a stop through the run folder's stop.json, or None."""
    try:
        request = folder.read_json(STOP)
    except StoreError:
        raise
    except HeadwayError:
        return "stop.json"  # an unreadable file still counts as a request
    if request is None:
        return None
    return " ".join(str(request[key]) for key in ("by", "reason") if request.get(key)) or "stop.json"


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

    @property
    def progress_s(self) -> float:
        return self._progress_s

    def work(self) -> None:
        """Write what is due, logs before events: a reader of the `ended` event finds the complete logs."""
        now = time.monotonic()
        final = self._finishing
        if final or now >= self._due["logs"]:
            self._write_logs()
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


def now_text() -> str:
    from headway.supervisor.log_pipeline import utc_timestamp

    return utc_timestamp().decode()
