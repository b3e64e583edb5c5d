"""What the hook installs inside supervisors and ranks: stores that fail one write, clocks that jump back."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway import storage as opening
from headway.core.errors import Denied, DiskFull, StoreError, Transient
from headway.storage.base import Store
from tests.servers.faults import FaultyStore

WORD = "injected"  # in every error of ours: by it we see whether the error was seen
KINDS: dict[str, Callable[[str], StoreError]] = {
    "transient": Transient,
    "full": DiskFull,
    "denied": Denied,
    "lost": Transient,  # the write happens, its answer does not come
}


class Counting(FaultyStore):
    """Counts the writes of the whole process, and lets one of them fail."""

    lock = threading.Lock()
    count = 0

    def __init__(self, store: Store, role: str, fault: Mapping[str, Any], notes: Path) -> None:
        super().__init__(store)
        self._role, self._fault, self._notes = role, fault, notes

    def write(self, key: str, body: bytes | bytearray | memoryview | Path, *, when: str | None = None) -> str:
        with Counting.lock:
            Counting.count += 1
            number = Counting.count
            with self._notes.open("a") as notes:
                notes.write(f"{self._role} {number} {key}\n")
        if not self._strikes(number):
            return self.store.write(key, body, when=when)
        kind = self._fault["kind"]
        if kind == "lost":
            self.store.write(key, body, when=when)
        raise KINDS[kind](f"{WORD}: write {number} of {self._role}, {key}: {kind}")

    def _strikes(self, number: int) -> bool:
        if (self._fault.get("role"), self._fault.get("number")) != (self._role, number):
            return False
        try:
            self._notes.with_suffix(".struck").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def install(env: Mapping[str, str]) -> None:
    if "CHAOS_CLOCK_BACK_S" in env:
        _set_clock_back(float(env["CHAOS_CLOCK_BACK_S"]))
    if "CHAOS_WRITES" in env:
        _wrap_stores(env)


def _wrap_stores(env: Mapping[str, str]) -> None:
    from headway import storage

    role = f"rank{env['RANK']}" if "HEADWAY_ATTEMPT" in env else "supervisor"
    fault = json.loads(env.get("CHAOS_FAULT", "{}"))
    real = opening.open_store

    def open_store(url: str, **options: Any) -> Store:
        return Counting(real(url, **options), role, fault, Path(env["CHAOS_WRITES"]))

    opening.open_store = open_store  # type: ignore[assignment]
    storage.open_store = open_store  # type: ignore[assignment]


def _set_clock_back(seconds: float) -> None:
    """Half a second after the process has begun, the time of day is another; the monotonic clock is not."""
    jump_at = time.monotonic() + 0.5
    wall, wall_ns = time.time, time.time_ns

    def back() -> float:
        return seconds if time.monotonic() > jump_at else 0.0

    time.time = lambda: wall() - back()
    time.time_ns = lambda: wall_ns() - int(back() * 1e9)
    os.environ["CHAOS_CLOCK"] = "set back"
