"""What a tracker is told about the run: plain JSON, so that it can be handed to another process."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headway.home import home
from headway.planning.model import Plan
from headway.runfolder import INTENT, RunFolder
from headway.runtime.identity import Identity
from headway.storage import local_path
from headway.storage.base import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracked:
    """One attempt of one run, as trackers see it."""

    run: str
    id: str  # the same for all attempts of the run, and never another run's
    project: str
    url: str
    folder: str  # what is written here is mirrored to the run folder's files/
    attempt: int
    resume_step: int
    config: Mapping[str, Any]
    facts: Mapping[str, Any]  # image, command, code, plan: what the numbers come from
    pid: int  # of rank 0: whose memory and CPU a tracker may show


class Tracker(Protocol):
    """One tracker, open for one run. Any exception means: closed, to be opened again later."""

    where: str  # for people: an address or a folder

    def knows(self, name: str, step: int) -> bool:
        """Whether it has that value already, from an earlier attempt."""

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """All values of one step. Called once a step, steps rising."""

    def flush(self) -> None:
        """What was logged can be seen by others."""

    def close(self, *, finished: bool) -> None: ...


def tracked(store: Store, identity: Identity, resume_step: int) -> Tracked:
    folder = RunFolder(store)
    plan = _plan(folder)
    job = identity.job
    return Tracked(
        run=identity.name,
        id=f"{identity.name}-{_birth(folder, plan)}",
        project=job.name,
        url=store.url,
        folder=_files(store.url, identity.name),
        attempt=identity.attempt,
        resume_step=resume_step,
        config=dict(job.config),
        facts={**facts(plan), "ranks": identity.world.size},
        pid=os.getpid(),
    )


def facts(plan: Plan) -> dict[str, Any]:
    """Where a number comes from, to the byte. Secrets are not among it: a plan has none."""
    job = plan.job
    image = os.environ.get("HEADWAY_IMAGE") or (job.get("image") or {}).get("uri")
    program = [f"recipe {job['recipe']}"] if job.get("recipe") else [str(job.get("script")), *map(str, job["args"])]
    return {
        "image": image,
        "image_digest": image.partition("@")[2] or None if image else None,
        "command": program[0] if job.get("recipe") else shlex.join(program),
        "code_sha256": plan.code.sha256,
        "plan_sha256": plan.hash,
        "data": dict(plan.data),
        "seed": job.get("seed"),
        "target": plan.target,
        "headway": plan.headway,
    }


def _plan(folder: RunFolder) -> Plan:
    copy = os.environ.get("HEADWAY_PLAN")
    return Plan.from_json(Path(copy).read_bytes(), where=copy) if copy else folder.plan()


def _birth(folder: RunFolder, plan: Plan) -> str:
    """Tells runs apart that have had the same name: a tracker remembers the one that was removed here."""
    created = (folder.read_json(INTENT) or {}).get("created_at")
    return hashlib.sha256(f"{created}\0{plan.hash}".encode()).hexdigest()[:8]


def _files(url: str, run: str) -> str:
    """Under a supervisor the folder that it mirrors; by hand the run folder's own, or this machine's."""
    chosen = os.environ.get("HEADWAY_RUN_DIR")
    if chosen:
        return chosen
    here = local_path(url)
    return str(home() / "trackers" / run if here is None else here / "files")
