"""memory://name: objects in this process, shared by all stores opened with the same name. For tests and rehearsals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from headway.core.errors import Conflict, NotThere
from headway.storage.base import ABSENT, Entry, checked_key, checked_prefix, checked_span, in_key_order
from headway.storage.transfer import whole


@dataclass(slots=True)
class _Space:
    lock: Lock = field(default_factory=Lock)
    objects: dict[str, tuple[bytes, str]] = field(default_factory=dict)  # key: bytes and version
    writes: int = 0


_SPACES: dict[str, _Space] = {}
_SPACES_LOCK = Lock()


class MemoryStore:
    """A store in memory. Its content is lost when the process ends."""

    def __init__(self, url: str) -> None:
        name, _, folder = url.partition("://")[2].partition("/")
        self.url = url if url.endswith("://") else url.rstrip("/")
        self._folder = folder.strip("/") + "/" if folder.strip("/") else ""
        with _SPACES_LOCK:
            self._space = _SPACES.setdefault(name, _Space())

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        body = self._object(key)[0]
        if span is None:
            return body
        start, stop = checked_span(span)
        return body[start:stop]

    def write(self, key: str, body: bytes | bytearray | memoryview | Path, *, when: str | None = None) -> str:
        name = self._folder + checked_key(key)
        content = whole(body)
        with self._space.lock:
            present = self._space.objects.get(name)
            if when is not None and when != (present[1] if present else ABSENT):
                raise Conflict(f"somebody else wrote {key} first", where=self.url)
            self._space.writes += 1
            version = str(self._space.writes)
            self._space.objects[name] = (content, version)
        return version

    def stat(self, key: str) -> Entry:
        body, version = self._object(key)
        return Entry(key, len(body), version)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        start = self._folder + checked_prefix(prefix)
        with self._space.lock:
            found = [
                Entry(name[len(self._folder) :], len(body), version)
                for name, (body, version) in self._space.objects.items()
                if name.startswith(start)
            ]
        yield from sorted(found, key=lambda entry: in_key_order(entry.key))

    def delete(self, key: str) -> None:
        with self._space.lock:
            self._space.objects.pop(self._folder + checked_key(key), None)

    def _object(self, key: str) -> tuple[bytes, str]:
        with self._space.lock:
            present = self._space.objects.get(self._folder + checked_key(key))
        if present is None:
            raise NotThere(f"there is no {key}", where=self.url)
        return present
