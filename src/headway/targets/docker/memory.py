"""Secrets on their way into containers: files in this machine's memory, in a folder of ours, gone with the run."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import BadInput, TargetError
from headway.secrets import parse
from headway.targets.docker import credentials

if TYPE_CHECKING:
    from headway.planning.model import Plan

ROOT = Path("/dev/shm")
BROUGHT = ("env", "file")  # kinds of reference that mean something on this machine only


def folder_of(url: str) -> Path:
    """Where a run's secrets lie. By the run's URL, so that it is found again without any record."""
    outputs, _, run = url.rpartition("/")
    return ROOT / f"headway-{os.getuid()}" / f"{hashlib.sha256(outputs.encode()).hexdigest()[:8]}-{run}"


def brought(plan: Plan) -> dict[str, str]:
    """The job's secrets that the client must bring: variable and reference. A cloud's are fetched in the container."""
    listed = {name: str(secret["ref"]) for name, secret in plan.job.get("secrets", {}).items()}
    return {name: reference for name, reference in listed.items() if parse(reference).kind in BROUGHT}


def lay_ready(plan: Plan, url: str, resolve: Callable[[str], str]) -> None:
    """Write them: a folder for each node, which its supervisor empties, and one for each cloud that has files."""
    values = {name: resolve(reference) for name, reference in brought(plan).items()}
    files: dict[str, Mapping[str, bytes]] = {}
    for name, cloud in credentials.used_by(plan.job).items():
        variables, files[name] = credentials.held(cloud, os.environ)
        values = {**variables, **values}
    clear(url)
    folder = _make(folder_of(url))
    for node in range(plan.nodes):
        _fill(folder / f"node-{node}", {variable: value.encode() for variable, value in values.items()})
    for name, content in files.items():
        _fill(folder / name, content)


def clear(url: str) -> None:
    shutil.rmtree(folder_of(url), ignore_errors=True)


def _make(folder: Path) -> Path:
    _require_memory(ROOT)
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    found = folder.parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        # Everybody may write into /dev/shm: somebody else may have made it first, to read along.
        raise TargetError(f"{folder.parent} is not ours alone", fix=f"ls -ld {folder.parent}, and remove it")
    folder.mkdir(mode=0o700)
    return folder


def _fill(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(mode=0o700)
    for name, content in files.items():
        with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)


def _require_memory(root: Path) -> None:
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        mounts = []
    if not any(mount[1] == str(root) and mount[2] in ("tmpfs", "ramfs") for mount in mounts):
        fix = "mount -t tmpfs tmpfs /dev/shm; or a secret of gcp-sm:// or aws-sm://, which never touches this machine"
        raise BadInput(f"{root} is not in memory here, and a secret must not be written to a disk", fix=fix)
