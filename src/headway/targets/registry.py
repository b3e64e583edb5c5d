"""The places that run plans, by name. One line each, imported on first use: none costs those who do not use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from headway.errors import BadInput, MissingExtra
from headway.spec.model import TargetEntry
from headway.spec.plain import from_plain

if TYPE_CHECKING:
    from headway.planning.model import Plan
    from headway.spec import Job
    from headway.targets.base import Target


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a kind of target lives ("module:Class"), and the pip extra it needs."""

    target: str
    options: str  # "module:Dataclass": what its entry in the job file may say
    extra: str | None
    summary: str

    def load_target(self) -> type[Any]:
        return _load(self.target, self.extra)

    def load_options(self) -> type[Any]:
        """A frozen dataclass whose fields are the keys that this kind's entry may have."""
        return _load(self.options, self.extra)


TARGETS: dict[str, Entry] = {
    "docker": Entry(
        "headway.targets.docker.target:DockerTarget",
        options="headway.targets.docker.options:Options",
        extra=None,
        summary="containers on this machine; nothing is billed",
    ),
    "kubernetes": Entry(
        "headway.targets.kubernetes.target:KubernetesTarget",
        options="headway.targets.kubernetes.options:Options",
        extra=None,
        summary="a cluster: Kubeflow's PyTorchJob or TrainJob, or a StatefulSet on any cluster",
    ),
    "local": Entry(
        "headway.targets.local:LocalTarget",
        options="headway.targets.local:Options",
        extra=None,
        summary="this machine; nothing is billed",
    ),
    "slurm": Entry(
        "headway.targets.slurm.target:SlurmTarget",
        options="headway.targets.slurm.options:Options",
        extra=None,
        summary="a Slurm cluster, from one of its login nodes",
    ),
    "ssh": Entry(
        "headway.targets.ssh.target:SshTarget",
        options="headway.targets.ssh.options:Options",
        extra=None,
        summary="a machine reached by ssh, yours or rented for the run",
    ),
    "vertex": Entry(
        "headway.targets.vertex.target:VertexTarget",
        options="headway.targets.vertex.options:Options",
        extra="gcp",
        summary="custom jobs on Vertex AI, billed by Google",
    ),
}


def entry(job: Job, name: str) -> TargetEntry:
    """What `--on name` means for this job: an entry of its own, or the kind of that name with no options."""
    own = job.targets.get(name)
    if own is not None:
        return own
    if name in TARGETS:
        return TargetEntry(kind=name)
    known = sorted({*job.targets, *TARGETS})
    raise _unknown(f"no target is called {name!r}", name, known)


def make(job: Job, name: str) -> Target:
    """The target that this job calls `name`."""
    found = entry(job, name)
    return build(found.kind, found.options)


def of_plan(plan: Plan) -> Target:
    """The target a plan was made for, from the plan alone."""
    return build(plan.kind, plan.options)


def build(kind: str, options: Mapping[str, Any]) -> Target:
    if kind not in TARGETS:
        raise _unknown(f"no kind of target is called {kind!r}", kind, sorted(TARGETS))
    home = TARGETS[kind]
    chosen = from_plain(options, home.load_options(), where=f"options of {kind}")
    return cast("Target", home.load_target()(chosen))


def _unknown(what: str, name: str, known: list[str]) -> BadInput:
    close = get_close_matches(name, known, n=1)
    return BadInput(what, fix=f"did you mean {close[0]!r}?" if close else f"one of: {', '.join(known)}")


def _load(home: str, extra: str | None) -> type[Any]:
    module, _, name = home.partition(":")
    try:
        return cast("type[Any]", getattr(import_module(module), name))
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").partition(".")[0] == "headway":
            raise  # our own bug, not something to install
        raise MissingExtra(extra, needed_for=f"{module.rpartition('.')[2]} as a target") from None
