"""What all tests of the training loop share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def _runs_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close runs that a test has started in this process, instead of all of them when the process exits.

    By then pytest captures nothing any more: their last lines of progress would reach the terminal.
    """
    if find_spec("torch") is None:
        yield
        return
    with ExitStack() as closing:
        monkeypatch.setattr("headway.training.run.atexit", SimpleNamespace(register=closing.callback))
        yield
