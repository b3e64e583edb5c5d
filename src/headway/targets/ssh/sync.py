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
from headway.rundir.layout import INTENT, PLAN, RECEIPT, STOP
from headway.storage.base import is_object_name
from headway.storage.local import FolderStore, atomic_file
from headway.targets.ssh.connection import SPAN, Host
from headway.targets.ssh.options import LOCAL_FOLDERS

OURS = (PLAN, INTENT, STOP, RECEIPT, "report.html.tmp")  # written by the client only
_LAST = ("lease.json", "events")  # listed first on the host, and written last here
_INDEX = "mirrored.json"
Known = dict[str, list[int]]  # key -> size and mtime on the host, size and mtime here


class Mirror:
    """Synchronizes with the working copy on one host.

    Callers hold the lock on `place`, so that no two write the same file.
    """

    def __init__(self, host: Host, there: str, here: Path, place: Path) -> None:
        self._host, self._there, self._here, self._place = host, there, here, place
        self._there_at_all = False

    def push(self) -> int:
        """Upload everything that is missing on the host, before a start; return the number of bytes."""
        known = self._known()
        listed = self._listing()
        keys = [key for key in _files(self._here) if not _is_ours(key) or key in (PLAN, INTENT)]
        todo = [key for key in keys if not self._same(known, listed, key)]
        # Files left from an earlier working copy would count as the run's.
        stray = [f"{self._there}/{key}" for key in listed if not (self._here / key).is_file()]
        if stray:
            self._host.ask("remove", paths=stray)
        sent = 0
        answers = self._aside(lambda host, key: send_file(host, self._here / key, f"{self._there}/{key}"), todo)
        for key, answer in zip(todo, answers, strict=True):
            found = (self._here / key).stat()
            known[key] = [answer["size"], answer["time"], found.st_size, found.st_mtime_ns]
            sent += found.st_size
        self._keep(known)
        return sent

    def pull(self) -> int:
        """Download what has changed on the host since the last call; return the number of files."""
        known, listed = self._known(), self._listing()
        if not self._there_at_all:
            return 0  # never uploaded, or removed since
        fresh = [key for key, (size, when) in listed.items() if known.get(key, [-1, -1])[:2] != [size, when]]
        first = [key for key in fresh if _turn(key) == 0]
        later = sorted((key for key in fresh if _turn(key)), key=lambda key: (_turn(key), key))
        done = [key for key, got in zip(first, self._aside(self._fetch, first), strict=True) if got]
        done += [key for key in later if self._fetch(self._host, key)]
        for key in done:
            found = (self._here / key).stat()
            known[key] = [*listed[key], found.st_size, found.st_mtime_ns]
        store = FolderStore(self._here)
        for key in [key for key in known if key not in listed and not _is_ours(key)]:
            store.delete(key)  # deleted on the host: a checkpoint that retention removed
            del known[key]
        if done or len(known) != len(self._known()):
            self._keep(known)
        return len(done)

    def _fetch(self, host: Host, key: str) -> bool:
        return fetch_file(host, f"{self._there}/{key}", self._here / key)

    def _listing(self) -> dict[str, tuple[int, int]]:
        skip = list(LOCAL_FOLDERS)
        answer = self._host.ask("listing", root=self._there, first=list(_LAST), skip=skip, proof=PLAN)
        self._there_at_all = answer["there"]
        return {
            key: (size, when)
            for key, size, when in answer["files"]
            if is_object_name(key.rpartition("/")[2]) and not _is_ours(key)
        }

    def _same(self, known: Known, listed: dict[str, tuple[int, int]], key: str) -> bool:
        if key in (PLAN, INTENT) or key not in known or key not in listed:
            return False
        found = (self._here / key).stat()
        return known[key] == [*listed[key], found.st_size, found.st_mtime_ns]

    def _aside(self, work: Callable[[Host, str], Any], keys: list[str]) -> Iterable[Any]:
        return side_by_side(self._host, work, keys)

    def _known(self) -> Known:
        try:
            known: Known = json.loads((self._place / _INDEX).read_bytes())
        except (OSError, ValueError):  # never mirrored, or damaged: transfer everything again
            return {}
        return known

    def _keep(self, known: Known) -> None:
        FolderStore(self._place).write(_INDEX, json.dumps(known).encode())


def side_by_side(host: Host, work: Callable[[Host, Any], Any], items: list[Any]) -> list[Any]:
    """Call `work` on every item, over as many connections as the options allow if there are enough items."""
    count = min(host.options.connections, len(items) // 4)
    if count < 2:
        return [work(host, item) for item in items]
    hosts = [host, *(host.another() for _ in range(count - 1))]
    free = list(hosts)

    def carry_out(item: Any) -> Any:
        mine = free.pop()
        try:
            return work(mine, item)
        finally:
            free.append(mine)

    try:
        with ThreadPoolExecutor(max_workers=count, thread_name_prefix="ssh") as pool:
            return list(pool.map(carry_out, items))
    finally:
        for other in hosts[1:]:
            other.close()


def send_file(host: Host, path: Path, to: str, moved: Callable[[int], None] = lambda count: None) -> dict[str, Any]:
    """Upload a file of any size in parts. It gets its final name only when it is complete."""
    tag, offset, mode = os.urandom(6).hex(), 0, path.stat().st_mode & 0o777
    with path.open("rb") as file:
        while True:
            part = file.read(SPAN)
            last = len(part) < SPAN
            answer = host.ask("write", part, path=to, offset=offset, last=last, mode=mode, tag=tag)
            offset += len(part)
            moved(len(part))
            if last:
                return answer


def fetch_file(host: Host, there: str, to: Path) -> bool:
    """Download a file atomically; return False if it is gone."""
    answer, part = host.exchange("read", path=there, offset=0, count=SPAN)
    if answer.get("gone"):
        return False
    if len(part) < SPAN:
        FolderStore(to.parent).write(to.name, part)
        return True
    with atomic_file(to) as handle:
        while part:
            os.write(handle, part)
            answer, part = host.exchange("read", path=there, offset=os.lseek(handle, 0, os.SEEK_CUR), count=SPAN)
            if answer.get("gone"):
                break
    return True


def fetch_growing(host: Host, there: str, here: Path) -> None:
    """Download what was appended to append-only files."""
    listed = host.ask("listing", root=there)["files"]
    here.mkdir(parents=True, exist_ok=True)
    for name, size, _ in listed:
        path = here / name
        have = path.stat().st_size if path.exists() else 0
        while have < size:
            _, part = host.exchange("read", path=f"{there}/{name}", offset=have, count=SPAN)
            if not part:
                break
            with path.open("ab") as file:
                file.write(part)
            have += len(part)


def _files(root: Path) -> Iterable[str]:
    return [entry.key for entry in FolderStore(root).list() if entry.key.partition("/")[0] not in LOCAL_FOLDERS]


def _is_ours(key: str) -> bool:
    return key in OURS or key.startswith("plans/")


def _turn(key: str) -> int:
    """Return a file's rank in the download order.

    Tensors come before their manifest, everything before the events that mention it.
    """
    if key.startswith("events/"):
        return 2
    if key == "lease.json":
        return 3
    return 1 if key.endswith("manifest.json") or (key.startswith("checkpoints/") and key.count("/") == 1) else 0


# Data upload: once per host, stored there under its fingerprint, over parallel connections


WHOLE = ".complete"
TOLD_S = 5.0  # between progress messages
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


def parcel(source: str) -> DataUpload:
    path = Path(source)
    if path.is_file():
        return DataUpload(source=source, files=(("", path.stat().st_size),))
    if not path.is_dir():
        raise BadInput(f"no such data: {source}", fix="mend the path in the job file")
    files = [
        (Path(folder, name).relative_to(path).as_posix(), Path(folder, name).stat().st_size)
        for folder, _, names in os.walk(path, followlinks=True)
        for name in names
    ]
    return DataUpload(source=source, files=tuple(sorted(files)))


def fingerprint(parcel: DataUpload) -> str:
    """Hash the content. A manifest stands for the files that it lists; without one, every file is read."""
    root = Path(parcel.source)
    manifest = root / "manifest.json"
    digest = hashlib.sha256()
    if manifest.is_file():
        digest.update(manifest.read_bytes())
        return digest.hexdigest()[:16]
    for name, size in parcel.files:
        digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
        with open(root / name if name else root, "rb") as file:
            while part := file.read(_CHUNK):
                digest.update(part)
    return digest.hexdigest()[:16]


def bring(host: Host, source: str, say: Say) -> str:
    """Upload the source unless the host has it; return its path there."""
    what = parcel(source)
    there = f"{host.facts['dir']}/data/{fingerprint(what)}"
    single = len(what.files) == 1 and what.files[0][0] == ""
    named = f"{there}/{Path(source).name}" if single else there
    if host.ask("sizes", paths=[f"{there}/{WHOLE}"])["sizes"][0] is not None:
        say(f"data: {source} is on {host} already")
        return named
    _send(host, what, there, say)
    host.send(f"{there}/{WHOLE}", b"")
    return named


def _send(host: Host, what: DataUpload, there: str, say: Say) -> None:
    """Upload the missing files. After a lost connection, only the file in transfer is sent again."""
    root = Path(what.source)
    names = [(name or root.name, root / name if name else root, size) for name, size in what.files]
    have = host.ask("sizes", paths=[f"{there}/{name}" for name, _, _ in names])["sizes"]
    todo = [(name, path) for (name, path, size), found in zip(names, have, strict=True) if found != size]
    total = sum(path.stat().st_size for _, path in todo)
    meter = _Meter(f"data: {what.source} to {host}", total, say)
    side_by_side(host, lambda each, item: send_file(each, item[1], f"{there}/{item[0]}", meter.add), todo)
    meter.end()


class _Meter:
    """Progress meter: bytes sent, and the rate."""

    def __init__(self, about: str, total: int, say: Say) -> None:
        self._about, self._total, self._say = about, total, say
        self._done, self._began = 0, time.monotonic()
        self._told, self._lock = self._began, threading.Lock()
        say(f"{about}: {amount(total)} to send")

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._told > TOLD_S:
                self._told = now
                self._say(f"{self._about}: {amount(self._done)} of {amount(self._total)}, {self._rate(now)}")

    def end(self) -> None:
        self._say(f"{self._about}: {amount(self._done)} sent, {self._rate(time.monotonic())}")

    def _rate(self, now: float) -> str:
        return f"{amount(int(self._done / max(1e-3, now - self._began)))}/s"


def amount(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
