"""What never changes is read once: the segments of runs that pages ask about every other second."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final

from headway.storage import Store, open_store
from headway.storage.base import Entry

_MOST_BYTES: Final = 128 << 20
_SEGMENT: Final = re.compile(r"(events|logs)/[^/]+\.(jsonl|log)$")  # those of metrics are kept as curves


class Memory:
    """Of all runs together; what was not asked for longest is forgotten first."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most, self._size = most_bytes, 0
        self._known: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._lock = Lock()

    def store(self, url: str) -> Store:
        return Remembering(open_store(url), self)

    def recall(self, url: str, key: str) -> bytes | None:
        with self._lock:
            found = self._known.get((url, key))
            if found is not None:
                self._known.move_to_end((url, key))
            return found

    def keep(self, url: str, key: str, body: bytes) -> None:
        with self._lock:
            if (url, key) not in self._known:
                self._known[url, key] = body
                self._size += len(body)
            while self._size > self._most and len(self._known) > 1:
                self._size -= len(self._known.popitem(last=False)[1])


class Remembering:
    """A store whose segments are read once. Everything else is asked for anew."""

    def __init__(self, store: Store, memory: Memory) -> None:
        self._store, self._memory = store, memory
        self.url = store.url

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        if span is not None or not _SEGMENT.fullmatch(key):
            return self._store.read(key, span)
        found = self._memory.recall(self.url, key)
        if found is None:
            found = self._store.read(key)
            self._memory.keep(self.url, key, found)
        return found

    def write(self, key: str, body: bytes | bytearray | memoryview | Path, *, when: str | None = None) -> str:
        return self._store.write(key, body, when=when)

    def stat(self, key: str) -> Entry:
        return self._store.stat(key)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._store.delete(key)
