"""When to stop: signals, the deadline, and how long is left. Noticed at once, acted upon between steps.

Python runs signal handlers only between bytecodes of the main thread, which may sit in a collective for minutes. So the
kernel's own notice (a byte in a pipe) wakes a thread, which counts down the grace period and honours a second signal
even then.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from headway.core.errors import WORKER_AGAIN

HEEDED = (signal.SIGTERM, signal.SIGINT)
RESERVE_S = 5.0  # of the grace period, for everything that comes after our checkpoint
SHORTEST_S = 2.0  # however short the grace period, this long is tried
SAME_REQUEST_S = 1.0  # Slurm sends SIGTERM up to three times, to ranks too, and the supervisor passes on its own


class Stop(SystemExit):
    """Stopped on request after a checkpoint. Exits with "start me again"."""

    def __init__(self) -> None:
        super().__init__(WORKER_AGAIN)


class Stopping:
    """Knows whether this rank was asked to stop, and when it must be gone."""

    def __init__(
        self,
        grace_s: float,
        deadline_s: float | None = None,
        *,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.asked = False
        self.interruptible = True  # nothing to lose yet: a signal ends the process where it is
        self._grace_s, self._say, self._clock = grace_s, say, clock
        self._deadline = None if deadline_s is None else clock() + deadline_s
        self._gone_by: float | None = None
        self._wake: tuple[int, int] | None = None
        self._timer: threading.Timer | None = None
        self._previous: dict[int, object] = {}

    def watch(self) -> None:
        """Begin to heed signals. Possible in the main thread only; elsewhere the script's owner must do it."""
        if threading.current_thread() is not threading.main_thread():
            self._say("not in the main thread: signals are left to whoever started this one")
            return
        read, write = os.pipe()
        os.set_blocking(write, False)
        self._wake = (read, write)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in HEEDED:
            self._previous[number] = signal.signal(number, self._noticed)
        threading.Thread(target=self._listen, args=(read,), name="headway-signals", daemon=True).start()

    def unwatch(self) -> None:
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
        """Whether what is left of the budget is needed for the last checkpoint and the export."""
        return self._deadline is not None and self._clock() > self._deadline - margin_s

    @property
    def left_s(self) -> float | None:
        """How long the last checkpoint may take; None when nobody is waiting."""
        return None if self._gone_by is None else max(0.0, self._gone_by - self._clock())

    def _noticed(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self.interruptible:
            raise Stop

    def _listen(self, pipe: int) -> None:
        first: float | None = None
        while True:
            byte = os.read(pipe, 1)
            if not byte:
                os.close(pipe)
                return
            if byte[0] not in HEEDED:
                continue
            if first is None:
                first = self._clock()
                self._begin_countdown(signal.Signals(byte[0]).name)
            elif self._clock() - first >= SAME_REQUEST_S:
                os._exit(WORKER_AGAIN)  # asked twice: at once, wherever we are. Commits are safe as they are.

    def _begin_countdown(self, name: str) -> None:
        allowed = max(min(SHORTEST_S, self._grace_s), self._grace_s - RESERVE_S)
        self._gone_by = self._clock() + allowed
        self.asked = True
        self._say(f"{name}: stopping after this step (within {allowed:.0f} s)")
        # Later than the checkpoint's own limit, so that it is given up cleanly; sooner than the kill.
        self._timer = threading.Timer(allowed + (self._grace_s - allowed) / 2, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self) -> None:
        self._say("the grace period is over: ending without the last checkpoint; the one before it stands")
        os._exit(WORKER_AGAIN)
