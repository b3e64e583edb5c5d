"""What is to be written: bytes in memory, or a file. A file that cannot be read is its own error, not the store's."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from headway.errors import StoreError

Body = bytes | bytearray | memoryview | Path


def opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise StoreError(f"the file to be stored cannot be read: {error.strerror}", where=str(path)) from error


def as_view(body: bytes | bytearray | memoryview) -> memoryview:
    """Its bytes, one after the other, without a copy."""
    return memoryview(body).cast("B")


def whole(body: Body) -> bytes:
    if not isinstance(body, Path):
        return bytes(body)
    with opened(body) as file:
        return file.read()


def size_of(body: Body) -> int:
    if not isinstance(body, Path):
        return memoryview(body).nbytes
    with opened(body) as file:
        return file.seek(0, 2)
