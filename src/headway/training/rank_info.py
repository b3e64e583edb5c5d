"""Facts about a rank: read from the supervisor's environment variables, or made up for a script started by hand."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from headway._version import __version__
from headway.core.errors import BadInput, Conflict, StoreError
from headway.core.plan import Code, Limits, Plan
from headway.rundir.layout import PLAN, RunFolder
from headway.spec import Job, dump, loads, undump
from headway.storage import make_private, open_store
from headway.storage.base import ABSENT, Store

GRACE_S = 30.0  # for scripts started by hand: nothing kills them after Ctrl-C, but users should not wait for ever


@dataclass(frozen=True, slots=True)
class RankTopology:
    """This rank's number, the world size and its local rank."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankInfo:
    """Identity and settings of one rank in one attempt of a run."""

    name: str
    job: Job
    world: RankTopology
    store: Store
    attempt: int  # 0 until the lease is taken, which assigns it
    grace_s: float = GRACE_S
    deadline_s: float | None = None  # seconds of the budget that were left when the rank started
    control_fd: int | None = None
    supervised: bool = False
    unfinished_runs: tuple[str, ...] = field(
        default=()
    )  # unfinished run folders of the same script, to mention in the log


def topology_from_env(env: Mapping[str, str]) -> RankTopology:
    if "RANK" not in env:
        return RankTopology()
    try:
        rank, size = int(env["RANK"]), int(env.get("WORLD_SIZE", "1"))
        return RankTopology(rank, size, int(env.get("LOCAL_RANK", rank)))
    except ValueError:
        raise BadInput(
            f"RANK={env['RANK']!r} and WORLD_SIZE={env.get('WORLD_SIZE')!r} are not numbers",
            fix="unset them, or start with `headway run` or torchrun",
        ) from None


def info_from_supervisor(env: Mapping[str, str]) -> RankInfo:
    """Read the facts about a supervised rank from the variables listed in docs/run-folder.md."""
    store = open_store(env["HEADWAY_RUN_URL"])
    path = env.get("HEADWAY_PLAN")
    plan = Plan.from_json(Path(path).read_bytes(), where=path) if path else RunFolder(store).plan()
    deadline, fd = env.get("HEADWAY_DEADLINE_S"), env.get("HEADWAY_CONTROL_FD")
    return RankInfo(
        name=env.get("HEADWAY_RUN") or RunFolder(store).name,
        job=undump(plan.job),
        world=topology_from_env(env),
        store=store,
        attempt=int(env["HEADWAY_ATTEMPT"]),
        grace_s=float(env.get("HEADWAY_GRACE_S", GRACE_S)),
        deadline_s=float(deadline) if deadline else None,
        control_fd=int(fd) if fd else None,
        supervised=True,
    )


def standalone_info(
    url: str | None, script: str, config: Mapping[str, object], seed: int, settings: Mapping[str, object] | None = None
) -> RankInfo:
    """Make up the facts for a script without a supervisor: in the folder at `url`, or in a new one under ./runs.

    `settings` are other keys of the job file, typed as in it.
    """
    name = _slug(Path(script).stem)
    job = Job(name=name, script=Path(script).name or None, config=dict(config), seed=seed)
    if settings:
        typed = loads(json.dumps({"name": name, "command": "-", **settings}), where="headway.start")
        job = replace(job, **{key: getattr(typed, key) for key in settings})
    if url:
        store = open_store(url)
        if not _claim(store, job):
            job = undump(RunFolder(store).plan().job)
        return RankInfo(
            name=RunFolder(store).name, job=job, world=topology_from_env(os.environ), store=store, attempt=0
        )
    unfinished = tuple(str(path) for path in _folders(name) if not _finished(path))[-1:]
    number = 1 + max((_number(path) for path in _folders(name)), default=0)
    while not _claim(store := open_store(f"runs/{name}-{number}"), job):
        number += 1
    return RankInfo(
        name=f"{name}-{number}",
        job=job,
        world=topology_from_env(os.environ),
        store=store,
        attempt=0,
        unfinished_runs=unfinished,
    )


def with_attempt(info: RankInfo, attempt: int) -> RankInfo:
    return replace(info, attempt=attempt)


def _claim(store: Store, job: Job) -> bool:
    """Write the folder's plan if it has none; return False if the folder is already taken."""
    plan = Plan(
        headway=__version__,
        job=dump(job),
        target="by-hand",
        kind="by-hand",
        options={},
        code=Code(sha256="", files=0, bytes=0, biggest=(), wheel="", wheel_sha256=""),
        data={},
        nodes=1,
        processes=topology_from_env(os.environ).size,
        limits=Limits(budget_s=None, max_wait_s=None, grace_s=GRACE_S, second="none: started by hand"),
        environment={},
        price={},
    )
    try:
        make_private(store.url)
        store.write(PLAN, plan.to_json().encode(), when=ABSENT)
    except Conflict:
        return False
    return True


def _folders(name: str) -> list[Path]:
    found = [path for path in Path("runs").glob(f"{name}-*") if _number(path)]
    return sorted(found, key=_number)


def _finished(folder: Path) -> bool:
    """Whether the run's `ended` event says so. A run whose events cannot be read counts as unfinished."""
    try:
        ended = RunFolder(open_store(str(folder))).ended()
    except (StoreError, ValueError):
        return False
    return ended is not None and ended.get("state") == "finished"


def _number(path: Path) -> int:
    tail = path.name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "script"


def script_name() -> str:
    main = sys.modules.get("__main__")
    return str(getattr(main, "__file__", None) or sys.argv[0] or "script")
