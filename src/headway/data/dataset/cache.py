"""Local disk cache for shards from a network file system or an object store: size-bounded, multi-process, crash-safe.

Files are named by their SHA-256. The process that holds a shard's lock downloads it under a temporary name, verifies
the hash and renames it; other processes wait for the lock. Eviction unlinks the least recently used file: a process
that has it memory-mapped can still read it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.core.errors import BadInput, StoreError
from headway.data.dataset.manifest import ShardFile
from headway.storage import Store
from headway.storage.transfer import fetch_file

Progress = Callable[[int, int, float], None]  # bytes done, total bytes, bytes per second
_ENDING = ".arrow"


class ShardCache:
    """LRU cache of shard files in a folder. `size` limits its bytes; None means no limit but the disk."""

    def __init__(self, folder: Path, *, size: int | None = None, parallel: int = 4) -> None:
        self.folder, self.size, self._parallel = folder, size, parallel
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, shard: ShardFile) -> Path:
        return self.folder / f"{shard.sha256}{_ENDING}"

    def bring(self, shard: ShardFile, store: Store) -> Path:
        """Return the local path of the shard, downloading it if it is not cached."""
        path = self.path(shard)
        if self._used(path, shard):
            return path
        if self.size is not None and shard.bytes > self.size:
            what = f"a shard of {shard.bytes:,} bytes does not fit into a cache of {self.size:,}"
            raise BadInput(what, where=str(self.folder), fix="raise cache.size in the job file")
        with self._locked(shard.sha256):
            if not self._used(path, shard):  # another process fetched it while we waited
                self._clear_remains(shard)
                self._make_room(shard.bytes)
                self._fetch(shard, store, path)
        return path

    def fill(self, shards: Iterable[ShardFile], store: Store, progress: Progress | None = None) -> None:
        """Download all shards and report progress with throughput."""
        wanted = list(shards)
        total, done, began = sum(shard.bytes for shard in wanted), 0, time.monotonic()
        for shard in wanted:
            self.bring(shard, store)
            done += shard.bytes
            if progress is not None:
                progress(done, total, done / max(1e-9, time.monotonic() - began))

    def holds(self, total: int) -> bool:
        return self.size is None or total <= self.size

    def _used(self, path: Path, shard: ShardFile) -> bool:
        """Return whether the file is cached with its full size, and update its mtime, which orders LRU eviction."""
        try:
            if path.stat().st_size != shard.bytes:
                return False
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _fetch(self, shard: ShardFile, store: Store, path: Path) -> None:
        arriving = path.with_name(f"{shard.sha256}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            for attempt in (1, 2):
                fetch_file(store, shard.key, arriving, parallel=self._parallel)
                if _sha256(arriving) == shard.sha256:
                    os.rename(arriving, path)
                    return
                if attempt == 2:
                    raise StoreError(
                        f"{shard.key} arrived with other bytes than its manifest says, twice",
                        where=store.url,
                        fix=f"headway data verify {store.url}",
                    )
        finally:
            arriving.unlink(missing_ok=True)

    def _clear_remains(self, shard: ShardFile) -> None:
        """Remove partial downloads of this shard left by a killed process. Safe because we hold its lock."""
        for part in self.folder.glob(f"{shard.sha256}.*.part"):
            part.unlink(missing_ok=True)

    def _make_room(self, need: int) -> None:
        if self.size is None:
            return
        with self._locked("room"):
            here = sorted(self._here())
            free = self.size - sum(size for _, size, _ in here)
            for _, size, path in here:
                if free >= need:
                    return
                path.unlink(missing_ok=True)
                free += size

    def _here(self) -> Iterator[tuple[float, int, Path]]:
        for path in self.folder.glob(f"*{_ENDING}"):
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
