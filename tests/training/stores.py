"""Stores that misbehave on purpose, wrapped around a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headway.core.errors import NotThere, StoreError
from headway.storage.base import ObjectInfo, Store


class Faulty:
    """Raises what `fault(verb, key, number)` returns, before the verb is done; None lets it through."""

    def __init__(self, store: Store, fault: Callable[[str, str, int], StoreError | None]) -> None:
        self.inner, self.url, self.fault = store, store.url, fault
        self.calls: list[tuple[str, str]] = []

    def _meet(self, verb: str, key: str) -> None:
        self.calls.append((verb, key))
        error = self.fault(verb, key, sum(1 for call in self.calls if call[0] == verb))
        if error is not None:
            raise error

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        self._meet("read", key)
        return self.inner.read(key, span)

    def write(self, key: str, body: bytes | bytearray | memoryview | Path, *, when: str | None = None) -> str:
        self._meet("write", key)
        return self.inner.write(key, body, when=when)

    def stat(self, key: str) -> ObjectInfo:
        self._meet("stat", key)
        return self.inner.stat(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._meet("list", prefix)
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        self._meet("delete", key)
        self.inner.delete(key)


def hidden(part: str, times: int) -> Callable[[str, str, int], StoreError | None]:
    """A stale view: the first `times` reads of keys with `part` find nothing."""
    left = times

    def fault(verb: str, key: str, number: int) -> StoreError | None:
        nonlocal left
        if verb == "read" and part in key and left > 0:
            left -= 1
            return NotThere(f"there is no {key}")
        return None

    return fault


class Heard:
    """Keeps what would be told to the supervisor."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def event(self, kind: str, **details: Any) -> None:
        self.events.append({"kind": kind, **details})

    def progress(self, **numbers: Any) -> None: ...

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]
