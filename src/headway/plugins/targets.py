"""The registry of targets, with what must be known of each without importing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from headway.core.errors import HeadwayError, MissingExtra
from headway.plugins.registry import Registry, article, object_at

if TYPE_CHECKING:
    from headway.core.types import Recorded


@dataclass(frozen=True, slots=True)
class TargetPlugin:
    """A target in the registry.

    Attributes:
        target: The class, as "module:Class".
        options: The frozen dataclass of its options in the job file, as "module:Dataclass".
        extra: The pip extra it needs; None if it needs none.
        summary: One line, to choose by.
        on_this_machine: Whether runs use this machine: its GPUs, and a plan need not list its requests.
        own_python: Whether runs use a Python environment of this machine, to which a user adds packages with pip.
        list_price_factor: Factor on Google's list prices by which it bills; None if it bills nothing by itself.
        configured: Function that reads further options from this machine's configuration, as "module:function".
        has_pods: Whether a run's nodes are pods of Kubernetes.
        scheduler_env: Whether variables of Slurm, Kubeflow or Vertex AI tell each node its place in the run.
        shared_workdir: Whether all nodes share one working folder: `no`, `yes`, or `ready-image` if the job names an
            image or a Dockerfile of its own.
        recorded: (): what this machine has recorded as rented for runs, as `headway.core.types.Recorded` values; empty
            if the target rents nothing.

    Example:
        >>> from headway.plugins import TARGETS
        >>> TARGETS["local"].load_target().__name__
        'LocalTarget'
    """

    target: str
    options: str  # "module:Dataclass": the options of its entry in the job file
    extra: str | None
    summary: str
    on_this_machine: bool = False
    own_python: bool = False
    list_price_factor: float | None = None
    has_pods: bool = False
    scheduler_env: bool = False
    shared_workdir: Literal["no", "yes", "ready-image"] = "no"
    recorded: str = ""
    configured: str = ""

    def load_target(self) -> type[Any]:
        """Import the target's class.

        Returns:
            The class, a `headway.core.types.Target`.

        Raises:
            MissingExtra: If packages that it needs are not installed.
        """
        return _load(self.target, self.extra)

    def load_options(self) -> type[Any]:
        """Import the frozen dataclass whose fields are the keys that this kind's entry may have.

        Returns:
            The dataclass.

        Raises:
            MissingExtra: If packages that it needs are not installed.
        """
        return _load(self.options, self.extra)

    def local_options(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read the options that a job file leaves to this machine's configuration, such as a kubeconfig's namespace.

        Args:
            options: The options of the job file.

        Returns:
            Further options. Empty if the configuration has none.
        """
        return dict(_load(self.configured, self.extra)(options)) if self.configured else {}

    def load_recorded(self) -> list[Recorded]:
        """List what this machine has recorded as rented by this kind of target. Imports nothing if it rents nothing.

        Returns:
            The records.
        """
        if not self.recorded:
            return []
        found: list[Recorded] = object_at(self.recorded)()
        return found


RECORDED_FACTS: Final = ("scheduler_env", "shared_workdir", "own_python", "on_this_machine")  # of a target, in a plan


def _target(name: str, path: str, load: Callable[[], Any]) -> TargetPlugin:
    """Make the entry of a plug-in from its class, which has the same facts as class variables."""
    from headway.core.types import Target

    found = load()
    if not (isinstance(found, type) and issubclass(found, Target)):
        raise TypeError(f"it must be a class derived from headway.core.types.Target, not {article(found)}")
    if not is_dataclass(found.options_class):
        raise TypeError(f"{found.__name__}.options_class must be a dataclass")
    return TargetPlugin(
        path,
        options=f"{path}.options_class",
        extra=None,
        summary=found.summary,
        on_this_machine=found.on_this_machine,
        own_python=found.own_python,
        list_price_factor=found.list_price_factor,
        has_pods=found.has_pods,
        scheduler_env=found.scheduler_env,
        shared_workdir=found.shared_workdir,
        recorded=f"{path}.recorded",
        configured=f"{path}.configured_options",
    )


def plugin_of(kind: str, recorded: Mapping[str, Any] | None = None) -> TargetPlugin:
    """Return a target's entry, or one with all defaults where its package is not installed.

    A supervisor reads plans on machines that may lack the package of the target that started it.

    Args:
        kind: A kind of target.
        recorded: A plan's `plugins`, which has what a supervisor must know of a target of another package.

    Returns:
        The entry.

    Example:
        >>> from headway.plugins import plugin_of
        >>> plugin_of("slurm").shared_workdir, plugin_of("elsewhere").shared_workdir
        ('yes', 'no')
    """
    default = TargetPlugin(target="", options="", extra=None, summary="", scheduler_env=True)
    facts = ((recorded or {}).get("target") or {}).get(kind)
    if isinstance(facts, Mapping):
        known = {name: facts[name] for name in RECORDED_FACTS if name in facts}
        return replace(default, **known)
    try:
        return TARGETS[kind]
    except (KeyError, HeadwayError):
        return default


_TARGETS: Final = {
    "docker": TargetPlugin(
        "headway.targets.docker.target:DockerTarget",
        options="headway.targets.docker.options:Options",
        extra=None,
        summary="containers on this machine; nothing is billed",
        on_this_machine=True,
        shared_workdir="ready-image",
    ),
    "kubernetes": TargetPlugin(
        "headway.targets.kubernetes.target:KubernetesTarget",
        options="headway.targets.kubernetes.options:Options",
        extra=None,
        summary="a cluster: Kubeflow's PyTorchJob or TrainJob, or a StatefulSet on any cluster",
        configured="headway.targets.kubernetes.kubeconfig:configured_options",
        list_price_factor=1.0,
        has_pods=True,
        scheduler_env=True,
    ),
    "local": TargetPlugin(
        "headway.targets.local.target:LocalTarget",
        options="headway.targets.local.target:Options",
        extra=None,
        summary="this machine; nothing is billed",
        on_this_machine=True,
        own_python=True,
    ),
    "slurm": TargetPlugin(
        "headway.targets.slurm.target:SlurmTarget",
        options="headway.targets.slurm.options:Options",
        extra=None,
        summary="a Slurm cluster, from one of its login nodes",
        scheduler_env=True,
        shared_workdir="yes",
    ),
    "ssh": TargetPlugin(
        "headway.targets.ssh.target:SshTarget",
        options="headway.targets.ssh.options:Options",
        extra=None,
        summary="a machine reached by ssh, yours or rented for the run",
        recorded="headway.targets.ssh.rental:recorded",
        configured="headway.targets.ssh.options:provider_options",
    ),
    "vertex": TargetPlugin(
        "headway.targets.vertex.target:VertexTarget",
        options="headway.targets.vertex.options:Options",
        extra="gcp",
        summary="custom jobs on Vertex AI, billed by Google",
        list_price_factor=1.15,  # a management fee on top of the machine's price
        scheduler_env=True,
    ),
}


TARGETS: Final = Registry("targets", "kind of target", _TARGETS, _target)


def _load(class_path: str, extra: str | None) -> type[Any]:
    module = class_path.partition(":")[0]
    try:
        return cast("type[Any]", object_at(class_path))
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").partition(".")[0] == "headway":
            raise  # our own bug, not something to install
        raise MissingExtra(extra, needed_for=f"{module.rpartition('.')[2]} as a target") from None
