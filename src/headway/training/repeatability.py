"""Check that data gives the same batches when it is read again, which an exact resume depends on.

A resumed run creates its data anew and reads the current epoch again. Data that keeps a state between readings (a
random generator of its own, a counter of epochs) then gives other batches. The check reads the first batch a second
time, in a forked process whose changes are lost, and compares.
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.training.context import log_line

TIMEOUT_S = 120.0  # for the second reading; without a result nothing is said
_WHOLE_BYTES = 1 << 20  # of larger arrays, the first and the last half of this are hashed


class RepeatCheck:
    """Reads the first batch again, once per source, and logs if it differs."""

    def __init__(self, name: str) -> None:
        self._name, self._started = name, False
        self.done = threading.Event()

    def start(self, digest: int, read: Callable[[], Any]) -> None:
        """Fork a process that calls `read` and compares the digest of its batch."""
        if self._started or not hasattr(os, "fork"):
            return
        self._started = True
        receive, send = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: loader workers do the same
            pid = os.fork()
        if pid == 0:
            _compare(send, digest, read)
        os.close(send)
        threading.Thread(target=self._await, args=(pid, receive), name="headway-repeat", daemon=True).start()

    def _await(self, pid: int, receive: int) -> None:
        ready, _, _ = select.select([receive], [], [], TIMEOUT_S)
        answer = os.read(receive, 1) if ready else b""
        os.close(receive)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if answer == b"0":
            log_line(
                f"{self._name} gives another first batch when it is read again, so a resumed run will train on other "
                "data; fix: draw its random numbers from the default generators, which are seeded for every batch, or "
                "use headway.runtime.Loader"
            )
        self.done.set()


def _compare(send: int, digest: int, read: Callable[[], Any]) -> None:
    """The forked process: read, compare, answer, exit without any clean-up of the parent's objects."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        torch.set_num_threads(1)
        os.write(send, b"1" if batch_digest(read()) == digest else b"0")
    finally:
        os._exit(0)


def batch_digest(batch: Any) -> int:
    """Return a number of 48 bits, exact in a float, that differs between different batches."""
    digest = hashlib.blake2b(digest_size=6)
    _update(digest, batch)
    return int.from_bytes(digest.digest(), "big") or 1


def _update(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        _update_bytes(digest, flat.numpy())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.dtype}{value.shape}".encode())
        _update_bytes(digest, np.ascontiguousarray(value).reshape(-1).view(np.uint8))
    elif isinstance(value, Mapping):
        for name, each in value.items():
            digest.update(f"{name}:".encode())
            _update(digest, each)
    elif isinstance(value, list | tuple):
        digest.update(f"{len(value)}[".encode())
        for each in value:
            _update(digest, each)
    elif isinstance(value, str | int | float | bool | bytes | None):
        digest.update(repr(value).encode())
    else:
        digest.update(type(value).__name__.encode())


def _update_bytes(digest: Any, body: Any) -> None:
    half = _WHOLE_BYTES // 2
    if len(body) <= _WHOLE_BYTES:
        digest.update(memoryview(body))
    else:
        digest.update(memoryview(body[:half]))
        digest.update(memoryview(body[-half:]))
