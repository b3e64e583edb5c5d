"""The next batches, made on threads while this one is used. Being ahead changes nothing: batches are pure functions."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

Key = tuple[int, int, int, int]  # epoch, step, part, parts


class Ahead:
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
