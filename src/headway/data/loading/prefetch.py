"""Prefetching of batches on threads, and a pool of reusable buffers for them.

Reuse matters because a fresh 10 MB array costs more in page faults than filling it does. A buffer returns to the pool
when the last array or tensor in it is garbage-collected, and not before. For copies to a GPU, torch's pinned allocator
does the same, and knows when a copy is complete.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Prefetching never changes a batch: batches are pure functions of their key.


Key = tuple[int, int, int, int]  # epoch, step, part, parts


class Prefetcher:
    """Starts the batches expected next, predicted from the access pattern. `steps` is the length of an epoch."""

    def __init__(self, begin: Callable[[Key], Future[Any]], steps: int, depth: int) -> None:
        self._begin, self._steps, self._depth = begin, steps, depth
        self._pending: OrderedDict[Key, Future[Any]] = OrderedDict()
        self._next: dict[tuple[int, int], tuple[int, int]] = {}  # (part, parts) -> step increment and next part
        self._last: Key | None = None
        self._lock = threading.Lock()

    def get(self, key: Key) -> Any:
        with self._lock:
            self._learn(key)
            future = self._pending.pop(key, None) or self._begin(key)
            self._start_next(key)
        return future.result()

    def _learn(self, key: Key) -> None:
        last, self._last = self._last, key
        if last is not None and last[0] == key[0] and last[3] == key[3] and last < key:
            self._next[last[2:]] = (key[1] - last[1], key[2])

    def _start_next(self, key: Key) -> None:
        expected: list[Key] = []
        epoch, step, part, parts = key
        for _ in range(self._depth):
            more, part = self._next.get((part, parts), (1, part))
            step += more
            if step >= self._steps:
                epoch, step = epoch + 1, step % self._steps
            expected.append((epoch, step, part, parts))
        for stale in [key for key in self._pending if key not in expected]:
            self._pending.pop(stale).cancel()  # the reader jumped: cancel batches of the old position
        for ahead in expected:
            if ahead not in self._pending:
                self._pending[ahead] = self._begin(ahead)


def pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=threads, thread_name_prefix="headway-data")


_MAX_FREE = 8  # more than are ever in use at once; further buffers are returned to the system


class BufferPool:
    """Pool of byte buffers, lent as arrays of any shape."""

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = {}
        self._lock = threading.Lock()
        self.allocated = 0  # buffers allocated so far, for tests

    def acquire(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return an uninitialized array. Its memory is reused once nothing refers to it."""
        size = max(1, prod(shape))
        with self._lock:
            free = self._free.setdefault(size, [])
            memory = free.pop() if free else None
        if memory is None:
            memory = mmap.mmap(-1, size)
            self.allocated += 1
        # Not a view of one long-lived array: slices would then keep that array alive instead of this one.
        array = np.frombuffer(memory, np.uint8, prod(shape))
        weakref.finalize(array, self._return, size, memory)
        return array.reshape(shape)

    def _return(self, size: int, memory: mmap.mmap) -> None:
        """Return memory to the pool.

        A finalizer may run in a thread that holds the lock: then the memory is freed instead.
        """
        if self._lock.acquire(blocking=False):
            try:
                free = self._free.setdefault(size, [])
                if len(free) < _MAX_FREE:
                    free.append(memory)
            finally:
                self._lock.release()


def pinned(shape: tuple[int, ...]) -> tuple[NDArray[np.uint8], Any]:
    """Return an array in page-locked memory and the torch tensor that owns it."""
    import torch

    tensor = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
    return tensor.numpy(), tensor
