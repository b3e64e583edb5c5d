"""The recipes and targets a job file may name, with the types of their settings. Loaded one by one, on use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Loader = Callable[[], "type[Any]"]  # gives a frozen dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalog:
    recipes: Mapping[str, Loader] = field(default_factory=dict)  # name -> its config
    targets: Mapping[str, Loader] = field(default_factory=dict)  # kind -> its options
    data: Mapping[str, str] = field(default_factory=dict)  # recipe -> the source it uses where a job names none


def shipped() -> Catalog:
    """What this Headway has."""
    from headway.recipes.registry import RECIPES
    from headway.targets.registry import TARGETS

    return Catalog(
        recipes={name: recipe.load_config for name, recipe in RECIPES.items()},
        targets={kind: entry.load_options for kind, entry in TARGETS.items()},
        data={name: recipe.data_default for name, recipe in RECIPES.items() if recipe.data_default},
    )
