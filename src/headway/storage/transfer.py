"""Transfer whole files to and from a store, and list its folders. Needs only the five methods, so works everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar, runtime_checkable

from headway.core.errors import StoreError, Transient
from headway.storage.base import ObjectInfo, Store, sort_key

# Make the same small request for many keys in parallel: in a bucket, each is mostly latency.


Result = TypeVar("Result")
MAX_PARALLEL = 32
_MIN_KEYS_FOR_THREADS = 4


def map_parallel(request: Callable[[str], Result], keys: Sequence[str]) -> list[Result]:
    """Return the results in the order of `keys`. The first error is raised once the requests under way have ended."""
    if len(keys) < _MIN_KEYS_FOR_THREADS:
        return [request(key) for key in keys]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(MAX_PARALLEL, len(keys)), thread_name_prefix="requests") as pool:
        futures = [pool.submit(request, key) for key in keys]
        try:
            return [future.result() for future in futures]
        except BaseException:  # Ctrl-C too: cancel requests that have not started
            pool.shutdown(wait=False, cancel_futures=True)
            raise


# Payloads: bytes in memory, or a file. A file that cannot be read is reported as such, not as the store's error.


Body = bytes | bytearray | memoryview | Path


def open_body(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise StoreError(f"the file to upload cannot be read: {error.strerror}", where=str(path)) from error


def as_view(body: bytes | bytearray | memoryview) -> memoryview:
    """View the payload as bytes, without a copy."""
    return memoryview(body).cast("B")


def read_body(body: Body) -> bytes:
    if not isinstance(body, Path):
        return bytes(body)
    with open_body(body) as file:
        return file.read()


def body_size(body: Body) -> int:
    if not isinstance(body, Path):
        return memoryview(body).nbytes
    with open_body(body) as file:
        return file.seek(0, 2)


CHUNK_BYTES = 8 << 20  # bytes per request: large enough to be fast, small enough to be retried cheaply

Progress = Callable[[int, int], None]  # bytes done, bytes in total


def fetch_file(
    store: Store, key: str, path: Path, *, parallel: int = 4, progress: Progress | None = None
) -> ObjectInfo:
    """Download an object to a file, in parallel parts. The file appears whole or not at all.

    Args:
        store: The store.
        key: The object's key.
        path: The file to write.
        parallel: Parts to download at a time.
        progress: Called on this thread with the bytes done and in total.

    Returns:
        The object's entry.

    Raises:
        NotThere: If the object does not exist.
        Transient: If the object was replaced meanwhile.

    Example:
        >>> from pathlib import Path
        >>> from headway.storage import fetch_file, open_store
        >>> store = open_store("memory://example-fetch")
        >>> _ = store.write("weights.bin", b"0123")
        >>> fetch_file(store, "weights.bin", Path("weights.bin")).size
        4
    """
    from headway.storage.local import atomic_file

    entry = store.stat(key)
    with atomic_file(path) as handle:
        _download_chunks(store, entry, handle, parallel, progress or _no_progress)
        if store.stat(key).version != entry.version:
            raise Transient(f"{key} was replaced during the download", where=store.url)
    return entry


def send_file(store: Store, key: str, path: Path, *, when: str | None = None) -> str:
    """Upload a file without reading it into memory, and check that all of it arrived.

    Args:
        store: The store.
        key: The key to write.
        path: The file.
        when: Condition of the write, as for `Store.write`.

    Returns:
        The object's version.

    Raises:
        StoreError: If the file cannot be read, or changed during the upload.
        Conflict: If the condition does not hold.

    Example:
        >>> from pathlib import Path
        >>> from headway.storage import open_store, send_file
        >>> store = open_store("memory://example-send")
        >>> _ = send_file(store, "code/train.py", Path("train.py"))
        >>> store.read("code/train.py") == Path("train.py").read_bytes()
        True
    """
    size = body_size(path)
    version = store.write(key, path, when=when)
    stored = store.stat(key)
    if stored.version == version and stored.size != size:
        what = f"{path} changed during the upload: {size} bytes before, {stored.size} arrived"
        raise StoreError(what, where=f"{store.url}/{key}", fix="upload it again once no program writes to it")
    return version


def subfolders(store: Store, prefix: str = "") -> list[str]:
    """Return the names of the folders directly below a prefix, in key order.

    Uses the store's own `folders` if it has one, which does not list all their contents: fast in a bucket of many runs.

    Args:
        store: The store.
        prefix: "" or a prefix that ends in a slash.

    Returns:
        Names without slashes.

    Example:
        >>> from headway.storage import open_store, subfolders
        >>> store = open_store("memory://example-folders")
        >>> _ = store.write("night-1/plan.json", b"{}")
        >>> _ = store.write("night-2/plan.json", b"{}")
        >>> subfolders(store)
        ['night-1', 'night-2']
    """
    if isinstance(store, _SupportsFolders):
        return list(store.folders(prefix))
    below = (entry.key[len(prefix) :] for entry in store.list(prefix))
    return sorted({name.partition("/")[0] for name in below if "/" in name}, key=sort_key)


@runtime_checkable
class _SupportsFolders(Protocol):
    def folders(self, prefix: str = "") -> Iterator[str]: ...


def _download_chunks(store: Store, entry: ObjectInfo, handle: int, parallel: int, progress: Progress) -> None:
    from concurrent.futures import ThreadPoolExecutor, as_completed

    def copy(start: int) -> int:
        stop = min(start + CHUNK_BYTES, entry.size)
        part = store.read(entry.key, (start, stop))
        if len(part) != stop - start:
            raise Transient(f"only {len(part)} of {stop - start} bytes of {entry.key} arrived", where=store.url)
        _write_at(handle, part, start)
        return len(part)

    progress(0, entry.size)
    with ThreadPoolExecutor(max_workers=parallel, thread_name_prefix="fetch") as pool:
        parts = [pool.submit(copy, start) for start in range(0, entry.size, CHUNK_BYTES)]
        done = 0
        try:
            for part in as_completed(parts):
                done += part.result()
                progress(done, entry.size)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)  # after a failure, start no further part


def _write_at(handle: int, part: bytes, start: int) -> None:
    view = memoryview(part)
    while view:
        written = os.pwrite(handle, view, start)
        view, start = view[written:], start + written


def _no_progress(done: int, total: int) -> None:
    pass
