"""The rank's side of a run: what a training script imports. Importing this costs nothing; `start` brings torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.runtime.feed import Feed, Loader
    from headway.runtime.run import Run, start

__all__ = ["Feed", "Loader", "Run", "start"]

_HOMES = {
    "Feed": "headway.runtime.feed",
    "Loader": "headway.runtime.feed",
    "Run": "headway.runtime.run",
    "start": "headway.runtime.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headway.runtime' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy", "safetensors"):
            raise
        from headway.errors import MissingExtra

        raise MissingExtra("train", needed_for=f"headway.runtime.{name}") from None


def __dir__() -> list[str]:
    return __all__
