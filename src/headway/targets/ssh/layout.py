"""Where a run's things lie on the machines it runs on, and its plan as those machines must read it. Pure.

Outputs in a store, or under `share`, are written by the hosts themselves. Outputs in a folder of this machine are kept
on the host's disk meanwhile and mirrored back: then the run folder there is a working copy.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.storage import local_path
from headway.targets.here import run_url

if TYPE_CHECKING:
    from headway.planning.model import Plan
    from headway.targets.ssh.options import Options

KIND = "ssh"
SCRIPT, PLAN_FILE, NEEDED, LABEL = "start.sh", "plan.json", "headway.txt", "label.json"
LOCAL_FOLDERS = ("ssh", "local", "docker", "slurm")  # of a run folder: what targets keep on one machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """`dir` is Headway's folder there; with a `~` that has not been resolved in plans that nobody has launched."""

    url: str  # the run folder, as this machine names it
    run: str
    dir: str
    mirrored: bool
    key: str  # tells this outputs folder from others of the same host

    @property
    def folder(self) -> str:
        """The run folder, as the host names it."""
        return f"{self.dir}/runs/{self.key}/{self.run}" if self.mirrored else self.url

    def place(self, node: int) -> str:
        """What the run keeps on that node's own disk."""
        return f"{self.dir}/places/{self.key}/{self.run}/node-{node}"


def layout(options: Options, outputs: str, run: str, *, dir: str | None = None) -> Layout:
    mirrored = is_mirrored(options, outputs)
    outputs = run_url(outputs, run).rpartition("/")[
        0
    ]  # in one spelling: the key below must be found again from the URL
    # A path means something on one machine only; a bucket or a share means the same on all.
    named = f"{socket.gethostname()}:{outputs}" if mirrored else outputs
    key = hashlib.sha256(named.encode()).hexdigest()[:8]
    return Layout(url=run_url(outputs, run), run=run, dir=dir or options.dir, mirrored=mirrored, key=key)


def is_mirrored(options: Options, outputs: str) -> bool:
    """Whether the outputs are in a folder that the hosts do not see."""
    return is_here(options, outputs)


def is_here(options: Options, source: str) -> bool:
    """Whether something lies on this machine alone: neither in a store nor under the share."""
    if source.startswith(("builtin:", "http:", "https:")):
        return False
    path = local_path(source)
    if path is None:
        return False
    return options.share is None or not path.is_relative_to(os.path.abspath(options.share))


def to_bring(plan_job: Mapping[str, Any], options: Options) -> list[str]:
    """Data, and weights to start from, that lie on this machine alone."""
    data = plan_job.get("data", {})
    sources = {str(source["source"]) for part in ("train", "val", "test") for source in data.get(part, ())}
    sources |= {str(plan_job["init_from"])} if plan_job.get("init_from") else set()
    return sorted(source for source in sources if is_here(options, source))


def as_read_there(plan: Plan, where: Layout, moved: Mapping[str, str]) -> Plan:
    """The plan with every path as it is on the host. `moved` says where data of this machine lies there."""
    job = dict(plan.job)
    data = dict(job.get("data", {}))
    for part in ("train", "val", "test"):
        data[part] = [
            {**source, "source": moved.get(str(source["source"]), source["source"])} for source in data.get(part, ())
        ]
    job["data"] = data
    if job.get("init_from"):
        job["init_from"] = moved.get(str(job["init_from"]), job["init_from"])
    if where.mirrored:
        job["outputs"] = str(Path(where.folder).parent)
    pinned = {moved.get(source, source): known for source, known in plan.data.items()}
    return replace(plan, job=job, data=pinned)
