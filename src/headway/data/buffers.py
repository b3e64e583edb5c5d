"""Memory for batches, used again: a fresh 10 MB array costs more in page faults than filling it does.

A buffer comes back by itself when the last array or tensor that lies in it is gone, and not before. For copies to a
GPU, torch's own pinned allocator does the same, and knows when a copy is done.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
