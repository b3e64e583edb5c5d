"""Wait for a condition instead of a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(holds: Callable[[], Found], what: str | Callable[[], str] = "", within_s: float = 120.0) -> Found:
    """Ask until `holds` returns something true, and return it.

    The limit only ends a test that has failed; `what` then says what was waited for, or what happened instead.
    """
    limit, pause_s = time.monotonic() + within_s, 0.005
    while not (found := holds()):
        if time.monotonic() > limit:
            raise AssertionError(f"in vain for {within_s:.0f} s: {what() if callable(what) else what}")
        time.sleep(pause_s)
        pause_s = min(0.3, pause_s * 1.3)  # asking may cost more than waiting
    return found
