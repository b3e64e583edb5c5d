"""Connections of clients: deadlines for what they send, and a limit to their number.

uvicorn has a deadline for idle connections after a request only: one that sends its headers or body byte by byte would
stay for ever. Relies on the callbacks that httptools calls (on_message_begin, …), and on uvicorn's class for them.
"""

from __future__ import annotations

import asyncio
import resource
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEADERS: Final = 32_768  # bytes
_SPARED_S: Final = 1.0  # a connection that waits for its client less than this is not closed to make room
_OTHER_FILES: Final = 128  # besides connections


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadlines:
    """Seconds that a client has to send something."""

    headers: float = 10.0
    body: float = 30.0
    idle: float = 65.0  # longer than load balancers keep theirs, so that none sends to a closed one


@dataclass
class Connections:
    """All open connections. If there are too many, the one that has waited longest for its client makes room."""

    most: int
    deadlines: Deadlines
    open: int = 0
    refused: int = 0
    waiting: dict[GuardedProtocol, float] = field(default_factory=dict)  # for their clients, since; the oldest first

    def admit(self) -> bool:
        """Make room for one more connection; return False if all are at work."""
        if self.open < self.most:
            return True
        oldest = next(iter(self.waiting), None)
        if oldest is None or time.monotonic() - self.waiting[oldest] < _SPARED_S:
            self.refused += 1
            return False
        oldest.drop()
        return True

    def protocol(self) -> type[GuardedProtocol]:
        """Return the class to give to `uvicorn.Config(http=…)`."""
        return type("Protocol", (GuardedProtocol,), {"guard": self})


def file_limit(most: int) -> int:
    """Raise the limit of open files for so many connections; return how many fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(1, min(most, soft - _OTHER_FILES))


class GuardedProtocol(HttpToolsProtocol):
    """One HTTP/1.1 connection with deadlines."""

    guard: Connections

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_headers = False
        self._counted = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if not self.guard.admit():
            self._refuse("503 Service Unavailable", "retry-after: 1\r\n")
            return
        self._counted = True
        self.guard.open += 1
        self._await_client(self.guard.deadlines.headers)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._counted:
            self._counted = False
            self.guard.open -= 1
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_headers or not self._busy:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes > MOST_HEADERS:
            self._refuse("431 Request Header Fields Too Large")

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        if not self._busy:
            self._await_client(self.guard.deadlines.headers)

    def on_headers_complete(self) -> None:
        pipelined = self._busy
        self._in_headers, self._header_bytes = False, 0
        super().on_headers_complete()
        if not pipelined:
            self._await_client(self.guard.deadlines.body)

    def on_message_complete(self) -> None:
        self._stop_waiting()
        super().on_message_complete()
        if not self._busy:  # answered before its end
            self._await_client(self.guard.deadlines.idle)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self.cycle.more_body:  # refused before its end, whose rest is dropped; or pipelined
            self._await_client(self.guard.deadlines.body)
        elif not self._busy:
            self._await_client(self.guard.deadlines.idle)

    def _await_client(self, seconds: float) -> None:
        self._stop_waiting()
        self.guard.waiting[self] = time.monotonic()
        self._timer = self.loop.call_later(seconds, self._late)

    def _stop_waiting(self) -> None:
        self.guard.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """Close it. A client that was in the middle of a request is told why."""
        if (self._in_headers or self._busy) and not (self.cycle is not None and self.cycle.response_started):
            self._refuse("408 Request Timeout")
        else:
            self.drop()

    def _refuse(self, status: str, header: str = "") -> None:
        if not self.transport.is_closing():
            text = f"HTTP/1.1 {status}\r\n{header}content-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(text.encode())
        self.drop(after_s=1.0)

    def drop(self, after_s: float = 0.0) -> None:
        """Close the connection, and give what is still to be sent no more than `after_s`."""
        self._stop_waiting()
        if self.transport.is_closing():
            return
        self.transport.close()
        if after_s:
            self.loop.call_later(after_s, self.transport.abort)
        else:
            self.transport.abort()
