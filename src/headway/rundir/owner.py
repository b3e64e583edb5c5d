"""Whose something is: an id of this user's Headway, made once in its home folder, and a name for people to read."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from headway.core.paths import home
from headway.rundir.submission import who

FILE = "owner"


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """What `headway gc` goes by: it removes nothing that carries another owner's id."""

    id: str  # 16 hexadecimal digits: fits every target's labels; empty where none could be kept
    name: str  # alice@host-7


def owner() -> Owner:
    """Us. Makes the id at the first call; where the home folder cannot be written there is none, and that is logged."""
    return Owner(id=known_id() or _made(home() / FILE), name=who())


def known_id() -> str:
    """Our id; empty where nothing was ever started from this home folder."""
    try:
        return (home() / FILE).read_text().strip()
    except (OSError, ValueError):
        return ""


def _made(path: Path) -> str:
    """Written whole under another name first. Of two processes at once, both take the id that was first."""
    temporary = path.with_name(f"{FILE}-{os.urandom(8).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(f"{os.urandom(8).hex()}\n")
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink(missing_ok=True)
        return known_id()
    except OSError as error:
        logging.getLogger("headway").warning(
            f"what this run makes cannot be marked as yours, so headway gc will not remove it: {path}: {error}"
        )
        return ""
