"""The supervisor's background threads, which talk to the store and post messages to the event loop; the heartbeat.

While the store is down, training continues, records wait on local disk, and one message is posted when it goes down and
one when it recovers.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from headway.core.errors import HeadwayError, StoreError
from headway.core.retry import Backoff
from headway.rundir.layout import STOP, RunFolder
from headway.rundir.lease import RENEW_S, Lease, LeaseLost
from headway.supervisor.event_loop import LeaseLostMessage, MessageQueue, StopRequested, ThreadDied

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class StoreDown:
    error: str


@dataclass(frozen=True, slots=True)
class StoreRecovered:
    seconds: float


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

    def is_failing(self, name: str) -> bool:
        """Return whether the last request of this thread failed."""
        with self._lock:
            return name in self._failing

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
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
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
                    self._sleep(backoff.next_s())
                    continue
                backoff.reset()
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


# The heartbeat


@dataclass(frozen=True, slots=True)
class AttemptAdvanced:
    """The lease now has the next attempt number."""

    attempt: int


class Heartbeat(BackgroundThread):
    """Thread that renews the lease and polls for stop.json. No other thread touches the lease."""

    def __init__(
        self, folder: RunFolder, lease: Lease, inbox: MessageQueue, health: StoreHealth, *, renew_s: float = RENEW_S
    ) -> None:
        super().__init__("heartbeat", inbox, health)
        self._folder, self._lease, self._renew_s = folder, lease, renew_s
        self._advance = False
        self._stop_posted = False
        self.free_s = 0.0  # how much of our time is not spent

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
            self._lease.renew(self.free_s)
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
