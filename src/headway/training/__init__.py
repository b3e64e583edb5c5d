"""The training side of a run, imported by training scripts. Importing it is cheap: torch is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.training.batches import Feed, Loader
    from headway.training.run import Run, start

__all__ = ["Feed", "Loader", "Run", "start"]

_HOMES = {
    "Feed": "headway.training.batches",
    "Loader": "headway.training.batches",
    "Run": "headway.training.run",
    "start": "headway.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headway.training' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy", "safetensors"):
            raise
        from headway.core.errors import MissingExtra

        raise MissingExtra("train", needed_for=f"headway.training.{name}") from None


def __dir__() -> list[str]:
    return __all__
