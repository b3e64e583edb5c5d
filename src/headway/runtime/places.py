"""The folders a supervisor uses on its machine. What it makes for itself is removed at its end, whatever that was."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway import processes

_PREFIX = "headway-worker-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Folders of this node."""

    work: Path  # private to this supervisor
    spool: Path
    files: Path  # $HEADWAY_RUN_DIR
    resume: Path  # $HEADWAY_RESUME_DIR
    code: Path


def make_places(env: Mapping[str, str]) -> Places:
    """Where the target chose a place for the spool, everything big lies beside it; else in a temporary folder."""
    parent = Path(env.get("HEADWAY_WORK_DIR") or tempfile.gettempdir())
    _remove_those_of_the_dead(parent)
    work = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_here()}-{_name(os.getpid())}-", dir=parent))
    spool = Path(env.get("HEADWAY_SPOOL") or work / "spool").absolute()
    beside = spool.parent
    spool.mkdir(parents=True, exist_ok=True)
    return Places(
        work=work,
        spool=spool,
        files=Path(env.get("HEADWAY_RUN_DIR") or beside / "files").absolute(),
        resume=beside / "resume",
        code=Path(env.get("HEADWAY_CODE_DIR") or Path.cwd()).absolute(),
    )


def remove_places(places: Places, *, files: bool) -> None:
    """Private folders go; what the script wrote goes only once it is safe in the run folder."""
    if files:
        for folder in (places.files, places.resume):
            shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(places.work, ignore_errors=True)


def _remove_those_of_the_dead(parent: Path) -> None:
    """Whoever killed a supervisor with everything around it has left its folder, and secrets may lie in it."""
    for folder in parent.glob(f"{_PREFIX}{_here()}-*"):
        pid, _, since = folder.name.removeprefix(f"{_PREFIX}{_here()}-").rpartition("-")[0].partition("-")
        if pid.isdigit() and not processes.alive(int(pid), since):
            shutil.rmtree(folder, ignore_errors=True)


def _here() -> str:
    """Pids mean something only within one boot and one pid namespace."""
    return hashlib.sha256(processes.here().encode()).hexdigest()[:8]


def _name(pid: int) -> str:
    return f"{pid}-{processes.started(pid)}"
