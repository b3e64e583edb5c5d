"""The registry of trackers: the values of `log_to`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway.core.errors import Problem, install_command
from headway.plugins.registry import Registry, is_path, object_at

if TYPE_CHECKING:
    from headway.spec import Job


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
        return object_at(self.class_path) if self.loader is None else self.loader()


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
