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
    # Opaque. Other bytes always have another version. The same bytes written again may keep theirs (S3 names an
    # object by its content): a conditional write then replaces exactly what its caller saw, so nothing is lost.
    version: str


class Store(Protocol):
    """A place for named bytes below one URL. Errors are headway.errors.StoreError and its kinds.

    A key that is ever written with `when=version` is written in no other way: a folder's conditional writers
    exclude each other, not a writer that sets no condition.
    """

    url: str  # without a trailing slash

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        """The whole object, or bytes [start, stop) of it, cut off at its end. NotThere if it does not exist."""

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
