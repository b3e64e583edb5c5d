"""How a rank dies of an error: Headway's own without a traceback and with its exit code, lack of memory with a hint."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from headway.errors import HeadwayError
from headway.runtime.control import say

_told: list[Callable[[], object]] = []  # who wants to know, before the process is gone


def install() -> None:
    before = sys.excepthook
    _told.clear()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for tell in _told:
            tell()
        if isinstance(error, HeadwayError):
            say(str(error))
            raise SystemExit(error.exit_code)  # 2, bad input, is not tried again
        before(kind, error, trace)
        hint = memory_hint(error)
        if hint:
            say(hint)

    sys.excepthook = hook


def tell(whom: Callable[[], object]) -> None:
    """Have it called when the process is about to die of an error."""
    _told.append(whom)


def memory_hint(error: BaseException) -> str:
    """What to type when memory ran out; empty for any other error."""
    text = str(error)
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
        return (
            "memory ran out. fix: --set config.accumulate=2 cuts each batch in two and changes nothing else "
            "(4, 8, … if that is not enough); or lower config.batch, or use config.precision=bf16"
        )
    return ""
