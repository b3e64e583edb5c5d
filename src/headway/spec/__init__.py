"""The job file: its dataclasses, and functions that read, validate and write it.

job = load("headway.yaml", set=["config.epochs=3"])     # BadJob lists every problem with line and column
undump(dump(job)) == job                                # plain JSON, for the plan
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.spec.model import (
    Accelerator,
    Budget,
    Cache,
    Cadence,
    Checkpoint,
    Data,
    Export,
    Image,
    Job,
    Mount,
    Notify,
    Phase,
    Resources,
    Secret,
    Source,
    TargetEntry,
)

if TYPE_CHECKING:
    from headway.spec.loading import dump, from_plain, load, loads, to_plain, undump

__all__ = [
    "Accelerator",
    "Budget",
    "Cache",
    "Cadence",
    "Checkpoint",
    "Data",
    "Export",
    "Image",
    "Job",
    "Mount",
    "Notify",
    "Phase",
    "Resources",
    "Secret",
    "Source",
    "TargetEntry",
    "dump",
    "from_plain",
    "load",
    "loads",
    "to_plain",
    "undump",
]

# Imported on first use: code that only needs the dataclasses does not pay for importing YAML.
_HOMES = {
    "dump": "headway.spec.loading",
    "from_plain": "headway.spec.loading",
    "load": "headway.spec.loading",
    "loads": "headway.spec.loading",
    "to_plain": "headway.spec.loading",
    "undump": "headway.spec.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headway.spec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
