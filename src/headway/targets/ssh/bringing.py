"""Data of this machine, brought to a host once: kept there under its fingerprint, sent side by side, the rate shown."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.errors import BadInput
from headway.targets.ssh.host import Host
from headway.targets.ssh.mirror import send_file, side_by_side

WHOLE = ".complete"
TOLD_S = 5.0  # between words on how far it is
_CHUNK = 4 << 20
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """Files of one source. Its name is its content's."""

    source: str
    files: tuple[tuple[str, int], ...]  # relative name ("" for a single file) and bytes

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)


def parcel(source: str) -> Parcel:
    path = Path(source)
    if path.is_file():
        return Parcel(source=source, files=(("", path.stat().st_size),))
    if not path.is_dir():
        raise BadInput(f"no such data: {source}", fix="mend the path in the job file")
    files = [
        (Path(folder, name).relative_to(path).as_posix(), Path(folder, name).stat().st_size)
        for folder, _, names in os.walk(path, followlinks=True)
        for name in names
    ]
    return Parcel(source=source, files=tuple(sorted(files)))


def fingerprint(parcel: Parcel) -> str:
    """A manifest vouches for what it lists; anything else is read."""
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
    """Where the source lies there, after it has been sent if need be."""
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


def _send(host: Host, what: Parcel, there: str, say: Say) -> None:
    """A cut connection costs the file it was in: what arrived whole is not sent again."""
    root = Path(what.source)
    names = [(name or root.name, root / name if name else root, size) for name, size in what.files]
    have = host.ask("sizes", paths=[f"{there}/{name}" for name, _, _ in names])["sizes"]
    todo = [(name, path) for (name, path, size), found in zip(names, have, strict=True) if found != size]
    total = sum(path.stat().st_size for _, path in todo)
    meter = _Meter(f"data: {what.source} to {host}", total, say)
    side_by_side(host, lambda each, item: send_file(each, item[1], f"{there}/{item[0]}", meter.add), todo)
    meter.end()


class _Meter:
    """How much has gone over, and how fast."""

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
