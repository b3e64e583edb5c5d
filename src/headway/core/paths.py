"""Where Headway keeps what it can make again: the index of runs, packaged code. Never a run's only copy of anything."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """$HEADWAY_HOME, or the user's state folder. Not created here."""
    chosen = os.environ.get("HEADWAY_HOME")
    if chosen:
        return Path(chosen).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "headway"
