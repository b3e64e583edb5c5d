"""What the targets on this very machine share: where a run keeps its files here, what its folder says of its end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import HeadwayError, Problem
from headway.home import home
from headway.runfolder import RunFolder
from headway.runs import evidence
from headway.storage import join, local_path, open_store
from headway.targets.base import Handle

if TYPE_CHECKING:
    from headway.spec import Job

GRACE_S = 30.0  # where the plan cannot be read
FAREWELL_S = 10.0  # beyond the grace period, for a supervisor whose last words meet a slow disk
LEAVING_S = 3.0  # for what is left of a run that has said how it ended


def run_url(outputs: str, run: str) -> str:
    """The one spelling of a run folder's place: it is a label, and labels are compared."""
    folder = local_path(join(outputs, run))
    return join(outputs, run) if folder is None else str(folder)


def folder_of(handle: Handle) -> RunFolder:
    return RunFolder(open_store(handle.url))


def place_of(url: str, kind: str) -> Path:
    """Where a run keeps its files on this machine: in its folder, or in our state folder for one in a bucket."""
    folder = local_path(url)
    if folder is not None:
        return folder / kind
    outputs, _, run = url.rpartition("/")
    return home() / kind / hashlib.sha256(outputs.encode()).hexdigest()[:8] / run


def unwritable(outputs: str) -> list[Problem]:
    folder = local_path(outputs)
    if folder is None:
        return []  # a bucket says no at launch, before anything is started: asking here would need credentials
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return []
    what = f"{there} is not writable" if there.is_dir() else f"{there} is a file"
    return [Problem(what=what, where="outputs", fix="name a folder of yours under `outputs`")]


def said_farewell(handle: Handle) -> bool:
    try:
        return evidence(folder_of(handle)).farewell is not None
    except HeadwayError:  # no folder, or no way to it: what runs here must be stoppable all the same
        return False


def grace_s(handle: Handle) -> float:
    try:
        return folder_of(handle).plan().limits.grace_s
    except HeadwayError:
        return GRACE_S


def about_key_files(job: Job) -> Iterator[str]:
    """A key is valid wherever it is copied to, and for years; what a machine is given by its cloud is not."""
    for name, secret in job.secrets.items():
        if secret.as_ == "file" and "CREDENTIALS" in name:
            yield f"secrets.{name}: a key file works; a machine of that cloud has an identity of its own and needs none"
