"""The log pipeline: timestamp and redact output, spool it to local disk, upload it to the run folder in segments.

The disk is the buffer: memory use stays small however fast a rank prints, and nothing is lost while the store is down.
`StdoutPump` also copies the output to the supervisor's standard output, which containers and clouds collect.
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

# Standard output


_ROOM_BYTES = 8 << 20


class StdoutPump(threading.Thread):
    """Thread that writes lines to standard output in order, so that a slow reader stalls nothing.

    Lines beyond 8 MiB of backlog are dropped here and their bytes counted in the output; the run's logs have them all.
    """

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
                    data += f"headway: {self._missed} bytes were not printed here: see headway logs\n".encode()
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
            return False  # the reader has closed it
        return True


# Spool and segments

SEGMENT_BYTES = 4 << 20
LONGEST_LINE = 64 << 10  # longer lines are split: a reader must not need more memory than this
BACKLOG_BYTES = 2 << 30  # the most that waits for a store that is down; output beyond it is dropped
LAST_LINES = 20
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_LONE_RETURN = re.compile(rb"\r(?!\n)")

Redact = Callable[[bytes], bytes]


def now_stamp() -> bytes:
    moment = datetime.now(timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z".encode()


class Redactor:
    """Replaces secret values in output by `***`, also in their JSON-escaped form and line by line."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms: set[bytes] = set()
        for value in values:
            lines = value.splitlines() if "\n" in value else []
            for form in (value, json.dumps(value)[1:-1], *(line.strip() for line in lines)):
                if len(form) >= 4:  # shorter ones would match ordinary words
                    forms.add(form.encode())
        self._forms = sorted(forms, key=len, reverse=True)
        self.longest = max(map(len, forms), default=0)

    def __call__(self, text: bytes) -> bytes:
        for form in self._forms:
            if form in text:
                text = text.replace(form, b"***")
        return text


class Spool:
    """Append-only file with one writer's output in one attempt (`<folder>/a0001-r0.log`), uploaded in segments.

    The thread that reads the pipe calls `feed`; the thread that talks to the store calls `upload`.
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
        """Append a chunk of output; return the complete lines in it, redacted."""
        data = self._rest + chunk
        if b"\r" in data:
            data = _end_overwritten_lines(data)
        cut = data.rfind(b"\n") + 1
        whole, self._rest = data[:cut], data[cut:]
        if len(self._rest) > LONGEST_LINE:
            # Hold back as many bytes as could be the first half of a secret.
            keep = len(self._rest) - max(1, self._redact.longest)
            whole, self._rest = whole + self._rest[:keep] + b"\n", self._rest[keep:]
        return self._take(whole) if whole else b""

    def finish(self) -> bytes:
        """Append the last line even without a newline, after the writer has exited; return it, redacted."""
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
        """Upload all complete lines so far. After a StoreError nothing is lost: call again."""
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
            note = f"[headway: {self._left_out} bytes of output were dropped: the local log buffer was full]"
            if self._append(now_stamp() + b" " + note.encode() + b"\n"):
                self._left_out = 0

    def _append(self, data: bytes) -> bool:
        """Append all of `data` or, if the disk is full, nothing; return which. A full disk must not stop training."""
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
    """Uploader of an append-only log file as immutable numbered segments: exact slices, in order, each written once."""

    def __init__(self, path: Path, prefix: str, *, keep: bool = True, start: int = 0, number: int = 1) -> None:
        self.size = path.stat().st_size if path.exists() else 0  # bytes of complete lines, set by the only appender
        self._path, self._prefix, self._keep = path, prefix, keep
        self._sent, self._number = start, number
        self._sealed = 0  # length of the segment being written: a retry keeps its number and its length
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
                # Our own write whose response was lost, or a second writer, which the lease should have prevented.
                if store.read(key) != body:
                    raise StoreError(f"{key} was written by another process", where=store.url) from None
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
        """Free the disk blocks of uploaded bytes (punch a hole), where the file system supports it."""
        assert self._file is not None
        libc = ctypes.CDLL(None, use_errno=True)
        offset, length = ctypes.c_int64(0), ctypes.c_int64(self._sent)
        libc.fallocate(self._file, _PUNCH_HOLE_KEEP_SIZE, offset, length)


def rescue(folder: Path, store: Store, *, below: int, writers: Iterable[str]) -> list[str]:
    """Upload what killed supervisors of this node left in its spool folder; return the names of those files.

    Segments are exact slices, so the number of bytes already in the store is the offset to continue from.
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
    """End a line at a lone carriage return too, or a progress bar would appear only once it is complete."""
    held = data[-1:] == b"\r"  # the newline may be in the next chunk
    body = _LONE_RETURN.sub(b"\r\n", data[:-1] if held else data)
    return body + b"\r" if held else body


def _last_lines(whole: bytes) -> list[str]:
    lines = whole[-LAST_LINES * 1024 :].rsplit(b"\n", LAST_LINES + 1)[-LAST_LINES - 1 : -1]
    return [line.decode("utf-8", "replace").rstrip("\r")[-1000:] for line in lines]
