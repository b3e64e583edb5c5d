"""The promises of plug-ins as tests: a plug-in's tests inherit the class of its kind, and say how to reach it.

    from headway.testing import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return lambda: open_store(f"mine://{tmp_path}")

Needs pytest, the extra [testing]. docs/plugins.md has an example of each.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headway.testing.providers import ProviderContract
    from headway.testing.readers import ReaderContract
    from headway.testing.recipes import RecipeContract
    from headway.testing.stores import StoreContract
    from headway.testing.targets import LocalTargetContract, TargetContract
    from headway.testing.trackers import TrackerContract

__all__ = [
    "LocalTargetContract",
    "ProviderContract",
    "ReaderContract",
    "RecipeContract",
    "StoreContract",
    "TargetContract",
    "TrackerContract",
]

_HOMES = {name: f"headway.testing.{name.removeprefix('Local').removesuffix('Contract').lower()}s" for name in __all__}
pytest.register_assert_rewrite(*_HOMES.values())  # a failing assert shows its values, as in one's own tests


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headway.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
