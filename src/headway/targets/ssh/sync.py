"""Synchronize a local run folder with its working copy on a host, and upload data sets.

Files are compared by size and modification time, recorded for both sides, so that only changes are transferred. Files
that report a run's progress arrive last.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import BadInput
from headway.plugins import TARGETS
from headway.rundir.layout import PLAN, RECEIPT, STOP, SUBMISSION
from headway.rundir.status import is_local_key
from headway.storage.base import is_object_name
from headway.storage.local import FolderStore, atomic_file
from headway.targets.ssh.connection import CHUNK_BYTES, Host

CLIENT_FILES = (PLAN, SUBMISSION, STOP, RECEIPT, "report.html.tmp")  # written by the client only
_PROGRESS_FILES = ("lease.json", "events")  # listed first on the host, and written last here
_INDEX = "mirrored.json"
FileIndex = dict[str, list[int]]  # key -> size and mtime on the host, size and mtime here


class Mirror:
    """Synchronizes with the working copy on one host.

    Callers hold the lock on `place`, so that no two write the same file.
    """

    def __init__(self, host: Host, there: str, here: Path, place: Path) -> None:
        self._host, self._there, self._here, self._place = host, there, here, place
        self._exists_on_host = False

    def push(self) -> int:
        """Upload everything that is missing on the host, before a start; return the number of bytes."""
        index = self._read_index()
        remote = self._listing()
        keys = [key for key in _files(self._here) if not _is_client_file(key) or key in (PLAN, SUBMISSION)]
        todo = [key for key in keys if not self._is_unchanged(index, remote, key)]
        # Files left from an earlier working copy would count as the run's.
        stray = [f"{self._there}/{key}" for key in remote if not (self._here / key).is_file()]
        if stray:
            self._host.ask("remove", paths=stray)
        sent = 0
        answers = self._in_parallel(lambda host, key: send_file(host, self._here / key, f"{self._there}/{key}"), todo)
        for key, answer in zip(todo, answers, strict=True):
            found = (self._here / key).stat()
            index[key] = [answer["size"], answer["time"], found.st_size, found.st_mtime_ns]
            sent += found.st_size
        self._write_index(index)
        return sent

    def pull(self) -> int:
        """Download what has changed on the host since the last call; return the number of files."""
        index, remote = self._read_index(), self._listing()
        if not self._exists_on_host:
            return 0  # never uploaded, or removed since
        fresh = [key for key, (size, when) in remote.items() if index.get(key, [-1, -1])[:2] != [size, when]]
        first = [key for key in fresh if _download_order(key) == 0]
        later = sorted((key for key in fresh if _download_order(key)), key=lambda key: (_download_order(key), key))
        done = [key for key, got in zip(first, self._in_parallel(self._fetch, first), strict=True) if got]
        done += [key for key in later if self._fetch(self._host, key)]
        for key in done:
            found = (self._here / key).stat()
            index[key] = [*remote[key], found.st_size, found.st_mtime_ns]
        store = FolderStore(self._here)
        for key in [key for key in index if key not in remote and not _is_client_file(key)]:
            store.delete(key)  # deleted on the host: a checkpoint that retention removed
            del index[key]
        if done or len(index) != len(self._read_index()):
            self._write_index(index)
        return len(done)

    def _fetch(self, host: Host, key: str) -> bool:
        return fetch_file(host, f"{self._there}/{key}", self._here / key)

    def _listing(self) -> dict[str, tuple[int, int]]:
        first, skip = list(_PROGRESS_FILES), list(TARGETS)  # folders named after targets: `is_local_key`
        answer = self._host.ask("listing", root=self._there, first=first, skip=skip, proof=PLAN)
        self._exists_on_host = answer["there"]
        return {
            key: (size, when)
            for key, size, when in answer["files"]
            if is_object_name(key.rpartition("/")[2]) and not _is_client_file(key)
        }

    def _is_unchanged(self, index: FileIndex, remote: dict[str, tuple[int, int]], key: str) -> bool:
        if key in (PLAN, SUBMISSION) or key not in index or key not in remote:
            return False
        found = (self._here / key).stat()
        return index[key] == [*remote[key], found.st_size, found.st_mtime_ns]

    def _in_parallel(self, work: Callable[[Host, str], Any], keys: list[str]) -> Iterable[Any]:
        return map_in_parallel(self._host, work, keys)

    def _read_index(self) -> FileIndex:
        try:
            index: FileIndex = json.loads((self._place / _INDEX).read_bytes())
        except (OSError, ValueError):  # never mirrored, or damaged: transfer everything again
            return {}
        return index

    def _write_index(self, index: FileIndex) -> None:
        FolderStore(self._place).write(_INDEX, json.dumps(index).encode())


def map_in_parallel(host: Host, work: Callable[[Host, Any], Any], items: list[Any]) -> list[Any]:
    """Call `work` on every item, over as many connections as the options allow if there are enough items."""
    count = min(host.options.connections, len(items) // 4)
    if count < 2:
        return [work(host, item) for item in items]
    hosts = [host, *(host.open_another() for _ in range(count - 1))]
    free = list(hosts)

    def call(item: Any) -> Any:
        connection = free.pop()
        try:
            return work(connection, item)
        finally:
            free.append(connection)

    try:
        with ThreadPoolExecutor(max_workers=count, thread_name_prefix="ssh") as pool:
            return list(pool.map(call, items))
    finally:
        for other in hosts[1:]:
            other.close()


def send_file(host: Host, path: Path, to: str, on_bytes: Callable[[int], None] = lambda count: None) -> dict[str, Any]:
    """Upload a file of any size in parts. It gets its final name only when it is complete."""
    tag, offset, mode = os.urandom(6).hex(), 0, path.stat().st_mode & 0o777
    with path.open("rb") as file:
        while True:
            part = file.read(CHUNK_BYTES)
            last = len(part) < CHUNK_BYTES
            answer = host.ask("write", part, path=to, offset=offset, last=last, mode=mode, tag=tag)
            offset += len(part)
            on_bytes(len(part))
            if last:
                return answer


def fetch_file(host: Host, there: str, to: Path) -> bool:
    """Download a file atomically; return False if it is gone."""
    answer, part = host.exchange("read", path=there, offset=0, count=CHUNK_BYTES)
    if answer.get("gone"):
        return False
    if len(part) < CHUNK_BYTES:
        FolderStore(to.parent).write(to.name, part)
        return True
    try:
        with atomic_file(to) as handle:
            _fetch_rest(host, there, part, handle)
    except _Vanished:
        return False
    return True


class _Vanished(Exception):
    """The file was removed on the host during its transfer."""


def _fetch_rest(host: Host, there: str, part: bytes, handle: int) -> None:
    """Write `part`, then everything after it. Raises _Vanished if the file disappears on the host meanwhile."""
    while part:
        os.write(handle, part)
        answer, part = host.exchange("read", path=there, offset=os.lseek(handle, 0, os.SEEK_CUR), count=CHUNK_BYTES)
        if answer.get("gone"):
            raise _Vanished


def fetch_growing(host: Host, there: str, here: Path) -> None:
    """Download what was appended to append-only files."""
    listed = host.ask("listing", root=there)["files"]
    here.mkdir(parents=True, exist_ok=True)
    for name, size, _ in listed:
        path = here / name
        have = path.stat().st_size if path.exists() else 0
        while have < size:
            _, part = host.exchange("read", path=f"{there}/{name}", offset=have, count=CHUNK_BYTES)
            if not part:
                break
            with path.open("ab") as file:
                file.write(part)
            have += len(part)


def _files(root: Path) -> Iterable[str]:
    return [entry.key for entry in FolderStore(root).list() if not is_local_key(entry.key)]


def _is_client_file(key: str) -> bool:
    return key in CLIENT_FILES or key.startswith("plans/")


def _download_order(key: str) -> int:
    """Return a file's rank in the download order.

    Tensors come before their manifest, everything before the events that mention it.
    """
    if key.startswith("events/"):
        return 2
    if key == "lease.json":
        return 3
    return 1 if key.endswith("manifest.json") or (key.startswith("checkpoints/") and key.count("/") == 1) else 0


# Data upload: once per host, stored there under its fingerprint, over parallel connections


COMPLETE_MARKER = ".complete"
PROGRESS_S = 5.0  # between progress messages
_CHUNK = 4 << 20
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class DataUpload:
    """Files of one data source. On the host they are stored under a fingerprint of their content."""

    source: str
    files: tuple[tuple[str, int], ...]  # relative name ("" for a single file) and bytes

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)


def scan_source(source: str) -> DataUpload:
    path = Path(source)
    if path.is_file():
        return DataUpload(source=source, files=(("", path.stat().st_size),))
    if not path.is_dir():
        raise BadInput(f"no such data: {source}", fix="fix the path in the job file")
    files = [
        (Path(folder, name).relative_to(path).as_posix(), Path(folder, name).stat().st_size)
        for folder, _, names in os.walk(path, followlinks=True)
        for name in names
    ]
    return DataUpload(source=source, files=tuple(sorted(files)))


def fingerprint(upload: DataUpload) -> str:
    """Hash the content. A manifest stands for the files that it lists; without one, every file is read."""
    root = Path(upload.source)
    manifest = root / "manifest.json"
    digest = hashlib.sha256()
    if manifest.is_file():
        digest.update(manifest.read_bytes())
        return digest.hexdigest()[:16]
    for name, size in upload.files:
        digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
        with open(root / name if name else root, "rb") as file:
            while part := file.read(_CHUNK):
                digest.update(part)
    return digest.hexdigest()[:16]


def upload_source(host: Host, source: str, log: Say) -> str:
    """Upload the source unless the host has it; return its path there."""
    upload = scan_source(source)
    there = f"{host.facts['dir']}/data/{fingerprint(upload)}"
    single = len(upload.files) == 1 and upload.files[0][0] == ""
    remote_path = f"{there}/{Path(source).name}" if single else there
    if host.ask("sizes", paths=[f"{there}/{COMPLETE_MARKER}"])["sizes"][0] is not None:
        log(f"data: {source} is on {host} already")
        return remote_path
    _send(host, upload, there, log)
    host.send(f"{there}/{COMPLETE_MARKER}", b"")
    return remote_path


def _send(host: Host, upload: DataUpload, there: str, log: Say) -> None:
    """Upload the missing files. After a lost connection, only the file in transfer is sent again."""
    root = Path(upload.source)
    names = [(name or root.name, root / name if name else root, size) for name, size in upload.files]
    have = host.ask("sizes", paths=[f"{there}/{name}" for name, _, _ in names])["sizes"]
    todo = [(name, path) for (name, path, size), found in zip(names, have, strict=True) if found != size]
    total = sum(path.stat().st_size for _, path in todo)
    meter = _ProgressMeter(f"data: {upload.source} to {host}", total, log)
    map_in_parallel(host, lambda each, item: send_file(each, item[1], f"{there}/{item[0]}", meter.add), todo)
    meter.end()


class _ProgressMeter:
    """Progress meter: bytes sent, and the rate."""

    def __init__(self, about: str, total: int, log: Say) -> None:
        self._about, self._total, self._log = about, total, log
        self._done, self._began = 0, time.monotonic()
        self._logged_at, self._lock = self._began, threading.Lock()
        log(f"{about}: {format_bytes(total)} to send")

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._logged_at > PROGRESS_S:
                self._logged_at = now
                self._log(
                    f"{self._about}: {format_bytes(self._done)} of {format_bytes(self._total)}, {self._rate(now)}"
                )

    def end(self) -> None:
        self._log(f"{self._about}: {format_bytes(self._done)} sent, {self._rate(time.monotonic())}")

    def _rate(self, now: float) -> str:
        return f"{format_bytes(int(self._done / max(1e-3, now - self._began)))}/s"


def format_bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
