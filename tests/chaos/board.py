"""Where each rank is, for whoever wants to kill it there: one small shared file a rank, written without a system call.

Costs a rank about a microsecond a mark. Imports nothing heavy: it is the first thing a rank loads.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

MAIN, SAVER, HERE = 0, 1, 2  # the training thread, everything that writes behind its back, and the wish that came true
_WIDTH = 64
_SLOTS = 3
_WISH = "wish.json"
_NAME = re.compile(r"board-(\d+)-(\d+)$")


@dataclass(frozen=True, slots=True)
class Wish:
    """Where the driver would like to meet a rank: the moment takes a little longer there, so that it can be hit."""

    moment: str
    rank: int
    skip: int  # how often it is let pass
    linger_s: float

    def write(self, folder: Path) -> None:
        hidden = folder / f".{_WISH}"
        hidden.write_text(json.dumps([self.moment, self.rank, self.skip, self.linger_s]))
        hidden.rename(folder / _WISH)


class Board:
    """A rank's own side: it says what it is about to do."""

    def __init__(self, folder: Path, attempt: int, rank: int) -> None:
        self._moment, self._skip, self._linger_s = "", 0, 0.0
        if (folder / _WISH).exists():
            wish = Wish(*json.loads((folder / _WISH).read_text()))
            if wish.rank == rank:
                self._moment, self._skip, self._linger_s = wish.moment, wish.skip, wish.linger_s
        hidden = folder / f".board-{attempt}-{rank}"
        hidden.write_bytes(b" " * (_WIDTH * (_SLOTS + 1)))
        with hidden.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._put(_SLOTS, str(os.getpid()))
        hidden.rename(folder / f"board-{attempt}-{rank}")  # seen only when it is complete

    @classmethod
    def mine(cls) -> Board:
        env = os.environ
        return cls(Path(env["CHAOS_BOARDS"]), int(env["HEADWAY_ATTEMPT"]), int(env["RANK"]))

    def mark(self, where: str, slot: int = MAIN) -> None:
        self._put(slot, where)
        if where == self._moment:
            self._skip -= 1
            if self._skip < 0:
                self._moment = ""
                self._put(HERE, where)
                time.sleep(self._linger_s)

    def _put(self, slot: int, text: str) -> None:
        self._map[slot * _WIDTH : (slot + 1) * _WIDTH] = text.encode()[:_WIDTH].ljust(_WIDTH)


@dataclass(frozen=True, slots=True)
class Seen:
    """One rank as the driver sees it."""

    attempt: int
    rank: int
    pid: int
    main: str
    saver: str
    here: str  # the moment that was wished for, once it has come


def read(folder: Path, *, above: int) -> list[Seen]:
    """The ranks of the newest attempt, if that is above the given one."""
    found: dict[int, list[tuple[int, Path]]] = {}
    for entry in os.scandir(folder):
        match = _NAME.match(entry.name)
        if match and int(match[1]) > above:
            found.setdefault(int(match[1]), []).append((int(match[2]), Path(entry.path)))
    if not found:
        return []
    attempt = max(found)
    return [_seen(attempt, rank, path) for rank, path in sorted(found[attempt])]


def _seen(attempt: int, rank: int, path: Path) -> Seen:
    body = path.read_bytes()
    main, saver, here, pid = (body[n * _WIDTH : (n + 1) * _WIDTH].decode().strip() for n in range(_SLOTS + 1))
    return Seen(attempt, rank, int(pid), main, saver, here)
