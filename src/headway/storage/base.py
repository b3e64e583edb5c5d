"""What a run folder needs of a store: five verbs that folders, NFS and every object store have.

Nothing here appends and nothing renames. Keys are relative, with forward slashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headway.core.errors import StoreError

ABSENT = ""  # as `when`: write only if nothing is there yet


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    size: int
    # Opaque. Other bytes always have another version. The same bytes written again may keep theirs (S3 names an
    # object by its content): a conditional write then replaces exactly what its caller saw, so nothing is lost.
    version: str


class Store(Protocol):
    """A place for named bytes below one URL. Errors are headway.core.errors.StoreError and its kinds.

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


# Which names a store accepts: those that mean the same on every store, and that stay below its URL.


TEMPORARY = ".headway-tmp-"  # a file being written; a crash may leave one behind, and no listing shows it
LOCK = ".headway-lock"  # what conditional writers of a folder hold while they compare and rename


def checked_key(key: str) -> str:
    """The key itself, or StoreError for one that could leave the store or that some store would change."""
    fault = _fault(key)
    if fault:
        raise StoreError(
            f"{key!r} cannot name an object: {fault}", fix="use a relative name such as events/a0001.jsonl"
        )
    return key


def checked_prefix(prefix: str) -> str:
    """A prefix is a key cut off anywhere, also in the middle of a name or after a slash."""
    folder, slash, begun = prefix.rpartition("/")
    if slash:
        checked_key(folder)
    checked_key("x" + begun)  # a name may begin with anything, also with the dots that are none by themselves
    return prefix


def in_key_order(key: str) -> bytes:
    """Object stores list by the bytes of the name; sorting by this gives the same order everywhere."""
    return key.encode("utf-8", "surrogateescape")


def is_hidden(name: str) -> bool:
    """True for a file name that belongs to the store itself and is no object."""
    return name.startswith((TEMPORARY, LOCK))


def can_be_listed(name: str) -> bool:
    """False for a file that no verb could reach: one of the store's own, or one with a name that no key can have."""
    return _fault(name) == ""


def checked_span(span: tuple[int, int]) -> tuple[int, int]:
    start, stop = span
    if not 0 <= start <= stop:
        raise ValueError(f"not a span of bytes: [{start}, {stop})")
    return start, stop


def _fault(key: str) -> str:
    if not key:
        return "it is empty"
    if key.startswith("/") or key.endswith("/"):
        return "it starts or ends with a slash"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in key):
        return "it holds a control character"
    if "\\" in key:
        return "it holds a backslash, which Azure takes for a slash"
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in key):
        return "it is not valid Unicode"
    for part in key.split("/"):
        if part in ("", ".", ".."):
            return f"it has the part {part!r}, which could lead elsewhere"
        if is_hidden(part):
            return f"names that start with {TEMPORARY} or {LOCK} belong to the store"
    return ""
