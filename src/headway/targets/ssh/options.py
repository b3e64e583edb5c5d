"""What an ssh target's entry in the job file may say."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from headway.rundir.status import run_url
from headway.spec.model import ReferenceString, Seconds
from headway.storage import local_path

if TYPE_CHECKING:
    from headway.core.plan import Plan


# Where a run's things lie on the machines it runs on, and its plan as those machines must read it. Pure.
#
# Outputs in a store, or under `share`, are written by the hosts themselves. Outputs in a folder of this machine are
# kept on the host's disk meanwhile and mirrored back: then the run folder there is a working copy.


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
    return is_local(options, outputs)


def is_local(options: Options, source: str) -> bool:
    """Whether something lies on this machine alone: neither in a store nor under the share."""
    if source.startswith(("builtin:", "http:", "https:")):
        return False
    path = local_path(source)
    if path is None:
        return False
    return options.share is None or not path.is_relative_to(os.path.abspath(options.share))


def sources_to_upload(plan_job: Mapping[str, Any], options: Options) -> list[str]:
    """Data, and weights to start from, that lie on this machine alone."""
    data = plan_job.get("data", {})
    sources = {str(source["source"]) for part in ("train", "val", "test") for source in data.get(part, ())}
    sources |= {str(plan_job["init_from"])} if plan_job.get("init_from") else set()
    return sorted(source for source in sources if is_local(options, source))


def plan_for_host(plan: Plan, where: Layout, uploaded: Mapping[str, str]) -> Plan:
    """The plan with every path as it is on the host. `uploaded` says where data of this machine lies there."""
    job = dict(plan.job)
    data = dict(job.get("data", {}))
    for part in ("train", "val", "test"):
        data[part] = [
            {**source, "source": uploaded.get(str(source["source"]), source["source"])} for source in data.get(part, ())
        ]
    job["data"] = data
    if job.get("init_from"):
        job["init_from"] = uploaded.get(str(job["init_from"]), job["init_from"])
    if where.mirrored:
        job["outputs"] = str(Path(where.folder).parent)
    pinned = {uploaded.get(source, source): known for source, known in plan.data.items()}
    return replace(plan, job=job, data=pinned)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    host: ReferenceString | None = None  # user@name:port, or a Host of ~/.ssh/config
    hosts: tuple[str, ...] = ()  # several machines, in the order of nodes
    up: str | None = None  # a command that rents the machine and prints host=… [hostkey=…] id=… [user=…] [port=…]
    down: str | None = None  # gives it back; {run} and {id} are filled in, here and in the others
    list: str | None = None  # prints the run's machines, one a line, and ends with 0; nothing: they are gone
    self_down: str | None = None  # run on the machine itself when its run has ended and nobody has taken it down
    price: Annotated[float, ">= 0"] | None = None  # dollars an hour for one machine
    share: str | None = (
        None  # a folder that this machine and the hosts have under the same path: outputs and data there stay
    )
    dir: str = "~/.headway"  # where Headway keeps things on the host
    python: str | None = None  # the interpreter there that trains, with its packages; by default an environment is made
    engine: Literal["docker", "podman"] | None = None  # run it in a container there
    bootstrap: bool = False  # ready a bare Debian or Ubuntu: driver, Docker, NVIDIA's toolkit, scratch disk
    scratch: str | None = None  # a device for bootstrap to format, if it is empty, and mount: /dev/nvme1n1
    config: ReferenceString | None = None  # another file than ~/.ssh/config
    identity: ReferenceString | None = None  # a private key's file
    args: tuple[str, ...] = ()  # more words for ssh: -J, jump-host
    ready: Seconds = 600.0  # how long a rented machine may take until it answers
    gone: Seconds = 300.0  # how long a machine may stay in `list` after `down`, before it counts as left behind
    linger: Seconds = 3600.0  # how long self_down waits for the last outputs to be fetched, if they go to this machine
    connections: Annotated[int, ">= 1"] = 4  # at once, for data and checkpoints
    shm: Annotated[int, "size"] = 8_000_000_000  # shared memory of a container there
