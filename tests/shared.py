"""Make a folder once per session, for the tests of all xdist workers."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder `name` of this session; the first to ask makes it, the others wait.

    Tests of several workers read it at the same time: one that writes into it takes a copy.
    """
    own = factory.getbasetemp()
    session = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder, made = session / "shared" / name, session / "shared" / f"{name}.made"
    folder.parent.mkdir(exist_ok=True)
    with (session / "shared" / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make(folder)
            made.touch()
    return folder
