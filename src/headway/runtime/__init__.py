"""The public name of `headway.training`, kept for training scripts that import it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.training import Feed, Loader, Run, start

__all__ = ["Feed", "Loader", "Run", "start"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headway.runtime' has no attribute {name!r}")
    from headway import training

    return getattr(training, name)


def __dir__() -> list[str]:
    return __all__
