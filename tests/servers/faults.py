"""A store that misbehaves on demand, around any other: for tests of what must survive a bad store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.core.errors import Denied, StoreError, Transient
from headway.storage import ObjectInfo, Store

HANG_AT_MOST_S = 60.0  # a hang that nobody ends must not outlive the test


class FaultyStore:
    """Passes everything to `store`, except what its attributes forbid. All of them may be changed at any time.

    Writes are numbered from 1, over all keys that `only` accepts.
    """

    def __init__(
        self,
        store: Store,
        *,
        fail_writes: set[int] | None = None,  # these writes raise `error` and change nothing
        lose_answers: set[int] | None = None,  # these writes happen, and raise Transient all the same
        hang_writes: set[int] | None = None,  # these writes wait for `released`
        fail_reads: int = 0,  # so many reads raise Transient first
        delay_s: float = 0.0,  # before every verb
        deny_listing: bool = False,
        stale_listing: bool = False,  # listings show what was there when this was set
        down: bool = False,  # every verb raises Transient
        error: Callable[[str], StoreError] = Transient,
        only: Callable[[str], bool] = lambda key: True,
    ) -> None:
        self.url = store.url
        self.store = store
        self.fail_writes = fail_writes or set()
        self.lose_answers = lose_answers or set()
        self.hang_writes = hang_writes or set()
        self.fail_reads = fail_reads
        self.delay_s = delay_s
        self.deny_listing = deny_listing
        self.down = down
        self.error = error
        self.only = only
        self.writes = 0
        self.calls: list[tuple[str, str]] = []  # verb and key, in order
        self.hanging = threading.Event()  # set as soon as a write hangs
        self.released = threading.Event()  # set it to let hanging writes go on
        self._lock = threading.Lock()
        self._frozen: list[ObjectInfo] | None = None
        self.stale_listing = stale_listing

    @property
    def stale_listing(self) -> bool:
        return self._frozen is not None

    @stale_listing.setter
    def stale_listing(self, stale: bool) -> None:
        self._frozen = list(self.store.list()) if stale else None

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        self._begin("read", key)
        with self._lock:
            failing = self.fail_reads > 0
            self.fail_reads -= failing
        if failing:
            raise Transient(f"injected: cannot read {key}", where=self.url)
        return self.store.read(key, span)

    def write(self, key: str, body: bytes | bytearray | memoryview | Path, *, when: str | None = None) -> str:
        self._begin("write", key)
        if not self.only(key):
            return self.store.write(key, body, when=when)
        with self._lock:
            self.writes += 1
            number = self.writes
        if number in self.hang_writes:
            self.hanging.set()
            self.released.wait(HANG_AT_MOST_S)
        if number in self.fail_writes:
            raise self.error(f"injected: write {number}, of {key}, fails")
        version = self.store.write(key, body, when=when)
        if number in self.lose_answers:
            raise Transient(f"injected: the answer to write {number}, of {key}, is lost", where=self.url)
        return version

    def stat(self, key: str) -> ObjectInfo:
        self._begin("stat", key)
        return self.store.stat(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._begin("list", prefix)
        if self.deny_listing:
            raise Denied("injected: may not list", where=self.url)
        if self._frozen is not None:
            return (entry for entry in self._frozen if entry.key.startswith(prefix))
        return self.store.list(prefix)

    def delete(self, key: str) -> None:
        self._begin("delete", key)
        self.store.delete(key)

    def _begin(self, verb: str, key: str) -> None:
        with self._lock:
            self.calls.append((verb, key))
        if self.delay_s:
            threading.Event().wait(self.delay_s)
        if self.down:
            raise Transient(f"injected: the store is down, cannot {verb} {key}", where=self.url)
