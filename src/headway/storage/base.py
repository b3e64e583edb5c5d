"""The `Store` contract: five methods that folders, NFS and every object store can provide. Also the rules for keys.

No append, no rename. Keys are relative, with forward slashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headway.core.errors import StoreError

ABSENT = ""  # as `when`: write only if the object does not exist


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a store.

    Attributes:
        key: Its key, relative to the store's URL.
        size: Its size in bytes.
        version: Opaque. Different bytes always have different versions; the same bytes written again may keep theirs.
    """

    key: str
    size: int
    # Opaque. Different bytes always have different versions. The same bytes written again may keep theirs (S3's ETag
    # is a content hash): a conditional write then replaces exactly what its caller saw, so nothing is lost.
    version: str


class Store(Protocol):
    """Protocol of a store: objects below one URL, behind five methods. No append, no rename.

    Keys are relative, with forward slashes. All methods raise StoreError (headway.core.errors) and its subclasses. A
    key that is ever written with `when=version` must only be written so: in a folder, conditional writers exclude each
    other, but not a writer that sets no condition. `url` has no trailing slash.

    Example:
        >>> from headway.core.errors import Conflict
        >>> from headway.storage import ABSENT, open_store
        >>> store = open_store("memory://example-store")
        >>> version = store.write("events/a0001.jsonl", b"{}", when=ABSENT)
        >>> store.read("events/a0001.jsonl")
        b'{}'
        >>> [entry.key for entry in store.list("events/")]
        ['events/a0001.jsonl']
        >>> try:
        ...     store.write("events/a0001.jsonl", b"[]", when=ABSENT)
        ... except Conflict:
        ...     print("another writer was first")
        another writer was first
    """

    url: str  # without a trailing slash

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        """Read an object, or a part of it.

        Args:
            key: The object's key.
            span: Only bytes [start, stop), cut off at the object's end. None: all of it.

        Returns:
            The bytes.

        Raises:
            NotThere: If the object does not exist.
        """

    def write(self, key: str, body: bytes | bytearray | memoryview | Path, *, when: str | None = None) -> str:
        """Write an object atomically and durably, replacing an existing one.

        Args:
            key: The object's key.
            body: The bytes, or the path of a file that holds them.
            when: `ABSENT` writes only if the object does not exist, a version only if it still has that version. None:
                always.

        Returns:
            The new version.

        Raises:
            Conflict: If the condition does not hold. Nothing was changed.
        """

    def stat(self, key: str) -> ObjectInfo:
        """Return the object's entry.

        Args:
            key: The object's key.

        Returns:
            Its size and version.

        Raises:
            NotThere: If the object does not exist.
        """

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with a prefix, in key order.

        Args:
            prefix: A string, not a folder: `a` lists `ab` too.

        Yields:
            The entries.
        """

    def delete(self, key: str) -> None:
        """Delete an object. Succeeds if it does not exist.

        Args:
            key: The object's key.
        """


# Keys: only names that mean the same on every store and that stay below its URL


TEMPORARY_PREFIX = ".headway-tmp-"  # a file being written; a crash may leave one behind; never listed
LOCK_FILE = ".headway-lock"  # lock file that conditional writers of a folder hold while they compare and rename


def checked_key(key: str) -> str:
    """Return the key. Raises StoreError for one that could leave the store or that some store would change."""
    problem = _key_problem(key)
    if problem:
        raise StoreError(
            f"{key!r} cannot name an object: {problem}", fix="use a relative name such as events/a0001.jsonl"
        )
    return key


def checked_prefix(prefix: str) -> str:
    """Return the prefix, checked: a key cut off anywhere, also in the middle of a name or after a slash."""
    folder, slash, name_prefix = prefix.rpartition("/")
    if slash:
        checked_key(folder)
    checked_key(
        "x" + name_prefix
    )  # with "x", because a prefix may end in "." or "..", which are no names by themselves
    return prefix


def sort_key(key: str) -> bytes:
    """Return the sort key for keys: object stores list by the name's bytes, so the order is the same everywhere."""
    return key.encode("utf-8", "surrogateescape")


def is_hidden(name: str) -> bool:
    """Return whether a file name belongs to the store itself and is not an object."""
    return name.startswith((TEMPORARY_PREFIX, LOCK_FILE))


def is_object_name(name: str) -> bool:
    """Return whether a file can be an object: neither one of the store's own files, nor an invalid key."""
    return _key_problem(name) == ""


def checked_span(span: tuple[int, int]) -> tuple[int, int]:
    start, stop = span
    if not 0 <= start <= stop:
        raise ValueError(f"invalid byte range: [{start}, {stop})")
    return start, stop


def _key_problem(key: str) -> str:
    if not key:
        return "it is empty"
    if key.startswith("/") or key.endswith("/"):
        return "it starts or ends with a slash"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in key):
        return "it contains a control character"
    if "\\" in key:
        return "it contains a backslash, which Azure treats as a slash"
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in key):
        return "it is not valid Unicode"
    for part in key.split("/"):
        if part in ("", ".", ".."):
            return f"its part {part!r} could lead out of the store"
        if is_hidden(part):
            return f"names that start with {TEMPORARY_PREFIX} or {LOCK_FILE} are reserved"
    return ""
