"""What the strict GCS server holds: buckets, objects with generations, uploads under way. Both APIs act on it."""

from __future__ import annotations

import base64
import hashlib
import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from threading import RLock
from typing import Any
from urllib.parse import unquote

SMALLEST_PART = 5 << 20  # of a multipart upload, except its last


class Refusal(Exception):
    """The server says no. `code` is the XML API's word for it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass(frozen=True, kw_only=True)
class Blob:
    content: bytes
    generation: int
    content_type: str
    metadata: dict[str, str]
    parts: int = 0  # of a multipart upload: its ETag is no hash of the content
    written: float = field(default_factory=time.time)

    @cached_property
    def md5(self) -> bytes:
        return hashlib.md5(self.content).digest()

    @cached_property
    def crc32c(self) -> str | None:
        """In the form of x-goog-hash, where the package that computes it is installed."""
        try:
            google_crc32c: Any = import_module("google_crc32c")
        except ImportError:
            return None
        return base64.b64encode(google_crc32c.Checksum(self.content).digest()).decode()

    @property
    def xml_etag(self) -> str:
        return f'"{self.md5.hex()}-{self.parts}"' if self.parts else f'"{self.md5.hex()}"'

    @property
    def json_etag(self) -> str:
        return base64.b64encode(f"{self.generation}/1".encode()).decode()


@dataclass
class Upload:
    bucket: str
    key: str
    content_type: str
    metadata: dict[str, str]
    if_generation: int | None = None
    parts: dict[int, bytes] = field(default_factory=dict)  # XML: by number
    received: bytearray = field(default_factory=bytearray)  # JSON: one after the other
    finished: Blob | None = None


class Objects:
    """All buckets, and what may be done with them. `page` is the most that one answer of a listing holds."""

    def __init__(self, *buckets: str, page: int = 1000) -> None:
        self.lock = RLock()
        self.buckets: dict[str, dict[str, Blob]] = {name: {} for name in buckets}
        self.uploads: dict[str, Upload] = {}
        self.forbidden: set[str] = set()  # of read, write, delete, list: answered with 403
        self.page = page
        self._numbers = itertools.count(time.time_ns() // 1000)

    def allow(self, action: str) -> None:
        if action in self.forbidden:
            message = f"tester@example.com does not have storage.objects.{action} access to the object."
            raise Refusal(403, "AccessDenied", message)

    def bucket(self, name: str) -> dict[str, Blob]:
        if name not in self.buckets:
            raise Refusal(404, "NoSuchBucket", "The specified bucket does not exist.")
        return self.buckets[name]

    def blob(self, bucket: str, key: str) -> Blob:
        found = self.bucket(bucket).get(key)
        if found is None:
            raise Refusal(404, "NoSuchKey", "The specified key does not exist.")
        return found

    def store(self, bucket: str, key: str, content: bytes, upload: Upload) -> Blob:
        with self.lock:
            objects = self.bucket(bucket)
            self.require_generation(objects.get(key), upload.if_generation)
            blob = Blob(
                content=content,
                generation=self.next_number(),
                content_type=upload.content_type,
                metadata=upload.metadata,
                parts=len(upload.parts),
            )
            objects[key] = blob
            return blob

    def remove(self, bucket: str, key: str, if_generation: int | None) -> None:
        with self.lock:
            blob = self.blob(bucket, key)
            self.require_generation(blob, if_generation)
            del self.bucket(bucket)[key]

    def require_generation(self, present: Blob | None, wanted: int | None) -> None:
        """0 means that nothing may be there."""
        if wanted is not None and wanted != (present.generation if present else 0):
            text = "At least one of the pre-conditions you specified did not hold."
            raise Refusal(412, "PreconditionFailed", text)

    def next_number(self) -> int:
        return next(self._numbers)

    def page_of(
        self, bucket: str, *, prefix: str, delimiter: str, after: str, at_most: int
    ) -> tuple[list[tuple[str, Blob]], list[str], str]:
        """Objects and common prefixes in byte order after `after`, and where the next page starts."""
        with self.lock:
            objects = dict(self.bucket(bucket))
        found: list[tuple[str, Blob]] = []
        folders: list[str] = []
        for key in sorted(objects, key=str.encode):
            if not key.startswith(prefix) or key.encode() <= after.encode():
                continue
            folder = _folder(key, prefix, delimiter)
            if folder and (folder in folders or folder == after):
                continue
            if len(found) + len(folders) == min(at_most, self.page):
                last = max([k for k, _ in found[-1:]] + folders[-1:], key=str.encode)
                return found, folders, last
            if folder:
                folders.append(folder)
            else:
                found.append((key, objects[key]))
        return found, folders, ""


def _folder(key: str, prefix: str, delimiter: str) -> str:
    if not delimiter:
        return ""
    head, mark, _ = key[len(prefix) :].partition(delimiter)
    return prefix + head + mark if mark else ""


def only_known(given: Iterable[str], known: set[str], what: str) -> None:
    """501 for anything that is not checked here."""
    for name in given:
        if name not in known:
            raise Refusal(501, "NotImplemented", f"this server does not know the {what} {name}")


def object_name(path: str) -> tuple[str, str]:
    """/bucket/some%2Fkey → bucket, some/key. Clients encode the slashes of keys, or not; both mean the same."""
    bucket, _, key = path.lstrip("/").partition("/")
    return unquote(bucket), unquote(key)


def span_of(header: str, size: int) -> tuple[int, int] | None:
    """The bytes that a Range header asks for, or None for all."""
    if not header:
        return None
    unit, _, wanted = header.partition("=")
    start, dash, stop = wanted.partition("-")
    if unit != "bytes" or "," in wanted or not dash or not start.isdigit():
        raise Refusal(501, "NotImplemented", f"this server does not know the range {header}")
    if int(start) >= size:
        raise Refusal(416, "InvalidRange", "The requested range cannot be satisfied.")
    return int(start), min(int(stop) + 1, size) if stop else size
