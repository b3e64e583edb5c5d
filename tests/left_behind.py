"""Processes that tests leave behind. All that a session starts inherit a variable by which they are found."""

from __future__ import annotations

import os
from pathlib import Path

SESSION = "TEST_SESSION"
# Python's own, which end with the process that they serve.
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "multiprocessing.semaphore_tracker")


def left_behind(session: str) -> list[str]:
    """Return process id and command line of all live processes of a session but this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            env, words = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
        except OSError:  # it has ended, or is another user's
            continue
        command = words.replace(b"\0", b" ").decode(errors="replace").strip()
        ours = f"{SESSION}={session}".encode() in env.split(b"\0") and folder.name != str(os.getpid())
        if ours and command and not any(helper in command for helper in _HELPERS):
            found.append(f"{folder.name}: {command[:200]}")
    return found
