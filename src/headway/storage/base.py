"""What a run folder needs of a store: five verbs that folders, NFS and every object store have.

Nothing here appends and nothing renames. Keys are relative, with forward slashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ABSENT = ""  # as `when`: write only if nothing is there yet


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    size: int
    version: str  # opaque; changes with every write of the key


class Store(Protocol):
    """A place for named bytes below one URL. Errors are headway.errors.StoreError and its kinds."""

    url: str  # without a trailing slash

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        """The whole object, or bytes [start, stop) of it. NotThere if it does not exist."""

    def write(self, key: str, body: bytes | bytearray | memoryview | Path, *, when: str | None = None) -> str:
        """Write it whole or not at all, and durably; returns the new version.

        `when=ABSENT` writes only if nothing is there, `when=version` only if that version still is: else Conflict.
        """

    def stat(self, key: str) -> Entry:
        """NotThere if it does not exist."""

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Everything whose key starts with `prefix` (a string, not a folder), in key order."""

    def delete(self, key: str) -> None:
        """A thing already gone is success."""
