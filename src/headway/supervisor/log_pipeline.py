"""The log pipeline: timestamp and redact output, spool it to local disk, upload it to the run folder in segments.

The disk is the buffer: memory use stays small however fast a rank prints, and nothing is lost while the store is down.
`ConsoleWriter` also copies the output to the supervisor's standard output, which containers and clouds collect.

The way of a line: a rank's pipe (`processes.Rank`), `TerminalLines` (carriage returns, escape sequences), `Spool`
(timestamp, redaction, local disk), `RecordWriter` in `record_writer.py` (segments in the run folder), and
`rundir/logs.py`, which `headway logs` reads with.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

from headway.core.errors import Conflict, StoreError
from headway.rundir.layout import segment_prefix
from headway.storage.base import ABSENT, Store
from headway.storage.redaction import Redactor
from headway.supervisor.terminal_lines import TerminalLines

# Standard output


_BACKLOG_BYTES = 8 << 20


class ConsoleWriter(threading.Thread):
    """Thread that writes lines to standard output in order, so that a slow reader stalls nothing.

    Lines beyond 8 MiB of backlog are dropped here and their bytes counted in the output; the run's logs have them all.
    """

    def __init__(self, fd: int = 1, *, ranks: bool = True, prefixed: bool = False) -> None:
        super().__init__(name="echo", daemon=True)
        self._fd, self._ranks, self._with_rank_prefix = fd, ranks, prefixed
        self._waiting: deque[bytes] = deque()
        self._size = self._dropped_bytes = 0
        self._condition = threading.Condition()
        self._closing = False

    def write_line(self, text: str) -> None:
        self._put(f"headway: {text}\n".encode("utf-8", "backslashreplace"))

    def write_output(self, rank: int, lines: bytes) -> None:
        if not self._ranks or not lines:
            return
        if self._with_rank_prefix:
            prefix = f"[rank {rank}] ".encode()
            lines = prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"
        self._put(lines)

    def close(self, timeout_s: float = 2.0) -> None:
        with self._condition:
            self._closing = True
            self._condition.notify()
        self.join(timeout_s)

    def run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._closing:
                    self._condition.wait()
                if not self._waiting:
                    return
                data = b"".join(self._waiting)
                self._waiting.clear()
                if self._dropped_bytes:
                    data += f"headway: {self._dropped_bytes} bytes were not printed here: see headway logs\n".encode()
                self._size = self._dropped_bytes = 0
            if not self._write(data):
                return

    def _put(self, data: bytes) -> None:
        with self._condition:
            if not self.is_alive() or self._size + len(data) > _BACKLOG_BYTES:
                self._dropped_bytes += len(data)
                return
            self._waiting.append(data)
            self._size += len(data)
            self._condition.notify()

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
BACKLOG_BYTES = 2 << 30  # the most that waits for a store that is down; output beyond it is dropped
LAST_LINES = 60
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01


def utc_timestamp() -> bytes:
    now = datetime.now(timezone.utc)
    return f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z".encode()


class Spool:
    """Append-only file with one writer's output in one attempt (`<folder>/a0001-r0.log`), uploaded in segments.

    The thread that reads the pipe calls `append`; the thread that talks to the store calls `upload`.
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
        self.path = folder / f"{segment_prefix(attempt, writer)[:-1]}.log"
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._segments = SegmentUploader(self.path, f"logs/{segment_prefix(attempt, writer)}", keep=keep)
        self._file = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._redact = redact or Redactor()
        self._backlog = backlog_bytes
        self._terminal = TerminalLines(hold_back=self._redact.longest)  # as much as could be half of a secret
        self._held = b""  # a line that may end with half of a secret
        self._dropped_bytes = 0

    def append(self, chunk: bytes) -> bytes:
        """Append a chunk of output; return the lines that are complete now, as a terminal shows them, redacted."""
        whole = self._held + self._terminal.feed(chunk)
        self._held = b""
        cut = self._redact.held_from(whole)
        whole, self._held = whole[:cut], whole[cut:]
        return self._append_lines(whole) if whole else b""

    def tick(self) -> bytes:
        """Append lines that are complete because time has passed; return them, redacted. Call about once a second."""
        whole = self._held + self._terminal.tick()
        self._held = b""
        return self._append_lines(whole) if whole else b""

    def finish(self) -> bytes:
        """Append the last line even without a newline, after the writer has exited; return it, redacted."""
        rest = self._held + self._terminal.finish()
        self._held = b""
        shown = self._append_lines(rest) if rest else b""
        self._append_dropped_note()
        return shown

    def live_lines(self) -> list[str]:
        """Return the progress bars on the screen, from top to bottom, redacted."""
        lines = (line.encode("utf-8", "replace") for line in self._terminal.live())
        return [self._redact(line).decode("utf-8", "replace") for line in lines]

    def write_line(self, text: str) -> bytes:
        return self.append(text.encode("utf-8", "backslashreplace") + b"\n")

    @property
    def pending(self) -> bool:
        return self._segments.pending

    def upload(self, store: Store) -> None:
        """Upload all complete lines so far. After a StoreError nothing is lost: call again."""
        self._segments.upload(store)

    def close(self) -> None:
        os.close(self._file)
        self._segments.close()

    def _append_lines(self, whole: bytes) -> bytes:
        whole = self._redact(whole)
        self.last_lines.extend(_last_lines(whole))
        if self._segments.backlog > self._backlog:
            self._dropped_bytes += len(whole)
            return whole
        self._append_dropped_note()
        prefix = utc_timestamp() + b" "
        if not self._append(prefix + whole[:-1].replace(b"\n", b"\n" + prefix) + b"\n"):
            self._dropped_bytes += len(whole)
        return whole

    def _append_dropped_note(self) -> None:
        if self._dropped_bytes:
            note = f"[headway: {self._dropped_bytes} bytes of output were dropped: the local log buffer was full]"
            if self._append(utc_timestamp() + b" " + note.encode() + b"\n"):
                self._dropped_bytes = 0

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


class SegmentUploader:
    """Uploader of an append-only log file as immutable numbered segments: exact slices, in order, each written once."""

    def __init__(self, path: Path, prefix: str, *, keep: bool = True, start: int = 0, number: int = 1) -> None:
        self.size = path.stat().st_size if path.exists() else 0  # bytes of complete lines, set by the only appender
        self._path, self._prefix, self._keep = path, prefix, keep
        self._sent, self._number = start, number
        self._segment_length = 0  # length of the segment being written: a retry keeps its number and its length
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
            self._segment_length = 0
            if not self._keep:
                self._punch_hole()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _next(self) -> bytes:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        if self._segment_length:
            return os.pread(self._file, self._segment_length, self._sent)
        body = os.pread(self._file, min(SEGMENT_BYTES, self.backlog), self._sent)
        whole = body.rfind(b"\n") + 1
        self._segment_length = whole or len(body)
        return body[: self._segment_length]

    def _punch_hole(self) -> None:
        """Free the disk blocks of uploaded bytes (punch a hole), where the file system supports it."""
        assert self._file is not None
        libc = ctypes.CDLL(None, use_errno=True)
        offset, length = ctypes.c_int64(0), ctypes.c_int64(self._sent)
        libc.fallocate(self._file, _PUNCH_HOLE_KEEP_SIZE, offset, length)


def upload_leftovers(folder: Path, store: Store, *, below: int, writers: Iterable[str]) -> list[str]:
    """Upload what killed supervisors of this node left in its spool folder; return the names of those files.

    Segments are exact slices, so the number of bytes already in the store is the offset to continue from.
    """
    own_files = {f"{segment_prefix(attempt, writer)[:-1]}.log" for attempt in range(1, below) for writer in writers}
    uploaded = []
    for path in sorted(folder.glob("a*-*.log")):
        if path.name not in own_files:
            continue
        prefix = f"logs/{path.stem}-"
        sent = [entry for entry in store.list(prefix) if entry.key.endswith(".log")]
        uploader = SegmentUploader(path, prefix, start=sum(entry.size for entry in sent), number=len(sent) + 1)
        if uploader.pending:
            uploader.upload(store)
            uploaded.append(path.name)
        uploader.close()
    return uploaded


def _last_lines(whole: bytes) -> list[str]:
    lines = whole[-LAST_LINES * 1024 :].rsplit(b"\n", LAST_LINES + 1)[-LAST_LINES - 1 : -1]
    return [line.decode("utf-8", "replace")[-1000:] for line in lines]
