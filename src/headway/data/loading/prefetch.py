"""Memory for batches, used again: a fresh 10 MB array costs more in page faults than filling it does.

A buffer comes back by itself when the last array or tensor that lies in it is gone, and not before. For copies to a
GPU, torch's own pinned allocator does the same, and knows when a copy is done.
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

# The next batches, made on threads while this one is used. Being ahead changes nothing: batches are pure functions.


Key = tuple[int, int, int, int]  # epoch, step, part, parts


class Prefetcher:
    """Learns from what was asked which batch comes next, and begins it. `steps` is the length of an epoch."""

    def __init__(self, begin: Callable[[Key], Future[Any]], steps: int, depth: int) -> None:
        self._begin, self._steps, self._depth = begin, steps, depth
        self._under_way: OrderedDict[Key, Future[Any]] = OrderedDict()
        self._next: dict[tuple[int, int], tuple[int, int]] = {}  # (part, parts) -> steps on, and which part, comes next
        self._last: Key | None = None
        self._lock = threading.Lock()

    def get(self, key: Key) -> Any:
        with self._lock:
            self._learn(key)
            future = self._under_way.pop(key, None) or self._begin(key)
            self._go_on(key)
        return future.result()

    def _learn(self, key: Key) -> None:
        last, self._last = self._last, key
        if last is not None and last[0] == key[0] and last[3] == key[3] and last < key:
            self._next[last[2:]] = (key[1] - last[1], key[2])

    def _go_on(self, key: Key) -> None:
        wanted: list[Key] = []
        epoch, step, part, parts = key
        for _ in range(self._depth):
            more, part = self._next.get((part, parts), (1, part))
            step += more
            if step >= self._steps:
                epoch, step = epoch + 1, step % self._steps
            wanted.append((epoch, step, part, parts))
        for stale in [key for key in self._under_way if key not in wanted]:
            self._under_way.pop(stale).cancel()  # somebody jumped: what was begun for the old place is let go
        for ahead in wanted:
            if ahead not in self._under_way:
                self._under_way[ahead] = self._begin(ahead)


def pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=threads, thread_name_prefix="headway-data")


_KEPT = 8  # more than are ever under way at once: what comes back beyond it is given to the system


class Buffers:
    """Byte arrays of whatever shape is asked for, lent."""

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = {}
        self._lock = threading.Lock()
        self.made = 0  # how many were ever allocated: for tests, and for curiosity

    def lend(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Not cleared. Its memory is lent to someone else once nothing refers to it any more."""
        size = max(1, prod(shape))
        with self._lock:
            free = self._free.setdefault(size, [])
            memory = free.pop() if free else None
        if memory is None:
            memory = mmap.mmap(-1, size)
            self.made += 1
        # Not a view of one long-lived array: numpy would then hand out slices that do not keep this one alive.
        lent = np.frombuffer(memory, np.uint8, prod(shape))
        weakref.finalize(lent, self._back, size, memory)
        return lent.reshape(shape)

    def _back(self, size: int, memory: mmap.mmap) -> None:
        """Called wherever the last reference dies, perhaps while this thread holds the lock: then let it go."""
        if self._lock.acquire(blocking=False):
            try:
                free = self._free.setdefault(size, [])
                if len(free) < _KEPT:
                    free.append(memory)
            finally:
                self._lock.release()


def pinned(shape: tuple[int, ...]) -> tuple[NDArray[np.uint8], Any]:
    """An array in page-locked memory, and the torch tensor that owns it."""
    import torch

    tensor = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
    return tensor.numpy(), tensor
