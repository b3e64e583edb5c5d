"""The supervisor's standard output, which containers and clouds collect. On a thread: a slow reader stalls nobody."""

from __future__ import annotations

import os
import threading
from collections import deque

_ROOM_BYTES = 8 << 20


class Echo(threading.Thread):
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
