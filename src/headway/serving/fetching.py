"""Fetch images by URL, if the operator allows it.

To prevent SSRF, the name is resolved once, every address must be public, the connection goes to the resolved address,
and redirects are not followed. Size and time are limited.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

from headway.artifacts.predictor import PredictionError, bad_request
from headway.core import http
from headway.core.errors import HeadwayError

Fetch = Callable[[str, str], bytes]  # (URL, JSON pointer) -> body
FETCH_S: Final = 10.0  # for a URL as a whole: connecting, headers and body

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def fetcher(limit: int, *, public_only: bool = True, total_s: float = FETCH_S) -> Fetch:
    """Return a function that fetches at most `limit` bytes. Set `public_only` to False only in tests."""

    def fetch(url: str, at: str) -> bytes:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise bad_request("this is not a URL that can be fetched", at) from None
        if parts.scheme not in ("http", "https") or not host or parts.username or parts.password:
            raise bad_request("this is not a URL that can be fetched", at)
        try:
            address = _resolve(host, port, public_only)
        except (OSError, ValueError, UnicodeError):
            raise bad_request(f"{host} is not a public host", at) from None
        client = http.Client(timeout_s=total_s, total_s=total_s, max_bytes=limit, address=address)
        return _body(client, url, at)

    return fetch


def _resolve(host: str, port: int, public_only: bool) -> str:
    """Resolve a host; return its first address. Raises ValueError unless all are public."""
    found = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if public_only and not all(is_public(each) for each in found):
        raise ValueError("not public")
    return found[0]


def is_public(address: str) -> bool:
    """Return whether an IP address, and every IPv4 address that it stands for, is reachable from the whole internet.

    A translator on the way delivers `64:ff9b::10.0.0.1` or `2002:0a00:0001::` to 10.0.0.1. Raises ValueError for text
    that is no address.
    """
    whole = ipaddress.ip_address(address.partition("%")[0])
    if any(whole in network for network in _NEVER):
        return False
    return all(each.is_global and not each.is_multicast for each in (whole, *_embedded(whole)))


_V6 = ipaddress.IPv6Network
_NEVER: Final = (_V6("64:ff9b:1::/48"), _V6("fec0::/10"))  # NAT64 within a network (RFC 8215), site-local
# IPv4-compatible, IPv4-translated (RFC 2765), NAT64 (RFC 6052)
_LAST_32_BITS: Final = (_V6("::/96"), _V6("::ffff:0:0:0/96"), _V6("64:ff9b::/96"))


def _embedded(address: _Address) -> Iterator[_Address]:
    """Yield the IPv4 addresses in an IPv6 address: mapped, compatible, translated, NAT64, 6to4, Teredo, ISATAP."""
    if isinstance(address, ipaddress.IPv4Address):
        return
    low = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    is_isatap = (int(address) >> 32) & 0xFCFFFFFF == 0x00005EFE
    if is_isatap or any(address in network for network in _LAST_32_BITS):
        yield low


def _body(client: http.Client, url: str, at: str) -> bytes:
    try:
        response = client.request("GET", url, headers={"Accept": "image/*"})
    except http.TooLarge:
        raise PredictionError(413, f"the file is larger than {client.max_bytes:,} bytes", at=at) from None
    except HeadwayError as error:
        raise bad_request(f"the URL could not be fetched: {error.problem.what}", at) from None
    finally:
        client.close()
    if response.status != 200:
        raise bad_request(f"the URL returned status {response.status}", at)
    return response.body
