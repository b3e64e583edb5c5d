"""The recipes and targets a job file may name, with the types of their settings. Loaded one by one, on use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from headway.errors import MissingExtra

Loader = Callable[[], "type[Any]"]  # gives a frozen dataclass


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


def _load(home: str, extra: str | None) -> type[Any]:
    module, _, name = home.partition(":")
    try:
        return cast("type[Any]", getattr(import_module(module), name))
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").partition(".")[0] == "headway":
            raise  # our own bug, not something to install
        raise MissingExtra(extra, needed_for=f"{module.rpartition('.')[2]} as a target") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalog:
    recipes: Mapping[str, Loader] = field(default_factory=dict)  # name -> its config
    targets: Mapping[str, Loader] = field(default_factory=dict)  # kind -> its options
    data: Mapping[str, str] = field(default_factory=dict)  # recipe -> the source it uses where a job names none


def shipped() -> Catalog:
    """What this Headway has."""
    from headway.recipes.registry import RECIPES

    return Catalog(
        recipes={name: recipe.load_config for name, recipe in RECIPES.items()},
        targets={kind: entry.load_options for kind, entry in TARGETS.items()},
        data={name: recipe.data_default for name, recipe in RECIPES.items() if recipe.data_default},
    )
