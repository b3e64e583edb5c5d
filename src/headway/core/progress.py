"""How far something that takes a while has come: told from within, shown by whoever listens. Costs nothing unheard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Report = Callable[[str, int, int], None]  # what is being done, how much of it, of how much

_LISTENER: ContextVar[Report | None] = ContextVar("listener", default=None)


@contextmanager
def with_listener(report: Report) -> Iterator[None]:
    """What is told meanwhile, in this thread, goes to `report`."""
    before = _LISTENER.set(report)
    try:
        yield
    finally:
        _LISTENER.reset(before)


def tell(what: str, done: int, total: int) -> None:
    report = _LISTENER.get()
    if report is not None:
        report(what, done, total)


def counted(things: Iterable[T], what: str, total: int) -> Iterator[T]:
    """The same things, and each is told when it is done with."""
    for number, thing in enumerate(things):
        tell(what, number, total)
        yield thing
