"""One run as it enters a comparison, read from its folder alone. Nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.recipes.best_scores import scores_in
from headway.runfolder import REPORT, RunFolder
from headway.storage import open_store

SAMPLES: Final = "report_samples.json"
_NOT_CURVES: Final = ("step", "epoch", "time")
_OUTCOME: Final = ("outputs", "export", "name")  # where a run lies, not how it was trained

Points = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    name: str
    url: str
    recipe: str
    measured: str  # on what: "test of builtin:cards, 1,000 inputs", or "its own validation"
    metrics: Mapping[str, float]
    samples: Mapping[str, Any]  # by metric, what each input adds to it; none for a run that was not evaluated
    settings: Mapping[str, Any]  # dotted keys
    curves: Mapping[str, Points]
    steps: int
    seconds: float | None


def read_run(url: str) -> Contender:
    """Its report where it was evaluated, and the last scores of its own validation where not."""
    folder = RunFolder(open_store(url))
    job = folder.plan().job
    report = folder.read_json(REPORT)
    history = folder.metrics()
    return Contender(
        name=folder.name,
        url=url,
        recipe=str(job.get("recipe") or job.get("script") or ""),
        measured=_measured(report),
        metrics=dict(report["metrics"]) if report else _validated(folder),
        samples=_samples(folder, report),
        settings=flat({key: value for key, value in job.items() if key not in _OUTCOME}),
        curves=_curves(history),
        steps=max((int(record["step"]) for record in history), default=0),
        seconds=float(report["training"]["seconds"]) if report else None,
    )


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"config": {"lr": 1}} as {"config.lr": 1}."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{name}.")
        else:
            found[name] = value
    return found


def _measured(report: Mapping[str, Any] | None) -> str:
    if report is None:
        return "its own validation"
    return f"{report['split']} of {report['data']}, {report['count']:,} inputs"


def _validated(folder: RunFolder) -> dict[str, float]:
    """The newest scores that the run measured itself."""
    scored = [event for event in folder.events() if event["kind"] == "score"]
    return scores_in(scored[-1]) if scored else {}


def _samples(folder: RunFolder, report: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Only those of the very evaluation that the report is of."""
    kept = folder.read_json(SAMPLES) if report else None
    if report is None or kept is None:
        return {}
    same = all(kept.get(name) == report.get(name) for name in ("data", "split", "count", "step"))
    found: Mapping[str, Any] = kept["samples"] if same else {}
    return found


def _curves(history: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    curves: dict[str, Points] = {}
    for record in history:
        for name, value in record.items():
            if name not in _NOT_CURVES and isinstance(value, int | float):
                curves.setdefault(name, []).append((float(record["step"]), float(value)))
    return curves
