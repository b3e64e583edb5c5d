"""Events and progress from a rank to its supervisor, as JSON lines. Without one, `LeaseKeeper` writes the events."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any, Protocol


class ControlChannel(Protocol):
    def event(self, kind: str, **details: Any) -> None:
        """Append an event to the run's history."""

    def progress(self, **numbers: Any) -> None:
        """Report progress. Each report replaces the one before it."""


class ControlPipe:
    """A pipe to the supervisor. Each line is written under a lock, so lines never mix; a dead supervisor is ignored."""

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
            except OSError:  # the supervisor has died: other code detects that
                self._fd = None


class NoControlChannel:
    """A control channel that discards everything, for ranks that have no listener."""

    def event(self, kind: str, **details: Any) -> None: ...

    def progress(self, **numbers: Any) -> None: ...


def say(text: str) -> None:
    """Write one whole log line to standard error."""
    sys.stderr.write(f"headway: {text}\n")
    sys.stderr.flush()
