"""Find the files of a project that have changed since a run's code was packed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from headway.packaging.code import package
from headway.rundir.layout import CODE_LISTING, RunFolder

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job

MAX_NAMED = 3


def changed_files(plan: Plan, folder: RunFolder, job: Job) -> list[str]:
    """Return the files of the job's folder that were changed, added or removed since the plan's code was packed.

    Files that the program itself has written are left out. Empty if the run has no listing of its code.
    """
    record = folder.read_json(CODE_LISTING)
    if record is None or record.get("sha256") != plan.code.sha256:
        return []
    packed = package(job)
    if packed.sha256 == plan.code.sha256:
        return []
    written = (folder.read_json("workdir/node-0.json") or {}).get("files", {})
    then: dict[str, list[object]] = record["files"]
    now = dict(packed.files)
    root = Path(job.root)
    names = sorted((then.keys() | now.keys()) - set(written))
    return [name for name in names if not (name in then and name in now and _is_same(root / name, then[name]))]


def name_files(names: list[str]) -> str:
    """List the first few files, and the number of the others: `train.py, conf/a.yaml and 4 more`."""
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _is_same(path: Path, recorded: list[object]) -> bool:
    size, sha256 = recorded
    try:
        return path.stat().st_size == size and hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False
