"""Pictures fetched for a client, where the operator allowed it: public addresses only, small, soon, and no detours.

A server that fetches what strangers name must not become their way into its own network: the name is resolved once,
every address must be public, and the connection goes to that very address. Redirects are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from urllib.parse import urlsplit

from headway.serve.inputs import Fetch
from headway.serve.problems import Refusal, bad_request

_SECONDS = 10.0


def fetcher(limit: int, *, public_only: bool = True) -> Fetch:
    """A function that fetches at most `limit` bytes. `public_only` is there for tests on this machine."""

    def fetch(url: str, at: str) -> bytes:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise bad_request("this is no address that can be fetched", at)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            address = _address(parts.hostname, port, public_only)
        except (OSError, ValueError, UnicodeError):
            raise bad_request(f"{parts.hostname} cannot be fetched from", at) from None
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            return _body(_connection(parts.scheme, parts.hostname, port, address), path, limit, at)
        except (OSError, http.client.HTTPException) as error:
            raise bad_request(f"{parts.hostname} did not send it: {type(error).__name__}", at) from None

    return fetch


def _address(host: str, port: int, public_only: bool) -> str:
    """The first address, if all are public. ValueError otherwise."""
    found = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if public_only and not all(ipaddress.ip_address(each.partition("%")[0]).is_global for each in found):
        raise ValueError("not public")
    return found[0]


def _connection(scheme: str, host: str, port: int, address: str) -> http.client.HTTPConnection:
    made = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    plain = socket.create_connection((address, port), _SECONDS)
    made.sock = plain if scheme == "http" else ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    return made


def _body(connection: http.client.HTTPConnection, path: str, limit: int, at: str) -> bytes:
    try:
        connection.request("GET", path, headers={"Accept": "image/*", "User-Agent": "headway"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise bad_request(f"the address answers {answer.status}", at)
        body = answer.read(limit + 1)
        if len(body) > limit:
            raise Refusal(413, f"what lies there is longer than {limit:,} bytes", at=at)
        return body
    finally:
        connection.close()
