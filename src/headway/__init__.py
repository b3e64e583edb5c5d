"""Headway: train a model from one job file, here or anywhere.

run = headway.run("headway.yaml", on="local")   # on a laptop or in CI: wait, logs, metrics, stop, resume, pull
headway.evaluate(run.run)                       # scores on data that the run has not seen
headway.load_model(run.run).predict("picture.png")

run = headway.start()                      # inside a training script
headway.open_run("last")                   # in a notebook: state, curves and money as a card
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway._version import __version__

if TYPE_CHECKING:
    from headway.artifacts.use import evaluate, load_model
    from headway.dashboard.notebook.run import open_run
    from headway.launcher.lifecycle import RunHandle, launch
    from headway.launcher.start import run
    from headway.planning import plan
    from headway.spec import Job
    from headway.training import Feed, Loader, Run, start

__all__ = [
    "Feed",
    "Job",
    "Loader",
    "Run",
    "RunHandle",
    "__version__",
    "evaluate",
    "launch",
    "load_model",
    "open_run",
    "plan",
    "run",
    "start",
]

# Imported on first use, so that `headway --help` stays instant and the CLI and the supervisor never import torch.
_HOMES = {
    "Feed": "headway.training",
    "Job": "headway.spec",
    "Loader": "headway.training",
    "Run": "headway.training",
    "RunHandle": "headway.launcher.lifecycle",
    "evaluate": "headway.artifacts.use",
    "launch": "headway.launcher.lifecycle",
    "load_model": "headway.artifacts.use",
    "open_run": "headway.dashboard.notebook.run",
    "plan": "headway.planning",
    "run": "headway.launcher.start",
    "start": "headway.training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
