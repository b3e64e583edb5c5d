"""The recipes that ship with Headway, by name. Imports none of them: settings are checked without their models.

A new recipe is one folder, one entry here (sorted), one job file in examples/, one folder of tests.
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


# The trackers a job may name under `log_to`, and what each needs to be installed. Imports none of them.
#
# A new tracker is one line here (sorted), one file in training/metrics/trackers/, one name in the job file's `log_to`.


class Kind(NamedTuple):
    package: str  # what must be importable where rank 0 runs
    home: str  # "module:Class", imported in a process of its own


TRACKERS: Final[dict[str, Kind]] = {
    "mlflow": Kind("mlflow", "headway.training.metrics.trackers.mlflow:MLflow"),
    "tensorboard": Kind("tensorboardX", "headway.training.metrics.trackers.tensorboard:TensorBoard"),
    "wandb": Kind("wandb", "headway.training.metrics.trackers.wandb:WeightsAndBiases"),
}


def lacking(names: Iterable[str]) -> list[str]:
    """The packages that these trackers need and that are not installed beside this Headway."""
    return sorted({TRACKERS[name].package for name in names if find_spec(TRACKERS[name].package) is None})


def problems(job: Job) -> list[Problem]:
    """What would keep the job's trackers silent, for a target whose ranks run in this very environment."""
    missing = lacking(job.log_to)
    what = f"log_to names {', '.join(job.log_to)}, and {', '.join(missing)} is not installed beside this Headway"
    return [Problem(what=what, where="log_to", fix=install_command("loggers"))] if missing else []


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Training code that ships with Headway, as "module:name" strings that are imported on use."""

    name: str
    summary: str  # one line, for people who choose
    config: str  # a frozen dataclass; its module imports nothing heavy
    train: str  # (run, config): the loop
    rebuild: str  # (config, state of the model in a checkpoint) -> model
    bundle: str  # (model, config, job, scores) -> BundleParts
    evaluate: str  # (model, config, data, split, cache=…) -> Evaluation
    predictor: str  # (bundle) -> something that turns a list of inputs into a list of answers
    data_default: str  # what is trained on when the job names no data
    graphs: str = ""  # (model, config) -> the graphs that ONNX and torch.export get; none where there are none yet
    takes: Literal["pictures", "text"] = "pictures"  # what `headway predict` is given: files, or what is typed
    phases: bool = False  # whether it trains in the phases that a job names
    extras: tuple[str, ...] = ()  # parts of Headway it needs besides `train`

    def load_config(self) -> type[Any]:
        """The dataclass of its settings. Imports nothing heavy."""
        loaded = self.load("config")
        assert isinstance(loaded, type)
        return loaded

    def load(self, attribute: str) -> Any:
        """What one of the strings above names."""
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
        graphs="headway.recipes.classification.onnx:graphs",
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
        graphs="headway.recipes.grading.onnx:graphs",
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
    """The recipe that a bundle names. BadBundle for one that this Headway does not have."""
    if name not in RECIPES:
        raise BadBundle(
            f"it is of the recipe {name[:100]!r}, which this Headway does not have",
            where=where,
            fix="use the Headway that exported it, or a newer one",
        )
    return RECIPES[name]


# The recipes and targets a job file may name, with the types of their settings. Loaded one by one, on use.


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
    recipes: Mapping[str, Loader] = field(default_factory=dict)  # name -> its config
    targets: Mapping[str, Loader] = field(default_factory=dict)  # kind -> its options
    data: Mapping[str, str] = field(default_factory=dict)  # recipe -> the source it uses where a job names none


def shipped() -> Catalog:
    """What this Headway has."""

    return Catalog(
        recipes={name: recipe.load_config for name, recipe in RECIPES.items()},
        targets={kind: entry.load_options for kind, entry in TARGETS.items()},
        data={name: recipe.data_default for name, recipe in RECIPES.items() if recipe.data_default},
    )
