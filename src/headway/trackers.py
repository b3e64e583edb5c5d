"""The trackers a job may name under `log_to`, and what each needs to be installed. Imports none of them.

A new tracker is one line here (sorted), one file in runtime/loggers/, one name in the job file's `log_to`.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

from headway.errors import Problem
from headway.extras import install_command

if TYPE_CHECKING:
    from headway.spec import Job


class Kind(NamedTuple):
    package: str  # what must be importable where rank 0 runs
    home: str  # "module:Class", imported in a process of its own


TRACKERS: Final[dict[str, Kind]] = {
    "mlflow": Kind("mlflow", "headway.runtime.loggers.to_mlflow:MLflow"),
    "tensorboard": Kind("tensorboardX", "headway.runtime.loggers.to_tensorboard:TensorBoard"),
    "wandb": Kind("wandb", "headway.runtime.loggers.to_wandb:WeightsAndBiases"),
}


def lacking(names: Iterable[str]) -> list[str]:
    """The packages that these trackers need and that are not installed beside this Headway."""
    return sorted({TRACKERS[name].package for name in names if find_spec(TRACKERS[name].package) is None})


def problems(job: Job) -> list[Problem]:
    """What would keep the job's trackers silent, for a target whose ranks run in this very environment."""
    missing = lacking(job.log_to)
    what = f"log_to names {', '.join(job.log_to)}, and {', '.join(missing)} is not installed beside this Headway"
    return [Problem(what=what, where="log_to", fix=install_command("loggers"))] if missing else []
