"""Headway's state folder. It holds only what can be made again (run index, packaged code), never a run's only copy."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """Return $HEADWAY_HOME, or `headway` in the user's XDG state folder. Does not create it."""
    chosen = os.environ.get("HEADWAY_HOME")
    if chosen:
        return Path(chosen).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "headway"
