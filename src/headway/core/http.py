"""HTTP client over the standard library: timeouts, TLS, proxies, keep-alive, retries, size limits, error mapping.

The only module that speaks HTTP as a client; programs of a single file that are sent to other machines have their own.
An unanswered request raises ConnectionFailed. A response is returned whatever its status: callers with an error
vocabulary of their own map it, all others call `raise_for_status`.
"""

from __future__ import annotations

import base64
import http.client
import json as json_codec
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit

from headway._version import __version__
from headway.core.errors import BadInput, Conflict, Denied, NotThere, StoreError, Transient, json_of
from headway.core.retry import ONCE, RetryPolicy, retry

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
MAX_BYTES = 256 << 20  # of a response that is held in memory
MAX_RETRY_AFTER_S = 30.0
_REDIRECTS = (301, 302, 303, 307, 308)
_ERRORS: dict[int, type[StoreError]] = {
    401: Denied, 403: Denied, 407: Denied, 404: NotThere, 410: NotThere, 409: Conflict, 412: Conflict,
}  # fmt: skip
# The server closed an idle connection. That shows only when it is used again.
_CLOSED = (http.client.RemoteDisconnected, http.client.BadStatusLine, ConnectionError, ssl.SSLEOFError)


class ConnectionFailed(Transient):
    """No response, or half of one. The request may have taken effect all the same. `reason` names no address."""

    def __init__(self, error: Exception, host: str) -> None:
        self.reason = " ".join(str(error).split()) or type(error).__name__
        super().__init__(f"cannot reach {host}: {self.reason}")


class CertificateRejected(StoreError):
    """The server's certificate does not verify. A retry does not help."""


class TooLarge(StoreError):
    """The response is larger than the limit."""


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response. Names of headers are case-insensitive."""

    status: int
    reason: str
    headers: http.client.HTTPMessage = field(repr=False)
    body: bytes = field(repr=False)
    host: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Parse the body. Raises StoreError if it is not JSON, as from a proxy's login page."""
        try:
            return json_of(self.body) if self.body.strip() else {}
        except ValueError:
            raise StoreError("the response is not JSON", where=self.host, fix="check for a proxy in between") from None

    def raise_for_status(self, *, fix: str = "") -> Response:
        """Return the response if its status is a success; else raise the error for the status."""
        if self.ok:
            return self
        raise status_error(self.status, self.reason, where=self.host, fix=fix)


def status_error(status: int, reason: str = "", *, where: str = "", fix: str = "") -> StoreError:
    """Map a status to an error: Denied, NotThere, Conflict, Transient, or StoreError for any other."""
    kind = Transient if status in RETRYABLE else _ERRORS.get(status, StoreError)
    return kind(f"the server answered {status} {reason}".rstrip(), where=where, fix=fix)


class Stream:
    """A response that is read in parts. Raises ConnectionFailed if it breaks off."""

    def __init__(self, raw: http.client.HTTPResponse, host: str) -> None:
        self._raw, self._host = raw, host
        self.status, self.reason, self.headers = raw.status, raw.reason, raw.headers

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes; none at the end."""
        with _mapped_errors(self._host):
            part = self._raw.read(count)
            if not part and self._raw.length:
                raise http.client.IncompleteRead(b"", self._raw.length)
            return part

    def lines(self) -> Iterator[str]:
        while line := self._readline():
            yield line.decode("utf-8", "replace").rstrip("\n")

    def _readline(self) -> bytes:
        with _mapped_errors(self._host):
            return self._raw.readline()


Headers = Mapping[str, str | tuple[str, ...]]  # a tuple is sent as one header of that name per value


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    url: SplitResult
    body: bytes | None
    headers: Headers

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.url.scheme, self.host, self.url.port or (443 if self.url.scheme == "https" else 80)

    @property
    def host(self) -> str:
        return self.url.hostname or ""

    @property
    def path(self) -> str:
        return (self.url.path or "/") + (f"?{self.url.query}" if self.url.query else "")


@dataclass
class Client:
    """Sends requests over connections that it keeps open. Threads may share it.

    `retry` holds for idempotent requests, after `retry_statuses` and after failed connections.
    """

    timeout_s: float = 30.0  # of each wait for the network
    total_s: float | None = None  # of each attempt as a whole, so that a server that sends byte by byte ends too
    retry: RetryPolicy = ONCE
    retry_statuses: frozenset[int] = RETRYABLE
    max_bytes: int = MAX_BYTES
    tls: ssl.SSLContext | None = None
    server_name: str | None = None  # that the certificate must have, if not the host's
    proxy: str | None = None  # None: from the environment; "": none
    address: str | None = None  # connect to this IP address, whatever the host resolves to
    _idle: dict[tuple[str, str, int], list[_Connection]] = field(default_factory=dict, init=False, repr=False)

    def request(
        self,
        method: str,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        json: Any = None,
        body: bytes | None = None,
        headers: Headers | None = None,
        idempotent: bool | None = None,
    ) -> Response:
        """Send a request; return its response, whatever the status.

        Args:
            method: GET, POST, …
            url: An http(s) URL.
            query: Parameters to append.
            json: A value to send as JSON, instead of `body`.
            body: Bytes to send.
            headers: More headers.
            idempotent: Whether it may be sent again; by default, unless the method is POST.

        Raises:
            ConnectionFailed: No response.
            CertificateRejected: The certificate does not verify.
            TooLarge: The response is larger than `max_bytes`.
        """
        if json is not None:
            body, headers = json_codec.dumps(json).encode(), {"Content-Type": "application/json", **(headers or {})}
        request = _request(method, url, query, body, headers)
        repeatable = method != "POST" if idempotent is None else idempotent
        after_s = 0.0

        def attempt() -> Response:
            nonlocal after_s
            response = self._exchange(request, repeatable)
            if response.status in self.retry_statuses:
                after_s = _retry_after_s(response.headers)
                raise _BadStatus(response)
            return response

        try:
            policy = self.retry if repeatable else ONCE
            return retry(attempt, policy, sleep=lambda pause_s: time.sleep(max(pause_s, after_s)))
        except _BadStatus as error:
            return error.response

    @contextmanager
    def stream(
        self,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Headers | None = None,
        redirects: int = 0,
    ) -> Iterator[Stream]:
        """GET a URL once and yield the response to be read in parts. Follows at most `redirects`.

        Credentials go to their own host only, and never from https to http.
        """
        request = _request("GET", url, query, None, headers)
        for _ in range(redirects + 1):
            connection = self._connect(request)
            try:
                with _mapped_errors(request.host):
                    raw = self._send(connection, request)
                target = raw.headers.get("Location") if redirects and raw.status in _REDIRECTS else None
                if target is None:
                    yield Stream(raw, request.host)
                    return
                request = _redirected(request, target)
            finally:
                connection.close()
        raise StoreError(f"the server redirects more than {redirects} times", where=url)

    def close(self) -> None:
        """Close all idle connections. The client can be used again."""
        for connections in self._idle.values():
            while connections:
                connections.pop().close()

    def _exchange(self, request: _Request, repeatable: bool) -> Response:
        with _mapped_errors(request.host):
            connection = self._take_idle(request)
            if connection is not None:
                try:
                    return self._in_time(connection, request)
                except _CLOSED:
                    if not repeatable:
                        raise
            return self._in_time(self._connect(request), request)

    def _in_time(self, connection: _Connection, request: _Request) -> Response:
        """Complete the request, or shut the connection down after `total_s`, whatever it is waiting for."""
        if self.total_s is None:
            return self._complete(connection, request)
        connection.timeout = min(self.timeout_s, self.total_s)
        late = threading.Event()

        def end() -> None:
            late.set()
            connection.abort()

        timer = threading.Timer(self.total_s, end)
        timer.daemon = True
        timer.start()
        try:
            return self._complete(connection, request)
        except (OSError, ValueError, http.client.HTTPException):
            if late.is_set():
                raise TimeoutError(f"no complete response within {self.total_s:g} seconds") from None
            raise
        finally:
            timer.cancel()

    def _complete(self, connection: _Connection, request: _Request) -> Response:
        """Send the request, read the response whole, and keep the connection if the server does."""
        try:
            raw = self._send(connection, request)
            body = raw.read(self.max_bytes + 1)
            if len(body) > self.max_bytes:
                raise TooLarge(f"the response is larger than {self.max_bytes:,} bytes", where=request.host)
            if raw.length:
                raise http.client.IncompleteRead(body, raw.length)
        except BaseException:
            connection.close()
            raise
        if raw.isclosed() and not raw.will_close:
            self._idle.setdefault(request.origin, []).append(connection)
        else:
            connection.close()
        return Response(raw.status, raw.reason, raw.headers, body, request.host)

    def _send(self, connection: _Connection, request: _Request) -> http.client.HTTPResponse:
        target = request.path
        headers: dict[str, str | tuple[str, ...]] = {"User-Agent": f"headway/{__version__}", **request.headers}
        if connection.absolute:
            target = request.url._replace(fragment="").geturl()
            headers |= connection.proxy_login
        lines: Any = http.client.HTTPMessage()  # unlike a dictionary, it can have several headers of one name
        for name, value in headers.items():
            for each in (value,) if isinstance(value, str) else value:
                lines[name] = each
        connection.request(request.method, target, body=request.body, headers=lines)
        return connection.getresponse()

    def _take_idle(self, request: _Request) -> _Connection | None:
        connections = self._idle.get(request.origin, [])
        while connections:
            try:
                connection = connections.pop()
            except IndexError:  # another thread was quicker
                return None
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()  # readable without a request: the server has closed it
        return None

    def _connect(self, request: _Request) -> _Connection:
        """Return a connection that is not opened yet."""
        scheme, host, port = request.origin
        proxy = "" if self.address else _proxy_for(scheme, host) if self.proxy is None else self.proxy
        via = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        connection = _Connection(via.hostname or host, (via.port or 3128) if via.hostname else port, self.timeout_s)
        connection.address = self.address
        login = _basic_login(via.username, via.password)
        if scheme == "https":
            connection.default_port = 443
            connection.tls, connection.server_name = self.tls or default_tls(), self.server_name or host
            if via.hostname:
                connection.set_tunnel(host, port, headers=login)
        elif via.hostname:
            connection.absolute, connection.proxy_login = True, login
        return connection


class _Connection(http.client.HTTPConnection):
    """A connection over TCP or TLS, straight or through a proxy."""

    tls: ssl.SSLContext | None = None
    server_name = ""
    address: str | None = None
    aborted = False
    absolute = False  # a proxy for plain HTTP wants the whole URL
    proxy_login: Mapping[str, str] = {}

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        super().__init__(host, port, timeout=timeout_s)

    def connect(self) -> None:
        if self.address is None:
            super().connect()
        else:
            self.sock = socket.create_connection((self.address, self.port), self.timeout)
        if self.tls is not None:
            self.sock = self.tls.wrap_socket(self.sock, server_hostname=self.server_name, do_handshake_on_connect=False)
            self._check()
            self.sock.do_handshake()
        self._check()

    def _check(self) -> None:
        if self.aborted:
            raise TimeoutError("aborted")

    def abort(self) -> None:
        """End whatever another thread waits for on this connection, which that thread then closes."""
        self.aborted = True
        if self.sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


class _BadStatus(Transient):
    def __init__(self, response: Response) -> None:
        super().__init__(f"the server answered {response.status}")
        self.response = response


@contextmanager
def _mapped_errors(host: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise CertificateRejected(f"{host} has a certificate that does not verify: {error}", where=host) from None
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionFailed(error, host) from None


def _request(
    method: str, url: str, query: Mapping[str, str] | None, body: bytes | None, headers: Headers | None
) -> _Request:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise BadInput("this is not an http(s) URL", fix="write https://host/path")
    if query:
        parts = parts._replace(query="&".join(filter(None, (parts.query, urlencode(query)))))
    return _Request(method, parts, body, dict(headers or {}))


def _redirected(request: _Request, location: str) -> _Request:
    url = urljoin(request.url.geturl(), location)
    scheme = url.partition(":")[0].lower()
    if scheme not in ("http", "https") or (request.url.scheme == "https" and scheme == "http"):
        raise StoreError(f"the server redirects to {scheme}://, which is not allowed", where=request.host)
    target = _request("GET", url, None, None, request.headers)
    if target.origin == request.origin:
        return target
    return replace(target, headers={k: v for k, v in request.headers.items() if k.lower() != "authorization"})


def _retry_after_s(headers: http.client.HTTPMessage) -> float:
    given = headers.get("Retry-After") or ""
    return min(float(given), MAX_RETRY_AFTER_S) if given.isdecimal() else 0.0


@lru_cache(maxsize=1)
def default_tls() -> ssl.SSLContext:
    """Return the settings for public servers: the system's authorities, and those of REQUESTS_CA_BUNDLE."""
    import os

    context = ssl.create_default_context()
    bundle = os.environ.get("REQUESTS_CA_BUNDLE")
    if bundle:
        context.load_verify_locations(**{"capath" if os.path.isdir(bundle) else "cafile": bundle})
    return context


def _proxy_for(scheme: str, host: str) -> str:
    from urllib.request import getproxies, proxy_bypass

    return "" if proxy_bypass(host) else getproxies().get(scheme, "")


def _basic_login(user: str | None, password: str | None) -> dict[str, str]:
    return {"Proxy-Authorization": basic(user, password or "")} if user else {}


def basic(user: str, password: str) -> str:
    """Return the value of an Authorization header for a user and password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
