"""Progress reporting by a context variable: long work calls `report_progress`, a caller may listen.

Free without a listener.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Report = Callable[[str, int, int], None]  # what is being done, units done, units in total

_LISTENER: ContextVar[Report | None] = ContextVar("listener", default=None)


@contextmanager
def with_listener(report: Report) -> Iterator[None]:
    """Send the progress that is reported inside the block, in this thread, to `report`."""
    before = _LISTENER.set(report)
    try:
        yield
    finally:
        _LISTENER.reset(before)


def report_progress(what: str, done: int, total: int) -> None:
    report = _LISTENER.get()
    if report is not None:
        report(what, done, total)


def with_progress(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Yield the same items, reporting progress for each."""
    for number, item in enumerate(items):
        report_progress(what, number, total)
        yield item
