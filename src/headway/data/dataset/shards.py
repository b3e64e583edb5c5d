"""Shards as Arrow IPC files: written in one piece, read zero-copy as numpy views of memory maps.

Files are uncompressed with one record batch each and raw pixels as fixed-size binary, so that the address of row i is
computed, not searched for. pyarrow, Polars and Hugging Face datasets can read them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from headway.core.errors import BadInput, StoreError
from headway.data.dataset.manifest import Column, ShardFile
from headway.storage import Store
from headway.storage.transfer import fetch_file

# Local disk cache for shards from a network file system or an object store: size-bounded, multi-process, crash-safe.
#
# Files are named by their SHA-256. The process that holds a shard's lock downloads it under a temporary name,
# verifies the hash and renames it; other processes wait for the lock. Eviction unlinks the least recently used file:
# a process that has it memory-mapped can still read it.


Progress = Callable[[int, int, float], None]  # bytes done, total bytes, bytes per second
_SUFFIX = ".arrow"


class ShardCache:
    """LRU cache of shard files in a folder. `size` limits its bytes; None means no limit but the disk."""

    def __init__(self, folder: Path, *, size: int | None = None, parallel: int = 4) -> None:
        self.folder, self.size, self._parallel = folder, size, parallel
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, shard: ShardFile) -> Path:
        return self.folder / f"{shard.sha256}{_SUFFIX}"

    def fetch(self, shard: ShardFile, store: Store) -> Path:
        """Return the local path of the shard, downloading it if it is not cached."""
        path = self.path(shard)
        if self._touch_if_cached(path, shard):
            return path
        if self.size is not None and shard.bytes > self.size:
            what = f"a shard of {shard.bytes:,} bytes does not fit into a cache of {self.size:,}"
            raise BadInput(what, where=str(self.folder), fix="raise cache.size in the job file")
        with self._locked(shard.sha256):
            if not self._touch_if_cached(path, shard):  # another process fetched it while we waited
                self._remove_partials(shard)
                self._evict(shard.bytes)
                self._fetch(shard, store, path)
        return path

    def fill(self, shards: Iterable[ShardFile], store: Store, progress: Progress | None = None) -> None:
        """Download all shards and report progress with throughput."""
        wanted = list(shards)
        total, done, began = sum(shard.bytes for shard in wanted), 0, time.monotonic()
        for shard in wanted:
            self.fetch(shard, store)
            done += shard.bytes
            if progress is not None:
                progress(done, total, done / max(1e-9, time.monotonic() - began))

    def fits(self, total: int) -> bool:
        return self.size is None or total <= self.size

    def _touch_if_cached(self, path: Path, shard: ShardFile) -> bool:
        """Return whether the file is cached with its full size, and update its mtime, which orders LRU eviction."""
        try:
            if path.stat().st_size != shard.bytes:
                return False
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _fetch(self, shard: ShardFile, store: Store, path: Path) -> None:
        partial = path.with_name(f"{shard.sha256}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            for attempt in (1, 2):
                fetch_file(store, shard.key, partial, parallel=self._parallel)
                if _sha256(partial) == shard.sha256:
                    os.rename(partial, path)
                    return
                if attempt == 2:
                    raise StoreError(
                        f"{shard.key} did not match the manifest's hash in two downloads",
                        where=store.url,
                        fix=f"headway data verify {store.url}",
                    )
        finally:
            partial.unlink(missing_ok=True)

    def _remove_partials(self, shard: ShardFile) -> None:
        """Remove partial downloads of this shard left by a killed process. Safe because we hold its lock."""
        for part in self.folder.glob(f"{shard.sha256}.*.part"):
            part.unlink(missing_ok=True)

    def _evict(self, need: int) -> None:
        if self.size is None:
            return
        with self._locked("room"):
            cached = sorted(self._cached_files())
            free = self.size - sum(size for _, size, _ in cached)
            for _, size, path in cached:
                if free >= need:
                    return
                path.unlink(missing_ok=True)
                free += size

    def _cached_files(self) -> Iterator[tuple[float, int, Path]]:
        for path in self.folder.glob(f"*{_SUFFIX}"):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            yield found.st_mtime, found.st_size, path

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Hold an exclusive file lock between processes and threads. The kernel releases it if the holder dies."""
        with (self.folder / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(4 << 20):
            digest.update(piece)
    return digest.hexdigest()


_METADATA = b"headway"


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([_field(column) for column in columns])


def _field(column: Column) -> pa.Field:
    metadata: dict[bytes, bytes] | None = None
    if column.kind == "picture":
        shape = {"encoding": column.encoding, "height": column.height, "width": column.width, "channels": 3}
        metadata = {_METADATA: json.dumps(shape, sort_keys=True).encode()}
    return pa.field(column.name, _arrow_type(column), nullable=False, metadata=metadata)


def _arrow_type(column: Column) -> pa.DataType:
    if column.kind == "picture":
        return pa.binary(column.raw_bytes) if column.encoding == "raw" else pa.binary()
    return {
        "text": pa.string(),
        "texts": pa.list_(pa.string()),
        "integer": pa.int32(),
        "integers": pa.list_(pa.int32()),
        "numbers": pa.list_(pa.float32()),
    }[column.kind]


@dataclass(frozen=True, slots=True)
class ShardInfo:
    body: memoryview
    rows: int
    sha256: str


def shard_bytes(columns: Sequence[Column], values: Mapping[str, Any]) -> ShardInfo:
    """Serialize one shard. Raw pictures come as one uint8 array of rows × bytes, other columns as lists."""
    schema = schema_of(columns)
    arrays = [_array(column, field.type, values[column.name]) for column, field in zip(columns, schema, strict=True)]
    batch = pa.record_batch(arrays, schema=schema)
    measure = pa.MockOutputStream()
    _write(measure, batch)
    buffer = pa.allocate_buffer(measure.size())
    _write(pa.FixedSizeBufferWriter(buffer), batch)
    body = memoryview(buffer)
    return ShardInfo(body, batch.num_rows, hashlib.sha256(body).hexdigest())


def _array(column: Column, kind: pa.DataType, values: Any) -> pa.Array:
    if column.encoding != "raw":
        return pa.array(values, type=kind)
    pixels = np.ascontiguousarray(values, dtype=np.uint8).reshape(-1, column.raw_bytes)
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(pixels), [None, pa.py_buffer(pixels)])


def _write(sink: pa.NativeFile, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


class Cells(Protocol):
    """A column of one shard, indexed by row."""

    def __getitem__(self, row: int) -> Any: ...

    def __len__(self) -> int: ...


class Shard:
    """A memory-mapped shard. Opening it reads only the footer; it stays readable after the file is unlinked."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        try:
            with pa.memory_map(str(path)) as source:
                reader = pa.ipc.open_file(source)
                batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
                for batch in batches:
                    batch.validate()  # checks sizes and buffers, not cells: views stay inside the file
        except (pa.ArrowInvalid, OSError) as error:
            what = f"this shard cannot be read: {' '.join(str(error).split())}"
            raise BadInput(what, where=str(path), fix="headway data verify, then prepare or fetch it again") from None
        if len(batches) != 1:
            what = f"this shard has {len(batches)} record batches where Headway writes one"
            raise BadInput(what, where=str(path), fix="prepare the data again")
        if not batches[0].schema.equals(schema_of(columns)):
            raise BadInput(
                "this shard's columns differ from the manifest's", where=str(path), fix="prepare the data again"
            )
        self._batch = batches[0]
        self._columns = {column.name: column for column in columns}
        self._cells: dict[str, Cells] = {}
        self.path = path

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def cells(self, name: str) -> Cells:
        found = self._cells.get(name)
        if found is None:
            found = self._cells[name] = _cells(self._batch.column(name), self._columns[name])
        return found


def _cells(array: pa.Array, column: Column) -> Cells:
    if column.encoding == "raw":
        return Pixels(array, column)
    if column.kind == "picture":
        return Binary(array)
    if column.kind == "text":
        return Text(array)
    if column.kind == "integer":
        return Integers(array)
    if column.kind == "texts":
        return Texts(array)
    return Lists(array, np.float32 if column.kind == "numbers" else np.int32)


class Pixels:
    """A view of raw pixels in the file: rows × height × width × 3."""

    def __init__(self, array: pa.Array, column: Column) -> None:
        flat = _numbers(array.buffers()[1], np.uint8)
        first = array.offset * column.raw_bytes
        shape = (len(array), column.height, column.width, 3)
        self.view: NDArray[np.uint8] = flat[first : first + len(array) * column.raw_bytes].reshape(shape)

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        cell: NDArray[np.uint8] = self.view[row]
        return cell


class Binary:
    def __init__(self, array: pa.Array) -> None:
        _, offsets, data = array.buffers()
        self.offsets = _bounds(offsets, array)
        self._data = memoryview(data if data is not None else b"").cast("B")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> memoryview:
        return self._data[self.offsets[row] : self.offsets[row + 1]]


class Text(Binary):
    def __getitem__(self, row: int) -> str:  # type: ignore[override]  # the same cells, read as UTF-8
        return str(super().__getitem__(row), "utf-8")


class Integers:
    def __init__(self, array: pa.Array) -> None:
        self.view = _values(array, np.int32)

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, row: int) -> int:
        return int(self.view[row])


class _Lists:
    def __init__(self, array: pa.Array) -> None:
        self.offsets = _bounds(array.buffers()[1], array)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int32]:
        return np.diff(self.offsets)


class Texts(_Lists):
    def __init__(self, array: pa.Array) -> None:
        super().__init__(array)
        self._items = Text(array.values)

    def __getitem__(self, row: int) -> list[str]:
        return [self._items[i] for i in range(self.offsets[row], self.offsets[row + 1])]


class Lists(_Lists):
    """Variable-length lists of numbers of one dtype."""

    def __init__(self, array: pa.Array, kind: type[np.generic]) -> None:
        super().__init__(array)
        self._items = _values(array.values, kind)

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self._items[self.offsets[row] : self.offsets[row + 1]]


def _values(array: pa.Array, kind: type[np.generic]) -> NDArray[Any]:
    return _numbers(array.buffers()[1], kind)[array.offset : array.offset + len(array)]


def _bounds(buffer: pa.Buffer | None, array: pa.Array) -> NDArray[np.int32]:
    """Return the row offsets, including the end of the last row. An empty array may have no offsets buffer."""
    if len(array) == 0:
        return np.zeros(1, np.int32)
    return _numbers(buffer, np.int32)[array.offset : array.offset + len(array) + 1]


def _numbers(buffer: pa.Buffer | None, kind: type[np.generic]) -> NDArray[Any]:
    return np.zeros(0, kind) if buffer is None or buffer.size == 0 else np.frombuffer(buffer, kind)
