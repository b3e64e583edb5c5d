"""Choose where a project runs on this machine: in place, in its own folder, or in a copy beside the run.

In place, relative paths work and tracebacks name the user's files. One live run per folder: another one, and a resume
after the code has changed or the run has continued elsewhere, run in a copy of the planned code that links to the
data of the project's folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core import platform
from headway.core.globs import matches_any
from headway.packaging.selection import ALWAYS_IGNORED
from headway.rundir.layout import CODE_LISTING, RunFolder
from headway.storage import is_same_folder, local_path, open_store

if TYPE_CHECKING:
    from headway.core.plan import Plan

# Files that a program overwrites. A link to one would let two runs write the same file.
_WRITTEN = ("*.pt", "*.pth", "*.ckpt", "*.safetensors", "*.h5", "*.keras", "*.bin", "*.pkl", "*.log", "*.npz", "*.tmp")
_OUTPUT_FOLDERS = ("checkpoints", "outputs", "output", "wandb", "mlruns", "lightning_logs", "logs", "runs")
CODE_VARIABLE, URL_VARIABLE = "HEADWAY_CODE_DIR", "HEADWAY_RUN_URL"


@contextmanager
def folder_lock(project: str) -> Iterator[None]:
    """Let one start at a time choose whether a project's folder is free."""
    locks = platform.state_dir() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    handle = os.open(locks / hashlib.sha256(project.encode()).hexdigest()[:16], os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def why_a_copy(plan: Plan, url: str, live: list[dict[str, str]]) -> str:
    """Return why a plan does not run in its project's folder; "" if it does. `live` are the labels of live runs."""
    project = plan.project
    other = next((label for label in live if _uses(label, project) and not is_same_folder(_url(label), url)), None)
    if other is not None:
        return f"{other.get('HEADWAY_RUN', 'another run')} runs in {project}"
    if not os.path.isdir(project):
        return f"{project} is gone"
    folder = RunFolder(open_store(url))
    written = (folder.read_json("workdir/node-0.json") or {}).get("files", {})  # by the program itself
    changed = _changed_file(Path(project), folder, written)
    if changed:
        return f"{changed} in {project} has changed since it was planned"
    outdated = _outdated_file(Path(project), written)
    return f"{outdated} in {project} is older than the one that this run has saved" if outdated else ""


def _outdated_file(project: Path, written: Mapping[str, Any]) -> str:
    """Return a file of the program's of which the run has saved a newer version, in a copy or on another machine.

    A resume must neither continue from it nor overwrite it.
    """
    for name, saved in sorted(written.items()):
        path = project / name
        if not path.is_file() or path.stat().st_mtime_ns >= int(saved.get("modified_ns", 0)):
            continue
        if hashlib.sha256(path.read_bytes()).hexdigest() != saved.get("sha256"):
            return str(name)
    return ""


def _changed_file(project: Path, folder: RunFolder, written: Mapping[str, Any]) -> str:
    """Return a file of the planned code that the project's folder no longer has as it was; "" if there is none."""
    listing = folder.read_json(CODE_LISTING) or {}
    for name, (size, sha256) in sorted(listing.get("files", {}).items()):
        path = project / name
        if name in written:
            continue
        if not path.is_file() or path.stat().st_size != size:
            return str(name)
        if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            return str(name)
    return ""


def _uses(label: dict[str, str], project: str) -> bool:
    return label.get(CODE_VARIABLE) == project


def _url(label: dict[str, str]) -> str:
    return label.get(URL_VARIABLE, "")


def link_data(plan: Plan, copy: Path) -> int:
    """Link the project's files that are not part of its code into a copy of it; return their number.

    Files that a program overwrites (weights, logs) and folders of outputs are left out, so that two runs never write
    the same file.
    """
    project, outputs = Path(plan.project), local_path(str(plan.job["outputs"]))
    count = 0
    for folder, names, files in os.walk(project):
        here = Path(folder)
        names[:] = [name for name in names if not _is_left_out(here / name, project, outputs)]
        for name in files:
            relative = (here / name).relative_to(project)
            target = copy / relative
            if matches_any(name, (*ALWAYS_IGNORED, *_WRITTEN)) or target.exists() or target.is_symlink():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(here / name)
            count += 1
    return count


def _is_left_out(folder: Path, project: Path, outputs: Path | None) -> bool:
    if folder == outputs or (folder / "pyvenv.cfg").exists() or matches_any(folder.name, ALWAYS_IGNORED):
        return True
    return folder.parent == project and folder.name in _OUTPUT_FOLDERS
