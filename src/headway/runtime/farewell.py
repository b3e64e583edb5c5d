"""What a rank says when it dies of an error: Headway's own without a traceback, lack of memory with what to change."""

from __future__ import annotations

import sys
from types import TracebackType

from headway.errors import HeadwayError
from headway.runtime.control import say


def install() -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, HeadwayError):
            say(str(error))
            return
        before(kind, error, trace)
        hint = memory_hint(error)
        if hint:
            say(hint)

    sys.excepthook = hook


def memory_hint(error: BaseException) -> str:
    """What to type when memory ran out; empty for any other error."""
    text = str(error)
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
        return (
            "memory ran out. fix: --set config.accumulate=2 cuts each batch in two and changes nothing else "
            "(4, 8, … if that is not enough); or lower config.batch, or use config.precision=bf16"
        )
    return ""
