"""The registries of targets, recipes, stores, trackers, readers and providers.

Each holds what ships with Headway, as "module:Class" strings that are imported on use, and finds what other packages
register as entry points of the groups `headway.targets`, `headway.recipes`, `headway.stores`, `headway.trackers`,
`headway.readers` and `headway.providers` (docs/plugins.md). `registry` has the search and the errors.

What ships with Headway needs one entry here (sorted), its package or file, its tests, and then:

- `python -m headway.spec.schema docs/job-file.md`, which writes its name into spec/headway.schema.json and that page;
- if it needs a package, the package in an extra of pyproject.toml (`loggers` for trackers), then `scripts/lock`;
- a recipe: template.yaml beside the module of its settings, the job file that `headway init` writes;
- a target with `scheduler_env` whose scheduler is not known yet: a function in supervisor/topology.py, called by
  `other_launcher` there.
"""

from __future__ import annotations

from headway.plugins.catalog import (
    REGISTRIES,
    Catalog,
    Loader,
    built_in_catalog,
    installed_catalog,
    installed_plugins,
    working_catalog,
)
from headway.plugins.classes import PROVIDERS, READERS, STORES, Reference
from headway.plugins.recipes import RECIPES, Recipe, require_recipe
from headway.plugins.targets import RECORDED_FACTS, TARGETS, TargetPlugin, plugin_of
from headway.plugins.trackers import TRACKERS, TrackerPlugin, missing_packages, tracker_problems

__all__ = [
    "PROVIDERS",
    "READERS",
    "RECIPES",
    "RECORDED_FACTS",
    "REGISTRIES",
    "STORES",
    "TARGETS",
    "TRACKERS",
    "Catalog",
    "Loader",
    "Recipe",
    "Reference",
    "TargetPlugin",
    "TrackerPlugin",
    "built_in_catalog",
    "installed_catalog",
    "installed_plugins",
    "missing_packages",
    "plugin_of",
    "require_recipe",
    "tracker_problems",
    "working_catalog",
]
