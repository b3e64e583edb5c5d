"""The registry of recipes, targets and trackers, as "module:Class" strings that are imported on use.

Imports none of them: job files are validated without loading models. A new recipe is one folder, one entry here
(sorted), one job file in examples/ and one folder of tests. A new tracker is one line here (sorted), one file in
training/metrics/trackers/, and its name among the values of `Job.log_to` in spec/model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from headway.core.errors import BadBundle, MissingExtra, Problem, install_command

if TYPE_CHECKING:
    from headway.spec import Job


# Trackers: the values of `log_to`


class Kind(NamedTuple):
    """A tracker's entry in the registry.

    Args:
        package: Package that must be importable where rank 0 runs.
        home: The class, as "module:Class", imported in a separate process.
    """

    package: str  # must be importable where rank 0 runs
    home: str  # "module:Class", imported in a separate process


TRACKERS: Final[dict[str, Kind]] = {
    "mlflow": Kind("mlflow", "headway.training.metrics.trackers.mlflow:MLflow"),
    "tensorboard": Kind("tensorboardX", "headway.training.metrics.trackers.tensorboard:TensorBoard"),
    "wandb": Kind("wandb", "headway.training.metrics.trackers.wandb:WeightsAndBiases"),
}


def lacking(names: Iterable[str]) -> list[str]:
    """Return the packages that these trackers need and that are not installed in this environment.

    Args:
        names: Names of trackers, as in the job file's `log_to`.

    Returns:
        Package names, sorted.

    Example:
        >>> from headway.plugins import lacking
        >>> lacking([])
        []
    """
    return sorted({TRACKERS[name].package for name in names if find_spec(TRACKERS[name].package) is None})


def problems(job: Job) -> list[Problem]:
    """Return problems with the job's trackers, for a target whose ranks run in this very environment.

    Args:
        job: The job.

    Returns:
        One problem if packages are missing, else none.

    Example:
        >>> import headway
        >>> from headway.plugins import problems
        >>> problems(headway.Job.load("headway.yaml"))
        []
    """
    missing = lacking(job.log_to)
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
        data_default: The training data if the job names none.
        graphs: (model, config) -> the graphs for ONNX and torch.export; empty if not supported.
        takes: Inputs of `headway predict`: `pictures` (files) or `text`.
        phases: Whether it trains in the phases that a job names.
        extras: Pip extras of Headway that it needs besides `train`.

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
    data_default: str  # the training data if the job names none
    graphs: str = ""  # (model, config) -> the graphs for ONNX and torch.export; empty if not supported yet
    takes: Literal["pictures", "text"] = "pictures"  # inputs of `headway predict`: files, or typed text
    phases: bool = False  # whether it trains in the phases that a job names
    extras: tuple[str, ...] = ()  # pip extras of Headway that it needs besides `train`

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
        summary="say what a picture shows",
        config="headway.recipes.captioning.config:Config",
        train="headway.recipes.captioning.train:train",
        rebuild="headway.recipes.captioning.model:rebuild",
        bundle="headway.recipes.captioning.inference:bundle",
        evaluate="headway.recipes.captioning.evaluate:evaluate",
        predictor="headway.recipes.captioning.inference:Predictor",
        graphs="headway.recipes.captioning.onnx:graphs",
        data_default="builtin:scenes",
    ),
    "classification": Recipe(
        name="classification",
        summary="say to which class a picture belongs",
        config="headway.recipes.classification.config:Config",
        train="headway.recipes.classification.train:train",
        rebuild="headway.recipes.classification.model:rebuild",
        bundle="headway.recipes.classification.inference:bundle",
        evaluate="headway.recipes.classification.evaluate:evaluate",
        predictor="headway.recipes.classification.inference:Predictor",
        graphs="headway.recipes.classification.model:graphs",
        data_default="builtin:leaves",
        extras=("data",),
    ),
    "grading": Recipe(
        name="grading",
        summary="grade a thing by pictures of its front and back, or by one",
        config="headway.recipes.grading.config:Config",
        train="headway.recipes.grading.train:train",
        rebuild="headway.recipes.grading.model:rebuild",
        bundle="headway.recipes.grading.inference:bundle",
        evaluate="headway.recipes.grading.evaluate:evaluate",
        predictor="headway.recipes.grading.inference:Predictor",
        graphs="headway.recipes.grading.model:graphs",
        data_default="builtin:cards",
        phases=True,
    ),
    "translation": Recipe(
        name="translation",
        summary="say a sentence in another language",
        config="headway.recipes.translation.config:Config",
        train="headway.recipes.translation.train:train",
        rebuild="headway.recipes.translation.model:rebuild",
        bundle="headway.recipes.translation.inference:bundle",
        evaluate="headway.recipes.translation.evaluate:evaluate",
        predictor="headway.recipes.translation.inference:Predictor",
        graphs="headway.recipes.translation.onnx:graphs",
        data_default="builtin:phrases",
        takes="text",
        extras=("translation",),
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
class Entry:
    """A kind of target in the registry.

    Attributes:
        target: The class, as "module:Class".
        options: The frozen dataclass of its options in the job file, as "module:Dataclass".
        extra: The pip extra it needs; None if it needs none.
        summary: One line, to choose by.

    Example:
        >>> from headway.plugins import TARGETS
        >>> TARGETS["local"].load_target().__name__
        'LocalTarget'
    """

    target: str
    options: str  # "module:Dataclass": the options of its entry in the job file
    extra: str | None
    summary: str

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
        "headway.targets.local.target:LocalTarget",
        options="headway.targets.local.target:Options",
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
    """Recipes and targets by which a job file is validated.

    Attributes:
        recipes: Loader of the config dataclass of each recipe.
        targets: Loader of the options dataclass of each kind of target.
        data: Data source of each recipe if a job names none.
    """

    recipes: Mapping[str, Loader] = field(default_factory=dict)  # name -> config
    targets: Mapping[str, Loader] = field(default_factory=dict)  # kind -> options
    data: Mapping[str, str] = field(default_factory=dict)  # recipe -> data source if a job names none


def shipped() -> Catalog:
    """Return the catalog of the recipes and targets that ship with this version.

    Returns:
        The catalog.

    Example:
        >>> from headway.plugins import shipped
        >>> sorted(shipped().targets)
        ['docker', 'kubernetes', 'local', 'slurm', 'ssh', 'vertex']
    """

    return Catalog(
        recipes={name: recipe.load_config for name, recipe in RECIPES.items()},
        targets={kind: entry.load_options for kind, entry in TARGETS.items()},
        data={name: recipe.data_default for name, recipe in RECIPES.items() if recipe.data_default},
    )
