"""Stop requests: signals, the budget's deadline, and the time left. Noticed at once, acted upon between steps.

Python runs signal handlers only between bytecodes of the main thread, which may block in a collective for minutes. So
the signal wakeup fd (a byte in a pipe) wakes a thread, which counts down the grace period and honours a second signal
even then.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from headway.core.errors import WORKER_RESTART

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
RESERVE_S = 5.0  # of the grace period, for everything that follows the checkpoint
MIN_CHECKPOINT_S = 2.0  # always allowed for the checkpoint, however short the grace period
SAME_REQUEST_S = 1.0  # within it, signals are one request: Slurm sends ranks up to three, and the supervisor one


class Stop(SystemExit):
    """Exit after a checkpoint because a stop was requested, with the exit code that asks for a restart."""

    def __init__(self) -> None:
        super().__init__(WORKER_RESTART)


class PreemptionHandler:
    """Tracks whether this rank was asked to stop, and by when it must exit."""

    def __init__(
        self,
        grace_s: float,
        deadline_s: float | None = None,
        *,
        log: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stop_requested = False
        self.interruptible = True  # there is nothing to save yet: a signal ends the process at once
        self._grace_s, self._log, self._clock = grace_s, log, clock
        self._deadline = None if deadline_s is None else clock() + deadline_s
        self._exit_by: float | None = None
        self._wake: tuple[int, int] | None = None
        self._timer: threading.Timer | None = None
        self._previous: dict[int, object] = {}

    def install(self) -> None:
        """Install the signal handlers. Works in the main thread only; elsewhere signals are the caller's to handle."""
        if threading.current_thread() is not threading.main_thread():
            self._log("not in the main thread: the thread that started this one must handle signals")
            return
        read, write = os.pipe()
        os.set_blocking(write, False)
        self._wake = (read, write)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._on_signal)
        threading.Thread(target=self._listen, args=(read,), name="headway-signals", daemon=True).start()

    def uninstall(self) -> None:
        if self._wake is None:
            return
        signal.set_wakeup_fd(-1)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._timer is not None:
            self._timer.cancel()
        os.close(self._wake[1])  # the listener sees the end of the pipe and closes its side
        self._wake = None

    def over_budget(self, margin_s: float) -> bool:
        """Whether less than `margin_s` of the budget is left, the reserve for the last checkpoint and the export."""
        return self._deadline is not None and self._clock() > self._deadline - margin_s

    @property
    def left_s(self) -> float | None:
        """Seconds left for the last checkpoint; None if this rank was not asked to stop."""
        return None if self._exit_by is None else max(0.0, self._exit_by - self._clock())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop_requested = True
        if self.interruptible:
            raise Stop

    def _listen(self, pipe: int) -> None:
        first: float | None = None
        while True:
            byte = os.read(pipe, 1)
            if not byte:
                os.close(pipe)
                return
            if byte[0] not in STOP_SIGNALS:
                continue
            if first is None:
                first = self._clock()
                self._begin_countdown(signal.Signals(byte[0]).name)
            elif self._clock() - first >= SAME_REQUEST_S:
                os._exit(WORKER_RESTART)  # second request: exit at once, wherever we are. Commits are atomic.

    def _begin_countdown(self, name: str) -> None:
        allowed = max(min(MIN_CHECKPOINT_S, self._grace_s), self._grace_s - RESERVE_S)
        self._exit_by = self._clock() + allowed
        self.stop_requested = True
        self._log(f"{name}: stopping after this step (within {allowed:.0f} s)")
        # Later than the checkpoint's own time limit, so that it is aborted cleanly; sooner than the kill.
        self._timer = threading.Timer(allowed + (self._grace_s - allowed) / 2, self._exit_now)
        self._timer.daemon = True
        self._timer.start()

    def _exit_now(self) -> None:
        self._log("the grace period is over: exiting without the last checkpoint; the previous one is kept")
        os._exit(WORKER_RESTART)
