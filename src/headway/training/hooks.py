"""The rank's excepthook: HeadwayErrors print no traceback and set the exit code; out-of-memory errors print a hint."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from headway.core.errors import HeadwayError
from headway.training import oom
from headway.training.control_channel import say

_told: list[Callable[[BaseException], object]] = []  # callbacks to call before the process exits


def install() -> None:
    before = sys.excepthook
    _told.clear()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for tell in _told:
            tell(error)
        if isinstance(error, HeadwayError):
            say(str(error))
            raise SystemExit(error.exit_code)  # the supervisor does not retry exit code 2 (bad input)
        before(kind, error, trace)
        hint = oom.hint(error)
        if hint:
            say(hint)

    sys.excepthook = hook


def tell(whom: Callable[[BaseException], object]) -> None:
    """Register a callback that receives the error that is about to end the process."""
    _told.append(whom)
