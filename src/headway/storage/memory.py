"""memory://name: objects in this process, shared by all stores opened with the same name. For tests and rehearsals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from headway.core.errors import Conflict, NotThere
from headway.storage.base import ABSENT, ObjectInfo, checked_key, checked_prefix, checked_span, sort_key
from headway.storage.transfer import read_body


@dataclass(slots=True)
class _Namespace:
    lock: Lock = field(default_factory=Lock)
    objects: dict[str, tuple[bytes, str]] = field(default_factory=dict)  # key: bytes and version
    writes: int = 0


_NAMESPACES: dict[str, _Namespace] = {}
_NAMESPACES_LOCK = Lock()


class MemoryStore:
    """A store in memory. Its content is lost when the process ends."""

    def __init__(self, url: str) -> None:
        name, _, folder = url.partition("://")[2].partition("/")
        self.url = url if url.endswith("://") else url.rstrip("/")
        self._folder = folder.strip("/") + "/" if folder.strip("/") else ""
        with _NAMESPACES_LOCK:
            self._namespace = _NAMESPACES.setdefault(name, _Namespace())

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        body = self._object(key)[0]
        if span is None:
            return body
        start, stop = checked_span(span)
        return body[start:stop]

    def write(self, key: str, body: bytes | bytearray | memoryview | Path, *, when: str | None = None) -> str:
        name = self._folder + checked_key(key)
        content = read_body(body)
        with self._namespace.lock:
            current = self._namespace.objects.get(name)
            if when is not None and when != (current[1] if current else ABSENT):
                raise Conflict(f"another writer wrote {key} first", where=self.url)
            self._namespace.writes += 1
            version = str(self._namespace.writes)
            self._namespace.objects[name] = (content, version)
        return version

    def stat(self, key: str) -> ObjectInfo:
        body, version = self._object(key)
        return ObjectInfo(key, len(body), version)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        start = self._folder + checked_prefix(prefix)
        with self._namespace.lock:
            found = [
                ObjectInfo(name[len(self._folder) :], len(body), version)
                for name, (body, version) in self._namespace.objects.items()
                if name.startswith(start)
            ]
        yield from sorted(found, key=lambda entry: sort_key(entry.key))

    def delete(self, key: str) -> None:
        with self._namespace.lock:
            self._namespace.objects.pop(self._folder + checked_key(key), None)

    def _object(self, key: str) -> tuple[bytes, str]:
        with self._namespace.lock:
            current = self._namespace.objects.get(self._folder + checked_key(key))
        if current is None:
            raise NotThere(f"{key} does not exist", where=self.url)
        return current
