"""The registry of recipes, targets and trackers, as "module:Class" strings that are imported on use.

Imports none of them: job files are validated without loading models.

A new target is one package, one entry here (sorted) and its tests (docs/writing-a-target.md). A new recipe is one
folder (with template.yaml, the job file that `headway init` writes), one entry and one folder of tests. A new tracker
is one file in training/metrics/trackers/, one entry and its tests. Each of them then needs:

- `python -m headway.spec.schema docs/job-file.md`, which writes its name into spec/headway.schema.json and that page;
- if it needs a package, the package in an extra of pyproject.toml (`loggers` for trackers), then `scripts/lock`;
- for a target with `scheduler_env` whose scheduler is not known yet, a function in supervisor/topology.py, called by
  `other_launcher` there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from headway.core.errors import BadBundle, MissingExtra, Problem, install_command

if TYPE_CHECKING:
    from headway.core.types import Recorded
    from headway.spec import Job


# Trackers: the values of `log_to`


class TrackerPlugin(NamedTuple):
    """A tracker's entry in the registry.

    Args:
        package: Package that must be importable where rank 0 runs.
        class_path: The class, as "module:Class", imported in a separate process.
    """

    package: str  # must be importable where rank 0 runs
    class_path: str  # "module:Class", imported in a separate process


TRACKERS: Final[dict[str, TrackerPlugin]] = {
    "mlflow": TrackerPlugin("mlflow", "headway.training.metrics.trackers.mlflow:MLflow"),
    "tensorboard": TrackerPlugin("tensorboardX", "headway.training.metrics.trackers.tensorboard:TensorBoard"),
    "wandb": TrackerPlugin("wandb", "headway.training.metrics.trackers.wandb:WeightsAndBiases"),
}


def missing_packages(names: Iterable[str]) -> list[str]:
    """Return the packages that these trackers need and that are not installed in this environment.

    Args:
        names: Names of trackers, as in the job file's `log_to`.

    Returns:
        Package names, sorted.

    Example:
        >>> from headway.plugins import missing_packages
        >>> missing_packages([])
        []
    """
    return sorted({TRACKERS[name].package for name in names if find_spec(TRACKERS[name].package) is None})


def tracker_problems(job: Job) -> list[Problem]:
    """Return problems with the job's trackers, for a target whose ranks run in this very environment.

    Args:
        job: The job.

    Returns:
        One problem if packages are missing, else none.

    Example:
        >>> import headway
        >>> from headway.plugins import tracker_problems
        >>> tracker_problems(headway.Job.load("headway.yaml"))
        []
    """
    missing = missing_packages(job.log_to)
    what = f"log_to names {', '.join(job.log_to)}, and {', '.join(missing)} is not installed beside this Headway"
    return [Problem(what=what, where="log_to", fix=install_command("loggers"))] if missing else []


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Training code that ships with Headway, as "module:name" strings that are imported on use.

    Attributes:
        name: Value of `recipe` in the job file.
        summary: One line, to choose by.
        config: A frozen dataclass of its settings; its module imports nothing heavy.
        train: (run, config): the training loop.
        rebuild: (config, state of the model in a checkpoint) -> model.
        bundle: (model, config, job, scores) -> BundleParts.
        evaluate: (model, config, data, split, cache=…) -> Evaluation.
        predictor: (bundle) -> a callable that maps a list of inputs to a list of predictions.
        service: (bundle) -> a `PredictionService`, the model behind `headway serve`; empty if it cannot be served.
        task: The kind of prepared data that it learns from, such as `captions`; empty if it reads none.
        data_default: The training data if the job names none.
        graphs: (model, config) -> the graphs for ONNX and torch.export; empty if not supported.
        takes: Inputs of `headway predict`: `pictures` (files) or `text`.
        phases: Whether it trains in the phases that a job names.
        extras: Pip extras of Headway that it needs besides `train`.
        sizes: (config) -> the sizes of its model, such as `image_size` or `d_model`, from which pricing/estimate.py
            estimates the training time; empty if its settings have the names that are counted there.

    Example:
        >>> from headway.plugins import RECIPES
        >>> sorted(RECIPES)
        ['captioning', 'classification', 'grading', 'translation']
        >>> RECIPES["translation"].takes
        'text'
    """

    name: str
    summary: str  # one line, to choose by
    config: str  # a frozen dataclass; its module imports nothing heavy
    train: str  # (run, config): the training loop
    rebuild: str  # (config, state of the model in a checkpoint) -> model
    bundle: str  # (model, config, job, scores) -> BundleParts
    evaluate: str  # (model, config, data, split, cache=…) -> Evaluation
    predictor: str  # (bundle) -> a callable that maps a list of inputs to a list of predictions
    service: str = ""  # (bundle) -> a PredictionService, the model behind `headway serve`; empty if not supported
    task: str = ""  # the kind of prepared data that it learns from; empty if it reads none
    data_default: str  # the training data if the job names none
    graphs: str = ""  # (model, config) -> the graphs for ONNX and torch.export; empty if not supported yet
    takes: Literal["pictures", "text"] = "pictures"  # inputs of `headway predict`: files, or typed text
    phases: bool = False  # whether it trains in the phases that a job names
    extras: tuple[str, ...] = ()  # pip extras of Headway that it needs besides `train`
    sizes: str = ""  # (config) -> sizes of its model for pricing/estimate.py; empty if its settings have those names

    def load_config(self) -> type[Any]:
        """Import the dataclass of its settings. Imports nothing heavy.

        Returns:
            The dataclass.

        Example:
            >>> from headway.plugins import RECIPES
            >>> RECIPES["captioning"].load_config().__name__
            'Config'
        """
        loaded = self.load("config")
        assert isinstance(loaded, type)
        return loaded

    def template(self) -> Path | None:
        """Return the job file that `headway init` writes: template.yaml beside the module of its settings.

        Returns:
            The file; None if there is none.

        Example:
            >>> from headway.plugins import RECIPES
            >>> RECIPES["grading"].template().name
            'template.yaml'
        """
        package = import_module(self.config.partition(":")[0].rpartition(".")[0])
        path = Path(*package.__path__) / "template.yaml"
        return path if path.is_file() else None

    def load(self, attribute: str) -> Any:
        """Import the object that one of the attributes names.

        Args:
            attribute: Name of the attribute, such as `train`.

        Returns:
            The object.
        """
        module, _, name = getattr(self, attribute).partition(":")
        return getattr(import_module(module), name)


RECIPES: Final[dict[str, Recipe]] = {
    "captioning": Recipe(
        name="captioning",
        summary="describe a picture in one sentence",
        config="headway.recipes.captioning.config:Config",
        train="headway.recipes.captioning.train:train",
        rebuild="headway.recipes.captioning.model:rebuild",
        bundle="headway.recipes.captioning.inference:bundle",
        evaluate="headway.recipes.captioning.evaluate:evaluate",
        predictor="headway.recipes.captioning.inference:Predictor",
        service="headway.recipes.captioning.inference:CaptionService",
        task="captions",
        graphs="headway.recipes.captioning.onnx:graphs",
        data_default="builtin:scenes",
    ),
    "classification": Recipe(
        name="classification",
        summary="assign a picture to a class",
        config="headway.recipes.classification.config:Config",
        train="headway.recipes.classification.train:train",
        rebuild="headway.recipes.classification.model:rebuild",
        bundle="headway.recipes.classification.inference:bundle",
        evaluate="headway.recipes.classification.evaluate:evaluate",
        predictor="headway.recipes.classification.inference:Predictor",
        service="headway.recipes.classification.inference:ClassService",
        task="classes",
        graphs="headway.recipes.classification.model:graphs",
        data_default="builtin:leaves",
        extras=("data",),
    ),
    "grading": Recipe(
        name="grading",
        summary="grade an item from pictures of its front and back, or from one picture",
        config="headway.recipes.grading.config:Config",
        train="headway.recipes.grading.train:train",
        rebuild="headway.recipes.grading.model:rebuild",
        bundle="headway.recipes.grading.inference:bundle",
        evaluate="headway.recipes.grading.evaluate:evaluate",
        predictor="headway.recipes.grading.inference:Predictor",
        service="headway.recipes.grading.inference:GradeService",
        task="grades",
        graphs="headway.recipes.grading.model:graphs",
        data_default="builtin:cards",
        phases=True,
        sizes="headway.recipes.grading.config:sizes",
    ),
    "translation": Recipe(
        name="translation",
        summary="translate sentences into another language",
        config="headway.recipes.translation.config:Config",
        train="headway.recipes.translation.train:train",
        rebuild="headway.recipes.translation.model:rebuild",
        bundle="headway.recipes.translation.inference:bundle",
        evaluate="headway.recipes.translation.evaluate:evaluate",
        predictor="headway.recipes.translation.inference:Predictor",
        service="headway.recipes.translation.inference:TranslationService",
        task="translation",
        graphs="headway.recipes.translation.onnx:graphs",
        data_default="builtin:phrases",
        takes="text",
        extras=("translation",),
        sizes="headway.recipes.translation.config:sizes",
    ),
}


def require_recipe(name: str, *, where: str) -> Recipe:
    """Return the recipe that a bundle names.

    Args:
        name: The recipe's name.
        where: The bundle's location, for the error message.

    Returns:
        The recipe.

    Raises:
        BadBundle: If this Headway does not have it.

    Example:
        >>> from headway.plugins import require_recipe
        >>> require_recipe("grading", where="export").phases
        True
    """
    if name not in RECIPES:
        raise BadBundle(
            f"it is of the recipe {name[:100]!r}, which this Headway does not have",
            where=where,
            fix="use the Headway that exported it, or a newer one",
        )
    return RECIPES[name]


# Targets, and the catalog by which job files are validated


Loader = Callable[[], "type[Any]"]  # returns a frozen dataclass


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
        module, _, name = self.recorded.partition(":")
        found: list[Recorded] = getattr(import_module(module), name)()
        return found


def plugin_of(kind: str) -> TargetPlugin:
    """Return a target's entry, or one with all defaults where its package is not installed.

    A supervisor reads plans on machines that may lack the package of the target that started it.

    Args:
        kind: A kind of target.

    Returns:
        The entry.

    Example:
        >>> from headway.plugins import plugin_of
        >>> plugin_of("slurm").shared_workdir, plugin_of("elsewhere").shared_workdir
        ('yes', 'no')
    """
    return TARGETS.get(kind) or TargetPlugin(target="", options="", extra=None, summary="", scheduler_env=True)


TARGETS: dict[str, TargetPlugin] = {
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


def _load(class_path: str, extra: str | None) -> type[Any]:
    module, _, name = class_path.partition(":")
    try:
        return cast("type[Any]", getattr(import_module(module), name))
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").partition(".")[0] == "headway":
            raise  # our own bug, not something to install
        raise MissingExtra(extra, needed_for=f"{module.rpartition('.')[2]} as a target") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalog:
    """Recipes and targets by which a job file is validated.

    Attributes:
        recipes: Loader of the config dataclass of each recipe.
        targets: Loader of the options dataclass of each kind of target.
        data: Data source of each recipe if a job names none.
    """

    recipes: Mapping[str, Loader] = field(default_factory=dict)  # name -> config
    targets: Mapping[str, Loader] = field(default_factory=dict)  # kind -> options
    data: Mapping[str, str] = field(default_factory=dict)  # recipe -> data source if a job names none


def built_in_catalog() -> Catalog:
    """Return the catalog of the recipes and targets that ship with this version.

    Returns:
        The catalog.

    Example:
        >>> from headway.plugins import built_in_catalog
        >>> sorted(built_in_catalog().targets)
        ['docker', 'kubernetes', 'local', 'slurm', 'ssh', 'vertex']
    """

    return Catalog(
        recipes={name: recipe.load_config for name, recipe in RECIPES.items()},
        targets={kind: entry.load_options for kind, entry in TARGETS.items()},
        data={name: recipe.data_default for name, recipe in RECIPES.items() if recipe.data_default},
    )
