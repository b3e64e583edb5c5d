"""Immutable numbered segments: how things that grow are kept where nothing can be appended. No torch."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from headway.errors import Conflict, NotThere, StoreError
from headway.storage.base import ABSENT, Store

SHORTEST_S, LONGEST_S = 2.0, 60.0
_NAME = re.compile(r"a(?P<attempt>\d{4,})-(?:(?P<writer>[a-z]\d*)-)?(?P<number>\d{7,})\.(?:jsonl|log)$")


def interval_s(age_s: float) -> float:
    """How long a segment stays open: short at first, for who waits; long later, so that listings stay small."""
    return min(LONGEST_S, max(SHORTEST_S, age_s / 100))


def stem(attempt: int, writer: str = "") -> str:
    """`a0001-`, or `a0001-r0-` for one of several writers: rank r0, supervisor s, node n1."""
    return f"a{attempt:04d}-{writer}-" if writer else f"a{attempt:04d}-"


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    attempt: int
    writer: str
    number: int
    key: str


class SegmentWriter:
    """Lines into numbered segments under one prefix, in order, each written once. Safe to share between threads."""

    def __init__(self, store: Store, folder: str, attempt: int, writer: str = "", suffix: str = "jsonl") -> None:
        self._store = store
        self._prefix = f"{folder}/{stem(attempt, writer)}"
        self._suffix = suffix
        self._number = 1
        self._lines: list[str] = []
        self._sealed: bytes | None = None  # a segment whose write has failed keeps its number and its bytes
        self._adding, self._writing = threading.Lock(), threading.Lock()

    def add(self, line: str) -> None:
        with self._adding:
            self._lines.append(line)

    @property
    def pending(self) -> int:
        return len(self._lines) + (self._sealed is not None)

    def flush(self) -> None:
        """Everything added so far is in the store when this returns. On a StoreError nothing is lost: flush again."""
        with self._writing:
            if self._sealed is not None:
                self._write(self._sealed)
            with self._adding:
                lines, self._lines = self._lines, []
            if lines:
                self._write(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))

    def _write(self, body: bytes) -> None:
        self._sealed = body
        key = f"{self._prefix}{self._number:07d}.{self._suffix}"
        try:
            self._store.write(key, body, when=ABSENT)
        except Conflict:
            # Our own write whose answer was lost, or a second writer, which the lease should have made impossible.
            if self._store.read(key) != body:
                raise StoreError(f"{key} was written by somebody else", where=self._store.url) from None
        self._number += 1
        self._sealed = None


def segments(store: Store, folder: str) -> list[Segment]:
    """The segments below `folder`, by attempt, then writer, then number. Other files are passed over."""
    found = []
    for entry in store.list(f"{folder}/"):
        match = _NAME.search(entry.key)
        if match:
            attempt, number = int(match["attempt"]), int(match["number"])
            found.append(Segment(attempt, match["writer"] or "", number, entry.key))
    return sorted(found)


def lines(store: Store, segment: Segment) -> Iterator[str]:
    try:
        text = store.read(segment.key).decode("utf-8", "replace")
    except NotThere:  # removed between listing and reading
        return
    yield from text.split("\n")[:-1] if text.endswith("\n") else text.split("\n")
