"""The job file: its nouns, and how it is read, checked and written.

job = load("headway.yaml", set=["config.epochs=3"])     # BadJob lists every problem with line and column
undump(dump(job)) == job                                # plain JSON, for the plan
"""

from headway.spec.loading import load, loads
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
from headway.spec.plain import dump, from_plain, to_plain, undump

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
