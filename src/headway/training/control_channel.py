"""What a rank tells the outside: JSON lines to its supervisor, or, without one, event segments of its own."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any, Protocol


class ControlChannel(Protocol):
    def event(self, kind: str, **details: Any) -> None:
        """Something happened that the run's history should keep."""

    def progress(self, **numbers: Any) -> None:
        """Where we are: the newest replaces all before it."""


class ControlPipe:
    """To the supervisor. One write a line, so lines never mix; a supervisor that is gone is not our failure."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._lock = threading.Lock()

    def event(self, kind: str, **details: Any) -> None:
        self._send({"event": kind, **details})

    def progress(self, **numbers: Any) -> None:
        self._send({"progress": numbers, "step": numbers.get("step")})

    def _send(self, record: dict[str, Any]) -> None:
        line = (json.dumps(record) + "\n").encode()
        with self._lock:
            if self._fd is None:
                return
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:  # the supervisor has died: it will be noticed by those whose business it is
                self._fd = None


class NoControlChannel:
    """For ranks that nobody listens to."""

    def event(self, kind: str, **details: Any) -> None: ...

    def progress(self, **numbers: Any) -> None: ...


def say(text: str) -> None:
    """One whole line on standard error, where logs are read."""
    sys.stderr.write(f"headway: {text}\n")
    sys.stderr.flush()
