"""The recipes and targets by which a job file is validated, and the list of everything that is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from headway.plugins.classes import PROVIDERS, READERS, STORES
from headway.plugins.recipes import RECIPES, Recipe
from headway.plugins.registry import InstalledPlugin, Registry
from headway.plugins.targets import TARGETS, TargetPlugin
from headway.plugins.trackers import TRACKERS

T = TypeVar("T")
Loader = Callable[[], "type[Any]"]  # returns a frozen dataclass

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
