"""How a rank dies of an error: Headway's own without a traceback and with its exit code, lack of memory with a hint."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from headway.core.errors import HeadwayError
from headway.training import oom
from headway.training.control_channel import say

_told: list[Callable[[BaseException], object]] = []  # who wants to know, before the process is gone


def install() -> None:
    before = sys.excepthook
    _told.clear()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for tell in _told:
            tell(error)
        if isinstance(error, HeadwayError):
            say(str(error))
            raise SystemExit(error.exit_code)  # 2, bad input, is not tried again
        before(kind, error, trace)
        hint = oom.hint(error)
        if hint:
            say(hint)

    sys.excepthook = hook


def tell(whom: Callable[[BaseException], object]) -> None:
    """Have it called with the error that the process is about to die of."""
    _told.append(whom)
