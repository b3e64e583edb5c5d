"""The supervisor's event loop: waits for pipes, SIGTERM and other signals, and messages from background threads.

The main thread never waits for a store, which may block for minutes: background threads do that and post messages.

On SIGTERM, `Signals` posts `StopRequested`, `Node.request_stop` starts the grace period, and `Coordinator` passes
SIGTERM to the ranks, then SIGKILL. A rank notices in `training/preemption.py`, and `StepBoundary` writes a checkpoint
and stops it after the step. A second signal ends everything at once (`StopNow`).
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

Ready = Callable[[], object]
_SAME_REQUEST_S = 1.0  # Slurm sends SIGTERM two or three times, a closed terminal SIGHUP and SIGTERM: one request


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Request for a graceful stop, by a signal or stop.json."""

    by: str


@dataclass(frozen=True, slots=True)
class StopNow:
    """Request to end at once: a second signal."""


@dataclass(frozen=True, slots=True)
class LeaseLostMessage:
    """Another supervisor has taken the run's lease."""

    error: str


@dataclass(frozen=True, slots=True)
class ThreadDied:
    """A background thread ended by an unexpected error."""

    name: str
    error: BaseException


class MessageQueue:
    """Queue of messages to the main thread. Any thread or signal handler may post."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()  # reentrant: a signal handler may post
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._reader

    @property
    def wake_fd(self) -> int:
        return self._writer

    def post(self, message: Any) -> None:
        self._queue.put(message)
        self.wake()

    def wake(self) -> None:
        try:
            os.write(self._writer, b"!")
        except BlockingIOError:
            pass  # the pipe is full, so the main thread will wake anyway

    def drain(self) -> list[Any]:
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            pass
        messages = []
        while True:
            try:
                messages.append(self._queue.get_nowait())
            except Empty:
                return messages


class Loop:
    """The event loop of the main thread: waits for file descriptors and messages. One instance per process."""

    def __init__(self) -> None:
        self.inbox = MessageQueue()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.inbox, selectors.EVENT_READ, self.inbox.wake)

    def watch(self, fd: int, ready: Ready) -> None:
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)

    def run_once(self, timeout_s: float) -> list[Any]:
        """Wait at most `timeout_s`, call the handlers of ready file descriptors, and return the posted messages."""
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            if key.fileobj is not self.inbox:
                ready: Ready = key.data
                ready()
        return self.inbox.drain()


class Signals:
    """Signal handlers: SIGTERM, SIGINT and SIGHUP post `StopRequested`, then `StopNow`. SIGCHLD wakes the loop."""

    STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self, inbox: MessageQueue) -> None:
        self._inbox = inbox
        self._last: float | None = None  # when the last request came

    def install(self) -> None:
        for number in self.STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGTERM:
                signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._inbox.wake_fd, warn_on_full_buffer=False)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._last is not None and now - self._last < _SAME_REQUEST_S:
            return
        self._inbox.post(StopRequested(signal.Signals(number).name) if self._last is None else StopNow())
        self._last = now
