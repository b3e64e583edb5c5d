"""The registries of targets, recipes, stores, trackers, readers and providers.

Each holds what ships with Headway, as "module:Class" strings that are imported on use, and finds what other packages
register as entry points of the groups `headway.targets`, `headway.recipes`, `headway.stores`, `headway.trackers`,
`headway.readers` and `headway.providers` (docs/plugins.md). `registry` has the search and the errors.

What ships with Headway needs one entry here (sorted), its package or file, its tests, and then:

- `python -m headway.spec.schema docs/job-file.md`, which writes its name into spec/headway.schema.json and that page;
- if it needs a package, the package in an extra of pyproject.toml (`loggers` for trackers), then `scripts/lock`;
- a recipe: template.yaml beside the module of its settings, the job file that `headway init` writes;
- a target with `scheduler_env` whose scheduler is not known yet: a function in supervisor/topology.py, called by
  `other_launcher` there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from headway.core.errors import BadBundle, HeadwayError, MissingExtra, Problem, install_command
from headway.plugins.registry import InstalledPlugin, Registry, is_path, unknown_path

if TYPE_CHECKING:
    from headway.core.types import Recorded
    from headway.spec import Job


T = TypeVar("T")


# Trackers: the values of `log_to`


@dataclass(frozen=True, slots=True)
class TrackerPlugin:
    """A tracker's entry in the registry.

    Attributes:
        package: Package that must be importable where rank 0 runs.
        class_path: The class, as "module:Class", imported in a separate process.
        loader: Imports the class of a plug-in; None for those of Headway.
    """

    package: str  # must be importable where rank 0 runs
    class_path: str  # "module:Class", imported in a separate process
    loader: Callable[[], Any] | None = None

    def load(self) -> Any:
        """Import the class.

        Returns:
            The class, a `headway.training.metrics.trackers.base.Tracker`.
        """
        return _object(self.class_path) if self.loader is None else self.loader()


def _tracker(name: str, path: str, load: Callable[[], Any]) -> TrackerPlugin:
    return TrackerPlugin(path.partition(":")[0].partition(".")[0], path, load)


_WRAP = "no plug-in for it is installed: wrap {} in a class as docs/plugins.md shows, and name it: [mypkg.module:Class]"
TRACKERS: Final = Registry(
    "trackers",
    "tracker",
    {
        "mlflow": TrackerPlugin("mlflow", "headway.training.metrics.trackers.mlflow:MLflow"),
        "tensorboard": TrackerPlugin("tensorboardX", "headway.training.metrics.trackers.tensorboard:TensorBoard"),
        "wandb": TrackerPlugin("wandb", "headway.training.metrics.trackers.wandb:WeightsAndBiases"),
    },
    _tracker,
    {
        **{name: _WRAP.format(f"`{name}` (pip install {name})") for name in ("aim", "clearml", "neptune", "swanlab")},
        "comet": _WRAP.format("`comet_ml` (pip install comet-ml)"),
        "weights-and-biases": "write wandb",
    },
)


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
    return sorted({TRACKERS[name].package for name in names if name in TRACKERS and not _is_importable(name)})


def _is_importable(name: str) -> bool:
    """Return whether the package of a tracker is there, without importing it."""
    package, root = TRACKERS[name].package, Path(TRACKERS.distribution(name))
    if is_path(name) and ((root / package).is_dir() or (root / f"{package}.py").is_file()):
        return True
    return find_spec(package) is not None


def tracker_problems(job: Job) -> list[Problem]:
    """Return problems with the job's trackers, for a target whose ranks run in this very environment.

    Args:
        job: The job.

    Returns:
        One problem for each kind of missing package.

    Example:
        >>> import headway
        >>> from headway.plugins import tracker_problems
        >>> tracker_problems(headway.Job.load("headway.yaml"))
        []
    """
    missing = missing_packages(name for name in job.log_to if name in TRACKERS.built_in)
    what = f"log_to names {', '.join(job.log_to)}, and {', '.join(missing)} is not installed beside this Headway"
    found = [Problem(what=what, where="log_to", fix=install_command("loggers"))] if missing else []
    for name in job.log_to:
        if name not in TRACKERS.built_in and name in TRACKERS and not _is_importable(name):
            package = TRACKERS[name].package
            what = f"{name}: there is no {package} in {Path(job.root).resolve()}, and no package of that name"
            found.append(Problem(what=what, where="log_to", fix=f"pip install {package}, or write it there"))
    return found


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
        return _object(getattr(self, attribute))


_RECIPES: Final = {
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


def _recipe(name: str, path: str, load: Callable[[], Any]) -> Recipe:
    found = load()
    if not isinstance(found, Recipe):
        raise TypeError(f"it must be a headway.plugins.Recipe, not {_article(found)}")
    return found if found.name == name else replace(found, name=name)


RECIPES: Final = Registry("recipes", "recipe", _RECIPES, _recipe)


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
        if is_path(name):
            raise unknown_path(name)
        raise BadBundle(
            f"it is of the recipe {name[:100]!r}, which this Headway does not have",
            where=where,
            fix="use the Headway that exported it, or a newer one",
        )
    return RECIPES[name]


# Targets


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
        found: list[Recorded] = _object(self.recorded)()
        return found


RECORDED_FACTS: Final = ("scheduler_env", "shared_workdir", "own_python", "on_this_machine")  # of a target, in a plan


def _target(name: str, path: str, load: Callable[[], Any]) -> TargetPlugin:
    """Make the entry of a plug-in from its class, which has the same facts as class variables."""
    from headway.core.types import Target

    found = load()
    if not (isinstance(found, type) and issubclass(found, Target)):
        raise TypeError(f"it must be a class derived from headway.core.types.Target, not {_article(found)}")
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


def _article(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"


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


def _object(path: str) -> Any:
    module, _, name = path.partition(":")
    return attrgetter(name)(import_module(module))


def _load(class_path: str, extra: str | None) -> type[Any]:
    module = class_path.partition(":")[0]
    try:
        return cast("type[Any]", _object(class_path))
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").partition(".")[0] == "headway":
            raise  # our own bug, not something to install
        raise MissingExtra(extra, needed_for=f"{module.rpartition('.')[2]} as a target") from None


# Stores, readers and providers: the class alone says all that is needed


@dataclass(frozen=True, slots=True)
class Reference:
    """A store, reader or provider in its registry: a class that is imported on use.

    Attributes:
        path: The class, as "module:Class".
        load: Imports it.

    Example:
        >>> from headway.plugins import READERS
        >>> READERS["table"].path
        'headway.data.readers.csv:Table'
    """

    path: str
    load: Callable[[], Any]


def _references(paths: Mapping[str, str]) -> dict[str, Reference]:
    return {name: Reference(path, partial(_object, path)) for name, path in paths.items()}


def _reference(name: str, path: str, load: Callable[[], Any]) -> Reference:
    return Reference(path, load)


_S3 = "it speaks S3: write s3://BUCKET/… and set AWS_ENDPOINT_URL to the address of the service"
_MOUNT = "mount it, and write the folder's path"
STORES: Final = Registry(
    "stores",
    "store for URLs",
    _references(
        {
            "": "headway.storage:open_folder",
            "az": "headway.storage:open_azure",
            "file": "headway.storage:open_folder",
            "gs": "headway.storage:open_google",
            "memory": "headway.storage:open_memory",
            "s3": "headway.storage:open_amazon",
        }
    ),
    _reference,
    {
        **dict.fromkeys(("b2", "cos", "minio", "obs", "oss", "r2", "spaces", "wasabi"), _S3),
        **dict.fromkeys(("dbfs", "hdfs", "nfs", "sftp", "smb"), _MOUNT),
        "dropbox": "use a folder, gs://, s3:// or az://",
        "hf": "download the files first (huggingface-cli download), and write the folder's path",
    },
)
READERS: Final = Registry(
    "readers",
    "format",
    _references(
        {
            "coco": "headway.data.readers.captions:Coco",
            "flickr8k": "headway.data.readers.captions:Flickr8k",
            "folders": "headway.data.readers.files:ClassFolders",
            "listed": "headway.data.readers.captions:Listed",
            "pairs": "headway.data.readers.csv:GradedPairs",
            "parallel": "headway.data.readers.parallel_text:Parallel",
            "table": "headway.data.readers.csv:Table",
            "vizwiz": "headway.data.readers.captions:VizWiz",
        }
    ),
    _reference,
)
PROVIDERS: Final = Registry("providers", "provider of machines", {}, _reference)
REGISTRIES: Final[tuple[Registry[Any], ...]] = (TARGETS, RECIPES, STORES, TRACKERS, READERS, PROVIDERS)


def installed_plugins(*, load: bool = True) -> list[InstalledPlugin]:
    """List everything that can be named in a job file or on the command line, with the package that it comes from.

    Args:
        load: Whether to import the plug-ins of other packages, to find those that do not work.

    Returns:
        One row per plug-in, by group and name.

    Example:
        >>> from headway.plugins import installed_plugins
        >>> [row.name for row in installed_plugins() if row.group == "recipes" and row.distribution == "headway"]
        ['captioning', 'classification', 'grading', 'translation']
    """
    return [row for registry in REGISTRIES for row in registry.plugins(load=load) if row.name]


# The catalog by which job files are validated


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalog:
    """Recipes and targets by which a job file is validated.

    Attributes:
        recipes: Loader of the config dataclass of each recipe.
        targets: Loader of the options dataclass of each kind of target.
        data: Data source of each recipe if a job names none.
        trackers: Names of trackers.
        schemes: Schemes of URLs of stores.
    """

    recipes: Mapping[str, Loader] = field(default_factory=dict)  # name -> config
    targets: Mapping[str, Loader] = field(default_factory=dict)  # kind -> options
    data: Mapping[str, str] = field(default_factory=dict)  # recipe -> data source if a job names none
    trackers: Iterable[str] = ()  # names, for the schema
    schemes: Iterable[str] = ()  # of URLs, for the schema


def built_in_catalog() -> Catalog:
    """Return the catalog of the recipes and targets that ship with this version.

    Returns:
        The catalog.

    Example:
        >>> from headway.plugins import built_in_catalog
        >>> sorted(built_in_catalog().targets)
        ['docker', 'kubernetes', 'local', 'slurm', 'ssh', 'vertex']
    """

    return _catalog(RECIPES.built_in, TARGETS.built_in, TRACKERS.built_in, STORES.built_in)


def working_catalog() -> Catalog:
    """Return the catalog of everything that is installed and can be loaded, for the schema with plug-ins.

    Returns:
        The catalog. Every recipe and target of other packages has been imported.

    Example:
        >>> from headway.plugins import working_catalog
        >>> "local" in working_catalog().targets
        True
    """
    return _catalog(dict(RECIPES.working()), dict(TARGETS.working()), TRACKERS, STORES)


def _catalog(
    recipes: Mapping[str, Recipe], targets: Mapping[str, TargetPlugin], trackers: Iterable[str], schemes: Iterable[str]
) -> Catalog:
    return Catalog(
        recipes={name: recipe.load_config for name, recipe in recipes.items()},
        targets={kind: entry.load_options for kind, entry in targets.items()},
        data={name: recipe.data_default for name, recipe in recipes.items() if recipe.data_default},
        trackers=trackers,
        schemes=schemes,
    )


def installed_catalog() -> Catalog:
    """Return the catalog of everything that is installed, and of classes that the job file names by path.

    Returns:
        The catalog. Its mappings import a plug-in when they are asked for it.

    Example:
        >>> from headway.plugins import installed_catalog
        >>> "grading" in installed_catalog().recipes
        True
    """
    return Catalog(
        recipes=_View(RECIPES, lambda recipe: recipe.load_config),
        targets=_View(TARGETS, lambda entry: entry.load_options),
        data=_View(RECIPES, lambda recipe: recipe.data_default),
    )


class _View(Mapping[str, T]):
    """A registry's entries, each mapped when it is asked for."""

    def __init__(self, registry: Registry[Any], value_of: Callable[[Any], T]) -> None:
        self._registry, self._value_of = registry, value_of

    def __getitem__(self, name: str) -> T:
        return self._value_of(self._registry[name])

    def __contains__(self, name: object) -> bool:
        return name in self._registry

    def __iter__(self) -> Iterator[str]:
        return iter(self._registry)

    def __len__(self) -> int:
        return len(self._registry)
