"""A small HTTP server on this machine for tests, with faults on demand: refuse, lose the answer, cut it off, hang."""

from __future__ import annotations

import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, kw_only=True)
class Request:
    method: str
    path: str  # still percent-encoded
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass(kw_only=True)
class Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(kw_only=True)
class Fault:
    """What happens to the next `times` requests that match.

    refuse: answer `status` without doing anything. lose: do it, then answer `status`. cut: send half of the body and
    close. drop: do it, then close without an answer. hang: answer nothing until the server stops. none: do it.
    In each case `meanwhile` is called first: somebody else was quicker.
    """

    kind: Literal["refuse", "lose", "cut", "drop", "hang", "none"]
    status: int = 503
    times: int = 1
    method: str = ""
    header: str = ""  # only requests that have it
    body: bytes = b""
    meanwhile: Callable[[], object] = lambda: None

    def strikes(self, request: Request) -> bool:
        if self.times <= 0 or self.method not in ("", request.method):
            return False
        if self.header and self.header not in request.headers:
            return False
        self.times -= 1
        return True


class LoopbackServer:
    """Serves `answer` until the block ends. `requests` holds all that came."""

    def __init__(self, answer: Callable[[Request], Answer], *, address: str = "127.0.0.1") -> None:
        self._answer, self._address = answer, address
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._http = _Http((address, 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self.requests: list[Request] = []
        self.mistakes: list[str] = []  # of the server itself; they fail the test when it ends
        self.faults: list[Fault] = []
        self._http.mistakes = self.mistakes

    @property
    def url(self) -> str:
        return f"http://{self._address}:{self._http.server_port}"

    def __enter__(self) -> LoopbackServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        assert not self.mistakes, "\n".join(self.mistakes)

    def fault(self, request: Request) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            return next((fault for fault in self.faults if fault.strikes(request)), None)

    def handle(self, request: Request) -> tuple[Answer | None, bool]:
        """The answer, or None for a closed connection; and whether to cut it off."""
        fault = self.fault(request)
        if fault is None:
            return self._answer(request), False
        fault.meanwhile()
        if fault.kind == "none":
            return self._answer(request), False
        if fault.kind == "hang":
            self._stopping.wait()
            return None, False
        if fault.kind == "refuse":
            return Answer(status=fault.status, body=fault.body), False
        answer = self._answer(request)
        if fault.kind == "lose":
            return Answer(status=fault.status, body=fault.body), False
        return (None, False) if fault.kind == "drop" else (answer, True)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    block_on_close = False

    mistakes: list[str]

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # clients may hang up
            self.mistakes.append(traceback.format_exc())


def _handler(server: LoopbackServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            target = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if len(body) < length:  # the client died in the middle of it
                self._hang_up()
                return
            request = Request(
                method=self.command,
                path=target.path,
                query=dict(parse_qsl(target.query, keep_blank_values=True)),
                headers={name.lower(): value for name, value in self.headers.items()},
                body=body,
            )
            answer, cut = server.handle(request)
            if answer is None:
                self._hang_up()
            else:
                self._send(answer, cut)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = _serve

        def _send(self, answer: Answer, cut: bool) -> None:
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD" or answer.status in (204, 304):
                return
            self.wfile.write(answer.body[: len(answer.body) // 2] if cut else answer.body)
            if cut:
                self._hang_up()

        def _hang_up(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
