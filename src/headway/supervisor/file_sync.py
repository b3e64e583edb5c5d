"""Sync the files a script writes under $HEADWAY_RUN_DIR to the run folder's `files/`, and restore them on resume.

Only changed files are uploaded, and only once they have stopped changing and no process has them open for writing.
Logs, of which any beginning is useful, are uploaded while they grow. Empty folders are not saved. `workdir` does the
same for the script's working folder; `keep_rules` tells logs and checkpoints by their names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headway.core.errors import Denied, DiskFull, HeadwayError, NoBucket, NotThere, StoreError, Transient
from headway.storage import Store
from headway.storage.base import ObjectInfo, checked_key
from headway.storage.secret_scan import find_secrets
from headway.supervisor.background import BackgroundThread, StoreHealth
from headway.supervisor.event_loop import MessageQueue
from headway.supervisor.keep_rules import FileStat, is_log, open_for_writing

INTERVAL_S = 30.0
LOG_INTERVAL_S = 300.0  # how often a log that never stops growing is uploaded
QUIET_SCANS = 10  # a file that a process holds open is uploaded after this many scans without a change
_CHUNK = 8 << 20
_FICLONE = 0x40049409
_FILES, _OTHER_NODES = "files/", "other-nodes/"
WORKDIR, EARLIER = "workdir/", "earlier/"  # below a node's prefix: written by headway.supervisor.workdir
_PARTIAL_PREFIX = ".headway-part-"  # prefix of a file that is being restored
_STORE_ERRORS = (Denied, DiskFull, NoBucket, Transient)  # errors of the store rather than of one file


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
        self._hashes: dict[str, str] = {}  # SHA-256 of each uploaded file, as far as it is known
        self._sent_at: dict[str, float] = {}  # when each file was last uploaded
        self._last_scan: dict[str, FileStat] = {}  # the state of each file at the previous scan
        self._quiet: dict[str, int] = {}  # over how many scans each file has not changed
        self._skipped: dict[str, str] = {}  # why a file is not saved
        self._flagged: set[str] = set()  # look like secrets
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The files that are in the store."""
        return list(self._sent)

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
        kept = self._choose(found, final)
        self._quiet = {n: self._quiet.get(n, 0) + 1 if self._last_scan.get(n) == now else 0 for n, now in found.items()}
        due = [name for name in sorted(kept) if self._sent.get(name) != kept[name]]
        if not final:
            due = self._settled(due, found)
        sent = sum(self._send(name, kept[name]) for name in due)
        # Upload before deleting: a checkpoint is removed from the store only once its successor is there.
        gone = [name for name in self._sent if name not in kept]
        for name in [name for name in gone if final or name in found or name not in self._last_scan]:
            if self._may_delete(name, still_here=name in found):
                self._store.delete(self._prefix + name)
                self._forget(name)
        self._last_scan = found
        return sent

    def _choose(self, found: dict[str, FileStat], final: bool) -> dict[str, FileStat]:
        """Return those of the files found that are saved."""
        return found

    def _may_delete(self, name: str, *, still_here: bool) -> bool:
        """Return whether a file that is no longer chosen may be deleted from the store."""
        return True

    def _settled(self, names: list[str], found: dict[str, FileStat]) -> list[str]:
        """Return the files that are complete: unchanged since the previous scan, and not open for writing.

        A file that is held open is taken once it has been quiet for long; a log as it grows, now and then.
        """
        quiet = [name for name in names if self._quiet[name]]
        growing = [name for name in names if not self._quiet[name] and is_log(name) and name in self._last_scan]
        busy = open_for_writing(self._root) if quiet else set()
        done = [n for n in quiet if found[n].inode not in busy or is_log(n) or self._quiet[n] >= QUIET_SCANS]
        now = time.monotonic()
        return done + [name for name in growing if now - self._sent_at.setdefault(name, now) >= LOG_INTERVAL_S]

    def _forget(self, name: str) -> None:
        del self._sent[name]
        self._hashes.pop(name, None)

    def _send(self, name: str, now: FileStat) -> int:
        """Upload a file, unless only its times have changed; return whether it was uploaded."""
        path, sent = self._root / name, self._sent.get(name)
        try:
            body = path.read_bytes() if now.size <= _CHUNK else None
            digest = hashlib.sha256(body).hexdigest() if body is not None else file_sha256(path)
            if body is not None and file_stat(path) != now and not is_log(name):
                return 0  # changed while being read: next time
            if sent is not None and sent.size == now.size and self._hashes.get(name) == digest:
                self._sent[name] = now
                return 0
            if body is not None:
                self._flag_secrets(name, body)
            self._before_write(name)
            self._hashes.pop(name, None)
            self._versions[name] = self._store.write(self._prefix + name, path if body is None else body)
        except FileNotFoundError:
            return 0  # removed since the scan
        except OSError as error:
            return self._skip(name, f"cannot be read: {error.strerror}")
        except _STORE_ERRORS:
            raise
        except StoreError as error:  # an error of this file alone: the others must still be saved
            return self._skip(name, error.problem.what) if path.exists() else 0
        self._sent_at[name] = time.monotonic()
        self._skipped.pop(name, None)
        if file_stat(path) == now:
            self._sent[name], self._hashes[name] = now, digest
        return 1

    def _flag_secrets(self, name: str, body: bytes) -> None:
        """Log a file that looks like a secret. It is saved all the same: a run loses nothing that it has made."""
        findings = find_secrets(body) if name not in self._flagged else []
        if findings:
            self._flagged.add(name)
            what = f"{findings[0].kind} (line {findings[0].line})"
            self._log(f"saved, but it looks like a secret: {name!r}: {what}. Do not share this run folder")

    def _before_write(self, name: str) -> None:
        """Called before a file is uploaded."""

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
            self._skipped[name] = why
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

    def _download(self, entry: ObjectInfo, path: Path) -> bool:
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


def download(store: Store, entry: ObjectInfo, path: Path) -> None:
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


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content. Raises OSError if it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_CHUNK):
            digest.update(part)
    return digest.hexdigest()


def file_stat(path: Path) -> FileStat | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return FileStat(found.st_size, found.st_mtime_ns, found.st_ino) if stat.S_ISREG(found.st_mode) else None
