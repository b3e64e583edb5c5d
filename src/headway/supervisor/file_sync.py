"""Sync the files a script writes under $HEADWAY_RUN_DIR to the run folder's `files/`, and restore them on resume.

Only changed files are uploaded, and only once they have stopped changing. Empty folders are not saved.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import Denied, DiskFull, HeadwayError, NoBucket, NotThere, StoreError, Transient
from headway.storage import Store
from headway.storage.base import Entry, checked_key
from headway.supervisor.event_loop import MessageQueue
from headway.supervisor.threads import BackgroundThread, StoreHealth

INTERVAL_S = 30.0
_CHUNK = 8 << 20
_FICLONE = 0x40049409
_FILES, _OTHER_NODES = "files/", "other-nodes/"
WORKDIR, EARLIER = "workdir/", "earlier/"  # below a node's prefix: written by headway.supervisor.workdir
_PARTIAL_PREFIX = ".headway-part-"  # prefix of a file that is being restored
_STORE_ERRORS = (Denied, DiskFull, NoBucket, Transient)  # errors of the store rather than of one file


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size, modification time and inode of a file, compared to detect changes without reading it."""

    size: int
    modified_ns: int
    inode: int


def node_prefix(node: int) -> str:
    """Return the key prefix of a node's files in the store."""
    return _FILES if node == 0 else f"{_FILES}{_OTHER_NODES}{node}/"


class Mirror:
    """Uploader of one folder to the store. Thread-safe."""

    def __init__(
        self, root: Path, store: Store, *, node: int = 0, log: Callable[[str], None] = lambda text: None
    ) -> None:
        self._root, self._store, self._log = root, store, log
        self._prefix = node_prefix(node)
        self._sent: dict[str, FileStat] = {}  # the state of each file that is in the store
        self._versions: dict[str, str] = {}  # the store's version of each uploaded file
        self._last_scan: dict[str, FileStat] = {}  # the state of each file at the previous scan
        self._skipped: set[str] = set()
        self._lock = threading.Lock()

    def restore(self) -> int:
        """Download the files that earlier attempts saved; return their number. Node 0's files go to every node."""
        with self._lock:
            restored = self._download_prefix(_FILES, keep=self._prefix == _FILES)
            if self._prefix != _FILES:
                restored += self._download_prefix(self._prefix, keep=True)
            return restored

    def sync(self, *, final: bool = False) -> int:
        """Upload changed files, then delete removed ones from the store; return the number of uploads.

        A file is uploaded only if it has not changed since the previous scan, unless `final`. A file that changes
        during its upload is uploaded again by a later call.
        """
        with self._lock:
            return self._sync(final)

    def _sync(self, final: bool) -> int:
        found = dict(self._scan())
        sent = 0
        for name, now in sorted(found.items()):
            unchanged = final or self._last_scan.get(name) == now
            if unchanged and self._sent.get(name) != now:
                sent += self._send(name, now)
        # Upload before deleting: a checkpoint is removed from the store only once its successor is there.
        for name in [name for name in self._sent if name not in found and (final or name not in self._last_scan)]:
            self._store.delete(self._prefix + name)
            del self._sent[name]
        self._last_scan = found
        return sent

    def _send(self, name: str, now: FileStat) -> int:
        path = self._root / name
        try:
            with path.open("rb") as file:
                if now.size <= _CHUNK:
                    body = file.read()
                    if file_stat(path) != now:
                        return 0  # changed while being read: next time
                    self._versions[name] = self._store.write(self._prefix + name, body)
                else:
                    self._versions[name] = self._store.write(self._prefix + name, path)
        except FileNotFoundError:
            return 0  # removed since the scan
        except OSError as error:
            return self._skip(name, f"cannot be read: {error.strerror}")
        except _STORE_ERRORS:
            raise
        except StoreError as error:  # an error of this file alone: the others must still be saved
            return self._skip(name, error.problem.what) if path.exists() else 0
        if file_stat(path) == now:
            self._sent[name] = now
        return 1

    def _scan(self) -> Iterator[tuple[str, FileStat]]:
        for folder, folders, names in os.walk(self._root):
            folders[:] = self._subfolders_to_scan(folder, folders)
            for file_name in names:
                path = Path(folder, file_name)
                name = path.relative_to(self._root).as_posix()
                found = None if file_name.startswith(_PARTIAL_PREFIX) else self._stat_file(path)
                if found is not None and self._has_valid_key(name):
                    yield name, found

    def _subfolders_to_scan(self, folder: str, names: list[str]) -> list[str]:
        """Return those subfolders of a folder that the scan descends into."""
        return names

    def _stat_file(self, path: Path) -> FileStat | None:
        """Return the state of a regular file, or None. A symlink is followed if it stays inside the folder."""
        if path.is_symlink() and not path.resolve().is_relative_to(self._root.resolve()):
            self._skip(str(path), "is a link that points outside the folder")
            return None
        return file_stat(path)

    def _has_valid_key(self, name: str) -> bool:
        if self._reserved(self._prefix, name):
            self._skip(name, "is reserved for files of other nodes and of the working folder")
            return False
        try:
            checked_key(self._prefix + name)
        except StoreError as error:
            self._skip(name, error.problem.what)
            return False
        return True

    def _reserved(self, prefix: str, name: str) -> bool:
        """Return whether a name below a prefix is reserved for files from elsewhere than this folder."""
        return name.startswith((WORKDIR, EARLIER)) or (prefix == _FILES and name.startswith(_OTHER_NODES))

    def _skip(self, name: str, why: str) -> int:
        if name not in self._skipped:
            self._skipped.add(name)
            self._log(f"not saved: {name!r}: {why}")
        return 0

    def _download_prefix(self, prefix: str, *, keep: bool) -> int:
        count = 0
        for entry in list(self._store.list(prefix)):
            name = entry.key[len(prefix) :]
            path = self._root / name
            if self._reserved(prefix, name) or not self._download(entry, path):
                continue
            count += 1
            found = file_stat(path)
            if keep and found is not None:
                self._sent[name] = self._last_scan[name] = found
        return count

    def _download(self, entry: Entry, path: Path) -> bool:
        """Download one file; return False if it was deleted between listing and reading."""
        try:
            download(self._store, entry, path)
        except NotThere:
            return False
        except OSError as error:
            name = entry.key.removeprefix(self._prefix)
            raise HeadwayError(f"{name} cannot be restored: {error.strerror}", where=str(path)) from None
        return True


class MirrorThread(BackgroundThread):
    """Thread that syncs the mirrors periodically while the ranks run, and once more at the end."""

    def __init__(
        self, mirrors: Sequence[Mirror], inbox: MessageQueue, health: StoreHealth, *, every_s: float = INTERVAL_S
    ) -> None:
        super().__init__("mirror", inbox, health)
        self._mirrors, self._every_s = mirrors, every_s

    def work(self) -> None:
        for mirror in self._mirrors:
            mirror.sync(final=self._finishing)

    def interval_s(self) -> float:
        return self._every_s


def copy_folder(source: Path, target: Path) -> None:
    """Replace `target` by a copy of `source`, sharing disk blocks (reflink) where the file system supports it."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, copy_function=_clone, ignore_dangling_symlinks=True)


def _clone(source: str, target: str) -> str:
    with open(source, "rb") as read, open(target, "wb") as write:
        try:
            fcntl.ioctl(write.fileno(), _FICLONE, read.fileno())
        except OSError:  # the file system does not support reflinks
            shutil.copyfileobj(read, write, _CHUNK)
    shutil.copystat(source, target)
    return target


def download(store: Store, entry: Entry, path: Path) -> None:
    """Download an object in chunks to a temporary name, then rename it to `path` once complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{_PARTIAL_PREFIX}{os.urandom(8).hex()}")
    try:
        with partial.open("wb") as file:
            for start in range(0, entry.size, _CHUNK):
                file.write(store.read(entry.key, (start, min(entry.size, start + _CHUNK))))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def file_stat(path: Path) -> FileStat | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return FileStat(found.st_size, found.st_mtime_ns, found.st_ino) if stat.S_ISREG(found.st_mode) else None
