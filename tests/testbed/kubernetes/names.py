"""What a real cluster's DNS and service routing do, on threads of the test process: names of pods, and its own API."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headway.core.errors import HeadwayError
from headway.targets.kubernetes import kubeconfig
from headway.targets.kubernetes.client import Client

_DOMAIN = "svc.cluster.local"
_EVERY_S = 0.5


@contextmanager
def forwarded(at: tuple[str, int], to: tuple[str, int]) -> Iterator[None]:
    """Whoever connects to `at` speaks to `to`."""
    server = socket.create_server(at, backlog=64)
    threading.Thread(target=_accept, args=(server, to), daemon=True).start()
    try:
        yield
    finally:
        server.close()


@contextmanager
def served(address: str, config: str) -> Iterator[None]:
    """Answers for services and the pods behind headless ones."""
    book = _Book(config)
    asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asked.bind((address, 53))
    for work in (book.refresh, lambda: _answer(asked, book)):
        threading.Thread(target=work, daemon=True).start()
    try:
        yield
    finally:
        book.over.set()
        asked.close()


class _Book:
    """Names and addresses, as the cluster's endpoints say."""

    def __init__(self, config: str) -> None:
        import os

        before = os.environ.get("KUBECONFIG")
        os.environ["KUBECONFIG"] = config
        try:
            self._api = Client(access=kubeconfig.load())
        finally:
            os.environ.pop("KUBECONFIG") if before is None else os.environ.update(KUBECONFIG=before)
        self.names: dict[str, list[str]] = {}
        self.over = threading.Event()

    def refresh(self) -> None:
        while not self.over.wait(_EVERY_S):
            try:
                self.names = dict(self._read())
            except HeadwayError:
                pass  # it is just being stopped, or not yet there

    def _read(self) -> Iterator[tuple[str, list[str]]]:
        found: dict[str, list[str]] = {}
        for item in self._items("endpoints"):
            service = f"{item['metadata']['name']}.{item['metadata']['namespace']}.{_DOMAIN}"
            for subset in item.get("subsets") or ():
                for each in [*(subset.get("addresses") or ()), *(subset.get("notReadyAddresses") or ())]:
                    found.setdefault(service, []).append(each["ip"])
                    if each.get("hostname"):
                        found[f"{each['hostname']}.{service}"] = [each["ip"]]
        yield from found.items()

    def _items(self, plural: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._api("GET", f"/api/v1/{plural}").get("items") or []
        return found


def _answer(asked: socket.socket, book: _Book) -> None:
    while True:
        try:
            query, peer = asked.recvfrom(4096)
        except OSError:
            return  # closed
        try:
            asked.sendto(_response(query, book.names), peer)
        except (OSError, IndexError, struct.error, UnicodeDecodeError):
            continue  # not a question


def _response(query: bytes, names: dict[str, list[str]]) -> bytes:
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += query[at] + 1
    (kind,) = struct.unpack(">H", query[at + 1 : at + 3])
    known = names.get(".".join(labels))
    addresses = known or [] if kind == 1 else []
    records = [b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + socket.inet_aton(each) for each in addresses]
    flags = 0x8580 | (0 if known else 3)
    return query[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0) + query[12 : at + 5] + b"".join(records)


def _accept(server: socket.socket, to: tuple[str, int]) -> None:
    while True:
        try:
            near, _ = server.accept()
        except OSError:
            return  # closed
        try:
            far = socket.create_connection(to, timeout=10)
        except OSError:
            near.close()
            continue
        far.settimeout(None)
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    for each in (source, sink):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other direction has seen to it
        each.close()
