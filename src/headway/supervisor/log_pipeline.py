"""A stream of output on its way to the run folder: stamped, redacted, first to local disk, then in segments.

The disk is the buffer: memory stays small however fast a rank prints, and a store that is down loses nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path

from headway.core.errors import Conflict, StoreError
from headway.rundir.layout import stem
from headway.storage.base import ABSENT, Store

# The supervisor's standard output, which containers and clouds collect. On a thread: a slow reader stalls nobody.


_ROOM_BYTES = 8 << 20


class StdoutPump(threading.Thread):
    """Shows lines in order. Whoever reads too slowly misses some and is told how much; the run's logs have it all."""

    def __init__(self, fd: int = 1, *, ranks: bool = True, prefixed: bool = False) -> None:
        super().__init__(name="echo", daemon=True)
        self._fd, self._ranks, self._prefixed = fd, ranks, prefixed
        self._waiting: deque[bytes] = deque()
        self._size = self._missed = 0
        self._state = threading.Condition()
        self._closing = False

    def say(self, text: str) -> None:
        self._put(f"headway: {text}\n".encode("utf-8", "backslashreplace"))

    def show(self, rank: int, lines: bytes) -> None:
        if not self._ranks or not lines:
            return
        if self._prefixed:
            prefix = f"[rank {rank}] ".encode()
            lines = prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"
        self._put(lines)

    def close(self, patience_s: float = 2.0) -> None:
        with self._state:
            self._closing = True
            self._state.notify()
        self.join(patience_s)

    def run(self) -> None:
        while True:
            with self._state:
                while not self._waiting and not self._closing:
                    self._state.wait()
                if not self._waiting:
                    return
                data = b"".join(self._waiting)
                self._waiting.clear()
                if self._missed:
                    data += f"headway: {self._missed} bytes were not shown here: see the run's logs\n".encode()
                self._size = self._missed = 0
            if not self._write(data):
                return

    def _put(self, data: bytes) -> None:
        with self._state:
            if not self.is_alive() or self._size + len(data) > _ROOM_BYTES:
                self._missed += len(data)
                return
            self._waiting.append(data)
            self._size += len(data)
            self._state.notify()

    def _write(self, data: bytes) -> bool:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            return False  # nobody reads any more
        return True


SEGMENT_BYTES = 4 << 20
LONGEST_LINE = 64 << 10  # a longer one is broken: a reader must not need more memory than this
BACKLOG_BYTES = 2 << 30  # what may wait for a store that is down before output is left out
LAST_LINES = 20
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_LONE_RETURN = re.compile(rb"\r(?!\n)")

Redact = Callable[[bytes], bytes]


def now_stamp() -> bytes:
    moment = datetime.now(timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z".encode()


class Redactor:
    """Takes secret values out of anything that is printed, also as they stand in JSON and line by line."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms: set[bytes] = set()
        for value in values:
            lines = value.splitlines() if "\n" in value else []
            for form in (value, json.dumps(value)[1:-1], *(line.strip() for line in lines)):
                if len(form) >= 4:  # shorter ones would black out ordinary words
                    forms.add(form.encode())
        self._forms = sorted(forms, key=len, reverse=True)
        self.longest = max(map(len, forms), default=0)

    def __call__(self, text: bytes) -> bytes:
        for form in self._forms:
            if form in text:
                text = text.replace(form, b"***")
        return text


class Spool:
    """One writer's stream in one attempt: `<folder>/a0001-r0.log`, append-only, and the segments cut from it.

    `feed` is called by the thread that reads the pipe, `upload` by the one that talks to the store.
    """

    def __init__(
        self,
        folder: Path,
        attempt: int,
        writer: str,
        *,
        redact: Redactor | None = None,
        backlog_bytes: int = BACKLOG_BYTES,
        keep: bool = True,
    ) -> None:
        self.path = folder / f"{stem(attempt, writer)[:-1]}.log"
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._segments = SegmentCutter(self.path, f"logs/{stem(attempt, writer)}", keep=keep)
        self._file = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._redact = redact or Redactor()
        self._backlog = backlog_bytes
        self._rest = b""
        self._left_out = 0

    def feed(self, chunk: bytes) -> bytes:
        """Take what came out of the pipe; returns the whole lines in it, as they may be shown."""
        data = self._rest + chunk
        if b"\r" in data:
            data = _end_overwritten_lines(data)
        cut = data.rfind(b"\n") + 1
        whole, self._rest = data[:cut], data[cut:]
        if len(self._rest) > LONGEST_LINE:
            # Held back is what could be the first half of a secret.
            keep = len(self._rest) - max(1, self._redact.longest)
            whole, self._rest = whole + self._rest[:keep] + b"\n", self._rest[keep:]
        return self._take(whole) if whole else b""

    def finish(self) -> bytes:
        """The writer is gone: its last line counts, newline or not."""
        rest, self._rest = self._rest, b""
        shown = self._take(rest + b"\n") if rest else b""
        self._note_what_was_left_out()
        return shown

    def say(self, text: str) -> bytes:
        return self.feed(text.encode("utf-8", "backslashreplace") + b"\n")

    @property
    def pending(self) -> bool:
        return self._segments.pending

    def upload(self, store: Store) -> None:
        """All whole lines so far are in the store when this returns. On a StoreError nothing is lost: call again."""
        self._segments.upload(store)

    def close(self) -> None:
        os.close(self._file)
        self._segments.close()

    def _take(self, whole: bytes) -> bytes:
        whole = self._redact(whole)
        self.last_lines.extend(_last_lines(whole))
        if self._segments.backlog > self._backlog:
            self._left_out += len(whole)
            return whole
        self._note_what_was_left_out()
        prefix = now_stamp() + b" "
        if not self._append(prefix + whole[:-1].replace(b"\n", b"\n" + prefix) + b"\n"):
            self._left_out += len(whole)
        return whole

    def _note_what_was_left_out(self) -> None:
        if self._left_out:
            note = f"[headway: {self._left_out} bytes of output are missing here: the spool was full]"
            if self._append(now_stamp() + b" " + note.encode() + b"\n"):
                self._left_out = 0

    def _append(self, data: bytes) -> bool:
        """Whole or not at all. A full disk must not stop the training that fills it."""
        start, view = self._segments.size, memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            os.ftruncate(self._file, start)
            return False
        self._segments.size = start + len(data)
        return True


class SegmentCutter:
    """Immutable numbered segments cut from an append-only file of lines: exact slices, in order, each written once."""

    def __init__(self, path: Path, prefix: str, *, keep: bool = True, start: int = 0, number: int = 1) -> None:
        self.size = path.stat().st_size if path.exists() else 0  # whole lines in the file, set by its one appender
        self._path, self._prefix, self._keep = path, prefix, keep
        self._sent, self._number = start, number
        self._sealed = 0  # a segment whose write has failed keeps its number and its length
        self._file: int | None = None

    @property
    def backlog(self) -> int:
        return self.size - self._sent

    @property
    def pending(self) -> bool:
        return self.backlog > 0

    def upload(self, store: Store) -> None:
        while self.backlog > 0:
            body = self._next()
            key = f"{self._prefix}{self._number:07d}.log"
            try:
                store.write(key, body, when=ABSENT)
            except Conflict:
                # Our own write whose answer was lost, or a second writer, which the lease should have made impossible.
                if store.read(key) != body:
                    raise StoreError(f"{key} was written by somebody else", where=store.url) from None
            self._sent += len(body)
            self._number += 1
            self._sealed = 0
            if not self._keep:
                self._give_back()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _next(self) -> bytes:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        if self._sealed:
            return os.pread(self._file, self._sealed, self._sent)
        body = os.pread(self._file, min(SEGMENT_BYTES, self.backlog), self._sent)
        whole = body.rfind(b"\n") + 1
        self._sealed = whole or len(body)
        return body[: self._sealed]

    def _give_back(self) -> None:
        """Return the disk under what was sent. Where the file system cannot, the file merely stays as long as it is."""
        assert self._file is not None
        libc = ctypes.CDLL(None, use_errno=True)
        offset, length = ctypes.c_int64(0), ctypes.c_int64(self._sent)
        libc.fallocate(self._file, _PUNCH_HOLE_KEEP_SIZE, offset, length)


def rescue(folder: Path, store: Store, *, below: int, writers: Iterable[str]) -> list[str]:
    """Send what killed supervisors of this node left in its spool folder; returns the names of those files.

    Segments are exact slices, so the bytes already in the store say where to go on.
    """
    ours = {f"{stem(attempt, writer)[:-1]}.log" for attempt in range(1, below) for writer in writers}
    rescued = []
    for path in sorted(folder.glob("a*-*.log")):
        if path.name not in ours:
            continue
        prefix = f"logs/{path.stem}-"
        sent = [entry for entry in store.list(prefix) if entry.key.endswith(".log")]
        cutter = SegmentCutter(path, prefix, start=sum(entry.size for entry in sent), number=len(sent) + 1)
        if cutter.pending:
            cutter.upload(store)
            rescued.append(path.name)
        cutter.close()
    return rescued


def _end_overwritten_lines(data: bytes) -> bytes:
    """A progress bar's carriage return ends a line too, or it would be seen only when the bar is full."""
    held = data[-1:] == b"\r"  # its newline may be in the next chunk
    body = _LONE_RETURN.sub(b"\r\n", data[:-1] if held else data)
    return body + b"\r" if held else body


def _last_lines(whole: bytes) -> list[str]:
    lines = whole[-LAST_LINES * 1024 :].rsplit(b"\n", LAST_LINES + 1)[-LAST_LINES - 1 : -1]
    return [line.decode("utf-8", "replace").rstrip("\r")[-1000:] for line in lines]
