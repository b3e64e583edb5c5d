"""A folder as a store: this machine's disk, or an NFS share. Costs two syncs per write.

Every write goes to a temporary file in the same directory, is synced, and is then renamed or linked atomically,
so a reader sees the old bytes or the new ones, and a crash leaves at most a temporary file, which is never listed.

- `when=ABSENT` is link(2): it fails if the name is taken, atomically, also on NFS.
- `when=version` compares and renames while holding flock(2) on a file beside the object. The lock is released when its
  holder dies. NFS passes it to the server (version 3 needs its lock daemon), so that clients exclude each other;
  mounted with `nolock` or `local_lock=flock` it holds only among the processes of one host.
- The version is the modification time, which we set and which only ever grows, and the size. Inode numbers are
  left out: disks reuse them at once, and some network file systems invent new ones.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.core import platform
from headway.core.errors import Conflict, Denied, DiskFull, NotThere, StoreError, Transient
from headway.storage.base import (
    ABSENT,
    LOCK_FILE,
    TEMPORARY_PREFIX,
    ObjectInfo,
    checked_key,
    checked_prefix,
    checked_span,
    is_object_name,
    sort_key,
)
from headway.storage.transfer import Body, as_view, open_body

_COPY_CHUNK = 4 << 20
_COARSEST_CLOCK_NS = 2_000_000_000  # FAT and some old file systems store times in steps of two seconds

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_ERROR_TYPES: dict[int, type[StoreError]] = {
    errno.EACCES: Denied,
    errno.EPERM: Denied,
    errno.EROFS: Denied,
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.EIO: Transient,
    errno.ESTALE: Transient,
    errno.ETIMEDOUT: Transient,
    errno.EAGAIN: Transient,
    errno.EINTR: Transient,
}


class FolderStore:
    """Keys are paths below `root`. The root, and directories below it, are created by the first write."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))
        self.url = str(self.root)

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        path = self._path(key)
        with self._map_errors("read", path), path.open("rb") as file:
            if span is None:
                return file.read()
            start, stop = checked_span(span)
            file.seek(start)
            return file.read(stop - start)

    def write(self, key: str, body: Body, *, when: str | None = None) -> str:
        path = self._path(key)
        with self._map_errors("write", path):
            _make_directories(path.parent)
            temporary = path.parent / f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"
            try:
                _write_durably(temporary, body)
                return self._publish(temporary, path, when)
            finally:
                temporary.unlink(missing_ok=True)

    def stat(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with self._map_errors("look up", path):
            found = _stat_opened(path)
            return ObjectInfo(key, found.st_size, _version(found))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder, _, name_prefix = checked_prefix(prefix).rpartition("/")
        start = self.root / folder if folder else self.root
        with self._map_errors("list", start):
            yield from _walk(start, f"{folder}/" if folder else "", name_prefix)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._map_errors("delete", path):
            try:
                path.unlink(missing_ok=True)
            except (IsADirectoryError, NotADirectoryError):
                return  # no object has this name
            except PermissionError:
                if not path.is_dir():  # POSIX allows EPERM where Linux returns EISDIR
                    raise
                return
            if path.parent.is_dir():
                _sync_directory(path.parent)

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of the folders directly below `prefix`, without walking into them."""
        start = self.root / checked_key(prefix.rstrip("/")) if prefix else self.root
        with self._map_errors("list", start):
            names = [name for name, entry in _scan(start) if entry.is_dir(follow_symlinks=False)]
        yield from sorted(names, key=sort_key)

    def _path(self, key: str) -> Path:
        return self.root / checked_key(key)

    def _publish(self, temporary: Path, path: Path, when: str | None) -> str:
        """Give the finished file its name; everything visible to readers happens here."""
        if when is None:
            version = _set_mtime(temporary, path)
            os.replace(temporary, path)
        elif when == ABSENT:
            version = _set_mtime(temporary, None)
            _link(temporary, path)
        else:
            with _locked(path.parent):
                _require_version(path, when)
                version = _set_mtime(temporary, path)
                os.replace(temporary, path)
        _sync_directory(path.parent)
        return version

    @contextmanager
    def _map_errors(self, verb: str, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _map_os_error(error, verb, path) from error


@contextmanager
def atomic_file(path: Path) -> Iterator[int]:
    """Yield a file descriptor to fill. The file appears when the block succeeds; otherwise nothing is left."""
    temporary = path.parent / f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"
    try:
        _make_directories(path.parent)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            yield handle
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except OSError as error:
        raise _map_os_error(error, "write", path) from error
    finally:
        temporary.unlink(missing_ok=True)


def _map_os_error(error: OSError, verb: str, path: Path) -> StoreError:
    if verb == "write" and isinstance(error, (FileExistsError, IsADirectoryError, NotADirectoryError)):
        what = "a folder and a file cannot have the same name here, though objects in a bucket can"
        return StoreError(what, where=str(path), fix="choose another name")
    if verb == "write" and isinstance(error, FileNotFoundError):
        return Transient(f"the folder was deleted while {path.name} was being written", where=str(path))
    if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        return NotThere(f"{path.name} does not exist", where=str(path))
    kind = _ERROR_TYPES.get(error.errno or 0, StoreError)
    reason = os.strerror(error.errno) if error.errno else str(error)
    if kind is DiskFull:
        fix = f"make room on the disk of {path.parent} (df -h {path.parent}), or choose another folder"
        return DiskFull(f"no space left for {path.name}; its previous content is unchanged", where=str(path), fix=fix)
    if kind is Denied:
        fix = f"chmod or chown {path.parent} so that this user may {verb} there, or choose another folder"
        return Denied(f"cannot {verb} {path.name}: {reason}", where=str(path), fix=fix)
    return kind(f"cannot {verb} {path.name}: {reason}", where=str(path))


def _stat_opened(path: Path) -> os.stat_result:
    """Stat by opening: that asks an NFS server, whereas a bare stat may be answered from a cache, seconds old."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
    finally:
        os.close(handle)
    if not stat.S_ISREG(found.st_mode):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return found


def _version(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns:x}-{found.st_size:x}"


def _set_mtime(temporary: Path, replaced: Path | None) -> str:
    """Set the mtime that makes the version: now, and in any case later than that of the file to be replaced."""
    before = 0
    if replaced is not None:
        try:
            before = _stat_opened(replaced).st_mtime_ns
        except FileNotFoundError:
            pass
    mtime_ns = max(time.time_ns(), before + 1)
    os.utime(temporary, ns=(mtime_ns, mtime_ns))
    written = temporary.stat()
    if written.st_mtime_ns <= before:  # this file system stores coarser times than we set
        mtime_ns = before + _COARSEST_CLOCK_NS
        os.utime(temporary, ns=(mtime_ns, mtime_ns))
        written = temporary.stat()
    return _version(written)


def _require_version(path: Path, version: str) -> None:
    try:
        present = _version(_stat_opened(path))
    except FileNotFoundError:
        present = "nothing"
    if present != version:
        raise Conflict(f"another writer wrote {path.name} first", where=str(path))


def _write_durably(path: Path, body: Body) -> None:
    if isinstance(body, Path):
        with open_body(body) as source, path.open("xb") as file:
            shutil.copyfileobj(source, file, _COPY_CHUNK)
            file.flush()
            os.fsync(file.fileno())
    else:
        with path.open("xb") as file:
            file.write(as_view(body))
            file.flush()
            os.fsync(file.fileno())


def _link(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # An NFS server may have made the link although its response was lost: the retried request then finds our own.
        if temporary.stat().st_nlink != 2:
            raise Conflict(f"{path.name} already exists", where=str(path)) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with _locked(path.parent):  # no hard links on this file system
            if path.exists():
                raise Conflict(f"{path.name} already exists", where=str(path)) from None
            os.replace(temporary, path)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Exclude the other conditional writers of this directory. Held for a few system calls."""
    lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            what = "this file system has no locks, so two attempts of a run could overwrite each other"
            fix = "mount it with locking (NFS: without nolock, with rpc.statd running), or choose another folder"
            raise StoreError(what, where=str(directory), fix=fix) from error
        yield
    finally:
        os.close(lock)


def make_private_folder(path: Path) -> None:
    """Create a folder as `platform.make_private` does. Raises StoreError."""
    try:
        platform.make_private(path)
    except OSError as error:
        raise _map_os_error(error, "write", path) from error


def _make_directories(directory: Path) -> None:
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Sync a directory: a new name survives a power failure only after that."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot, and need not
            raise
    finally:
        os.close(handle)


def _scan(directory: Path) -> list[tuple[str, os.DirEntry[str]]]:
    try:
        with os.scandir(directory) as entries:
            return [(entry.name, entry) for entry in entries if is_object_name(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []  # does not exist yet, or was just deleted: nothing in it either way


def _walk(directory: Path, folder: str, name_prefix: str) -> Iterator[ObjectInfo]:
    """Yield files below `directory` whose name there starts with `name_prefix`, in the order of object stores."""
    found = []
    for name, entry in _scan(directory):
        if name.startswith(name_prefix):
            is_folder = entry.is_dir(follow_symlinks=False)
            found.append((sort_key(name + "/" if is_folder else name), name, entry, is_folder))
    for _, name, entry, is_folder in sorted(found, key=lambda item: item[0]):
        if is_folder:
            yield from _walk(directory / name, f"{folder}{name}/", "")
            continue
        try:
            details = entry.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue  # deleted since the scan, or a dangling link
        if stat.S_ISREG(details.st_mode):
            yield ObjectInfo(folder + name, details.st_size, _version(details))
