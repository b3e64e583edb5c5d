"""Options of an ssh target in the job file, and the paths of a run on its hosts."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from headway.core.errors import BadInput
from headway.core.plan import UPLOADED, uploaded_data_url
from headway.core.types import MachineProvider, RentalCommands
from headway.plugins import PROVIDERS
from headway.plugins.registry import BrokenPlugin, is_path, unknown_path
from headway.rundir.status import run_url
from headway.spec.model import ReferenceString, Seconds
from headway.storage import local_path

if TYPE_CHECKING:
    from headway.core.plan import Plan


# Paths of a run on its hosts, and the plan with these paths. Pure.
#
# Hosts write outputs in a store or under `share` directly. Outputs in a folder of this machine are written to the
# host's disk and mirrored back: the run folder on the host is then a working copy.


KIND = "ssh"
SCRIPT, PLAN_FILE, NEEDED, LABEL = "start.sh", "plan.json", "headway.txt", "label.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Paths of one run on a host. `dir` is Headway's folder there; `~` in it is resolved at launch."""

    url: str  # the run folder's URL on this machine
    run: str
    dir: str
    mirrored: bool
    key: str  # identifies the outputs folder among others on the same host

    @property
    def folder(self) -> str:
        """The run folder's path on the host."""
        return f"{self.dir}/runs/{self.key}/{self.run}" if self.mirrored else self.url

    def place(self, node: int) -> str:
        """Return the run's folder on that node's own disk."""
        return f"{self.dir}/places/{self.key}/{self.run}/node-{node}"


def layout(options: Options, outputs: str, run: str, *, dir: str | None = None) -> Layout:
    mirrored = is_mirrored(options, outputs)
    outputs = run_url(outputs, run).rpartition("/")[
        0
    ]  # normalised, because the key below is computed from the URL elsewhere too
    # A path names different folders on different machines; a bucket or a share is the same on all.
    named = f"{socket.gethostname()}:{outputs}" if mirrored else outputs
    key = hashlib.sha256(named.encode()).hexdigest()[:8]
    return Layout(url=run_url(outputs, run), run=run, dir=dir or options.dir, mirrored=mirrored, key=key)


def is_mirrored(options: Options, outputs: str) -> bool:
    """Return whether the outputs are in a folder that the hosts cannot see."""
    return is_local(options, outputs)


def is_local(options: Options, source: str) -> bool:
    """Return whether a source is on this machine only: neither in a store nor under the share."""
    if source.startswith(("builtin:", "http:", "https:")):
        return False
    path = local_path(source)
    if path is None:
        return False
    return options.share is None or not path.is_relative_to(os.path.abspath(options.share))


def sources_to_upload(plan_job: Mapping[str, Any], options: Options) -> list[str]:
    """Return the data, and the weights to start from, that are on this machine only."""
    data = plan_job.get("data", {})
    sources = {str(source["source"]) for part in ("train", "val", "test") for source in data.get(part, ())}
    sources |= {str(plan_job["init_from"])} if plan_job.get("init_from") else set()
    return sorted(source for source in sources if is_local(options, source))


def project_files_to_upload(plan: Plan, where: Layout) -> dict[str, str]:
    """Map each path that a project names under `data` to its copy beside the runs, if the host cannot see them."""
    if not where.mirrored:
        return {}
    outputs = str(plan.job["outputs"])
    copies = {str(each): uploaded_data_url(plan, str(each), outputs) for each in _named_data(plan)}
    return {source: copy for source, copy in copies.items() if copy}


def _named_data(plan: Plan) -> list[str]:
    return list((plan.job.get("named_data") or {}).values())


def plan_for_host(plan: Plan, where: Layout, uploaded: Mapping[str, str]) -> Plan:
    """Return the plan with the host's paths. `uploaded` maps data of this machine to its path on the host."""
    job = dict(plan.job)
    data = dict(job.get("data", {}))
    for part in ("train", "val", "test"):
        data[part] = [
            {**source, "source": uploaded.get(str(source["source"]), source["source"])} for source in data.get(part, ())
        ]
    job["data"] = data
    if job.get("init_from"):
        job["init_from"] = uploaded.get(str(job["init_from"]), job["init_from"])
    if job.get("named_data"):
        job["named_data"] = {name: uploaded.get(str(source), source) for name, source in job["named_data"].items()}
    if where.mirrored:
        job["outputs"] = str(Path(where.folder).parent)
    # A file that is on the host is read there, not fetched from the outputs.
    pinned = {uploaded.get(source, source): known.removeprefix(UPLOADED) if source in uploaded else known
              for source, known in plan.data.items()}  # fmt: skip
    return replace(plan, job=job, data=pinned)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    host: ReferenceString | None = None  # user@name:port, or a Host of ~/.ssh/config
    hosts: tuple[str, ...] = ()  # several machines, in node order
    # a provider of machines from a plug-in, which then gives up, down, list, self_down and price
    provider: str | None = field(default=None, metadata={"key": "optional"})
    machine: Mapping[str, Any] = field(default_factory=dict, metadata={"key": "optional"})  # what to rent from it
    up: str | None = None  # a command that rents the machine and prints host=… [hostkey=…] id=… [user=…] [port=…]
    down: str | None = None  # a command that releases the machine; {run} and {id} are filled in, as in the others
    list: str | None = None  # a command that prints the run's machines, one per line; no output: they are gone
    self_down: str | None = None  # a command to run on the machine itself if nobody releases it after the run
    price: Annotated[float, ">= 0"] | None = None  # USD per hour of one machine
    share: str | None = (
        None  # a folder that this machine and the hosts have under the same path: outputs and data there stay
    )
    dir: str = "~/.headway"  # Headway's folder on the host
    python: str | None = None  # interpreter on the host, with its packages; by default an environment is created
    engine: Literal["docker", "podman"] | None = None  # run in a container on the host
    bootstrap: bool = False  # set up a bare Debian or Ubuntu: driver, Docker, NVIDIA's toolkit, scratch disk
    scratch: str | None = None  # a device that bootstrap formats, if it is empty, and mounts: /dev/nvme1n1
    config: ReferenceString | None = None  # an ssh configuration file to use instead of ~/.ssh/config
    identity: ReferenceString | None = None  # file of a private key
    args: tuple[str, ...] = ()  # more arguments for ssh: -J, jump-host
    ready: Seconds = 600.0  # how long to wait until a rented machine accepts connections
    gone: Seconds = 300.0  # how long a machine may be listed after `down` before it counts as left behind
    linger: Seconds = 3600.0  # how long self_down waits until this machine has fetched the last outputs
    connections: Annotated[int, ">= 1"] = 4  # parallel connections, for data and checkpoints
    shm: Annotated[int, "size"] = 8_000_000_000  # size of the shared memory of a container on the host


def provider_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the commands of the provider that the target names, as options; nothing if it names none.

    Raises:
        BadInput: If no plug-in has that name, or the target has commands of its own besides.
        BrokenPlugin: If it is not a `MachineProvider`.
    """
    name = options.get("provider")
    if not name:
        return {}
    given = [key for key in ("up", "down", "list", "self_down") if options.get(key)]
    if given:
        raise BadInput(f"the provider {name} has its own {', '.join(given)}", where="targets", fix=f"remove {given[0]}")
    if name not in PROVIDERS:
        if is_path(name):
            raise unknown_path(name)
        fix = PROVIDERS.suggest(name) if len(PROVIDERS) else "pip install one, or write up, list and down yourself"
        raise BadInput(f"no provider of machines is called {name!r}", where="targets", fix=fix)
    made = PROVIDERS[name].load()()
    commands = made.commands(options.get("machine") or {}) if isinstance(made, MachineProvider) else None
    if not isinstance(commands, RentalCommands):
        fix = "derive it from headway.core.types.MachineProvider and return RentalCommands (docs/plugins.md)"
        raise BrokenPlugin(f"the provider {name} of {PROVIDERS.distribution(name)} is none", fix=fix)
    return asdict(commands)
