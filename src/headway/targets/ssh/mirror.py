"""A run folder of this machine and its working copy on a host. What tells how far a run is comes over last.

Files are known by size and time of modification, remembered for both sides, so only what has changed is moved.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headway.runfolder import INTENT, PLAN, RECEIPT, STOP
from headway.storage.folder import FolderStore, published_file
from headway.storage.keys import can_be_listed
from headway.targets.ssh.host import SPAN, Host
from headway.targets.ssh.layout import LOCAL_FOLDERS

OURS = (PLAN, INTENT, STOP, RECEIPT, "report.html.tmp")  # written by this machine alone
_LAST = ("lease.json", "events")  # listed first there, and written last here
_INDEX = "mirrored.json"
Known = dict[str, list[int]]  # key -> size and time there, size and time here


class Mirror:
    """One host's working copy. Whoever uses it holds the lock on `place`, so that two do not write the same file."""

    def __init__(self, host: Host, there: str, here: Path, place: Path) -> None:
        self._host, self._there, self._here, self._place = host, there, here, place
        self._there_at_all = False

    def push(self) -> int:
        """Everything of the folder that is not there yet; returns how many bytes. Before a start."""
        known = self._known()
        listed = self._listing()
        keys = [key for key in _files(self._here) if not _is_ours(key) or key in (PLAN, INTENT)]
        todo = [key for key in keys if not self._same(known, listed, key)]
        # What a former working copy has, and this folder has not, would count as the run's.
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
        """What has changed there since the last time; returns how many files."""
        known, listed = self._known(), self._listing()
        if not self._there_at_all:
            return 0  # never brought there, or removed since
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
            store.delete(key)  # there before, and gone since: a checkpoint that is not kept
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
            if can_be_listed(key.rpartition("/")[2]) and not _is_ours(key)
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
        except (OSError, ValueError):  # never mirrored, or damaged: everything is moved again
            return {}
        return known

    def _keep(self, known: Known) -> None:
        FolderStore(self._place).write(_INDEX, json.dumps(known).encode())


def side_by_side(host: Host, work: Callable[[Host, Any], Any], items: list[Any]) -> list[Any]:
    """The work on every item, over as many connections as the options allow where there is enough to do."""
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
    """A file of any size, in parts; it has its name there when all of it has come."""
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
    """Bring a file, whole or not at all; False where it is gone."""
    answer, part = host.exchange("read", path=there, offset=0, count=SPAN)
    if answer.get("gone"):
        return False
    if len(part) < SPAN:
        FolderStore(to.parent).write(to.name, part)
        return True
    with published_file(to) as handle:
        while part:
            os.write(handle, part)
            answer, part = host.exchange("read", path=there, offset=os.lseek(handle, 0, os.SEEK_CUR), count=SPAN)
            if answer.get("gone"):
                break
    return True


def fetch_growing(host: Host, there: str, here: Path) -> None:
    """Files that only ever grow: their new ends."""
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
    """When it may appear here: tensors before their manifest, everything before the events that speak of it."""
    if key.startswith("events/"):
        return 2
    if key == "lease.json":
        return 3
    return 1 if key.endswith("manifest.json") or (key.startswith("checkpoints/") and key.count("/") == 1) else 0
