"""`headway eval`: score a run's model on data it has not learnt from; writes report.json and report.html.

Needs torch. What is measured is the recipe's business; it hands back an `Evaluation`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.errors import BadInput

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One input with the model's answer, for people to look at. Taken in order, never picked."""

    picture: bytes | None = None  # PNG
    given: str = ""  # what was asked, where it was text
    answer: str
    expected: tuple[str, ...]
    right: bool | None = None  # None where nothing can tell
    group: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """More than a metric's one number: a row for each class, a confusion matrix. In both reports."""

    name: str  # its key in report.json
    title: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[str | float | None]]
    matrix: bool = False  # counts to be shaded; the first column says which class it was in truth


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What a recipe found out about a model on one split."""

    data: str  # which data, in words
    count: int  # how many inputs
    metrics: Mapping[str, float]
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the same, for parts of the data
    examples: Sequence[Example] = ()
    tables: Sequence[Table] = ()
    samples: Mapping[str, Any] = field(default_factory=dict)  # by metric, what each input adds to it: for intervals


def evaluate_run(run_url: str, *, checkpoint: str = "best", split: str = "test") -> dict[str, Any]:
    """Measure, write the two reports into the run folder, and return what report.json says."""
    from headway.recipes.trained import open_trained
    from headway.report import write_report

    if split not in SPLITS:
        raise BadInput(f"there is no split {split!r}", fix=f"choose one of {', '.join(SPLITS)}")
    trained = open_trained(run_url, checkpoint)
    begun = time.monotonic()
    found: Evaluation = trained.recipe.load("evaluate")(trained.model, trained.config, trained.job.data, split)
    record = {
        "run": run_url.rstrip("/").rsplit("/", 1)[-1],
        "recipe": trained.recipe.name,
        "split": split,
        "data": found.data,
        "count": found.count,
        "checkpoint": trained.checkpoint,
        "step": trained.step,
        "metrics": dict(found.metrics),
        "groups": {name: dict(values) for name, values in found.groups.items()},
        "validation": dict(trained.scores),
        **{table.name: [dict(zip(table.head, row, strict=True)) for row in table.rows] for table in found.tables},
        "seconds": round(time.monotonic() - begun, 3),
        "environment": dict(trained.environment),
    }
    return write_report(run_url, record, found.examples, found.tables)
