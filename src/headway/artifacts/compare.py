"""`headway compare`: metrics with confidence intervals, settings and curves of several runs, as a record and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from headway._version import __version__
from headway.artifacts.svg_chart import Line, chart, downsample
from headway.core.errors import BadInput
from headway.core.html import render
from headway.core.program import program_words
from headway.rundir.history import metric_curves, scores_in
from headway.rundir.layout import REPORT, RunFolder
from headway.spec.renamed import current_config
from headway.storage import open_store

# One run of a comparison, read from its folder alone


SAMPLES: Final = "report_samples.json"
_OUTCOME_METRICS: Final = ("outputs", "export", "name")  # job keys that say where a run is, not how it was trained

LAST_LOGGED: Final = "the last values that it logged"  # of a program that `headway eval` cannot evaluate

Points = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    name: str
    url: str
    recipe: str
    can_eval: bool = True  # whether `headway eval` can score it, for intervals
    measured: str  # on which data: "test of builtin:cards, 1,000 inputs", or "its validation data"
    metrics: Mapping[str, float]
    samples: Mapping[str, Any]  # per metric, each input's contribution; empty if the run was not evaluated
    settings: Mapping[str, Any]  # dotted keys
    curves: Mapping[str, Points]
    steps: int
    seconds: float | None


def read_run(url: str) -> RunSummary:
    """Read a run: its report if it was evaluated, else the last scores of its own validation."""
    folder = RunFolder(open_store(url))
    job = folder.plan().job
    settings = {**job, "config": current_config(job)}  # an old run's names would differ where its values do not
    report = folder.read_json(REPORT)
    history = folder.metrics()
    curves = metric_curves(history)
    scores = {} if report else _validated(folder)
    return RunSummary(
        name=folder.name,
        url=url,
        recipe=str(job.get("recipe") or program_words(job)[0]),
        can_eval=bool(job.get("recipe")),
        measured=_measured(report, scored=bool(scores)),
        metrics=dict(report["metrics"]) if report else scores or _last_values(curves),
        samples=_samples(folder, report),
        settings=flat({key: value for key, value in settings.items() if key not in _OUTCOME_METRICS}),
        curves=curves,
        steps=max((int(record["step"]) for record in history), default=0),
        seconds=float(report["training"]["seconds"]) if report else None,
    )


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten to dotted keys: {"config": {"lr": 1}} becomes {"config.lr": 1}."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{name}.")
        else:
            found[name] = value
    return found


def _measured(report: Mapping[str, Any] | None, *, scored: bool) -> str:
    if report is None:
        return "its validation data" if scored else LAST_LOGGED
    return f"{report['split']} of {report['data']}, {report['count']:,} inputs"


def _validated(folder: RunFolder) -> dict[str, float]:
    """Return the newest scores that the run measured itself."""
    scored = [event for event in folder.events() if event["kind"] == "score"]
    return scores_in(scored[-1]) if scored else {}


def _last_values(curves: Mapping[str, Points]) -> dict[str, float]:
    """Return the last value of each curve, for a program that Headway cannot evaluate."""
    return {name: points[-1][1] for name, points in curves.items() if points}


def _samples(folder: RunFolder, report: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the samples, if they belong to the same evaluation as the report."""
    kept = folder.read_json(SAMPLES) if report else None
    if report is None or kept is None:
        return {}
    same = all(kept.get(name) == report.get(name) for name in ("data", "split", "count", "step"))
    found: Mapping[str, Any] = kept["samples"] if same else {}
    return found


# The comparison as a plain record

_MAX_POINTS: Final = 60  # per curve
_MISSING: Final = "–"


def compare(runs: Sequence[RunSummary], *, resamples: int = 1000, level: float = 0.95) -> dict[str, Any]:
    """Compare two or more runs: metrics with intervals, differences from the first run, settings and curves.

    Intervals are percentiles of a seeded bootstrap over inputs. If two runs were measured on the same inputs, their
    difference is a paired bootstrap, which detects differences smaller than either interval. Intervals do not include
    the variance between training seeds: for that, train again.
    """
    if len(runs) < 2:
        raise BadInput("at least two runs are needed", fix="headway compare RUN RUN…")
    return {
        "runs": [_run_record(run) for run in runs],
        "metrics": {
            name: [_value(run, runs[0], name, resamples, level) for run in runs]
            for name in _shared_metrics([run.metrics for run in runs])
        },
        "settings": settings(runs),
        "curves": {
            name: [_thin(run.curves.get(name, [])) for run in runs]
            for name in _shared_metrics([run.curves for run in runs])
        },
        "notes": _notes(runs),
    }


def settings(runs: Sequence[RunSummary]) -> dict[str, list[Any]]:
    """Return the settings that differ between runs, by dotted key."""
    keys = sorted({key for run in runs for key in run.settings})
    rows = {key: [run.settings.get(key, _MISSING) for run in runs] for key in keys}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def _run_record(run: RunSummary) -> dict[str, Any]:
    names = ("name", "url", "recipe", "measured", "steps", "seconds")
    return {name: getattr(run, name) for name in names}


def _shared_metrics(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the names that any of them has, in order of first appearance."""
    return list(dict.fromkeys(name for names in runs for name in names))


def _value(run: RunSummary, first: RunSummary, name: str, resamples: int, level: float) -> dict[str, Any]:
    found: dict[str, Any] = {"value": run.metrics.get(name)}
    own_samples, first_samples = run.samples.get(name), first.samples.get(name)
    if own_samples is None:
        return found
    from headway.metrics.samples import difference, interval, size, statistic

    value = interval(statistic(own_samples), size(own_samples), resamples=resamples, level=level)
    found |= {"low": value.low, "high": value.high, "level": level}
    if (
        run is not first
        and first_samples is not None
        and paired(run, first)
        and size(own_samples) == size(first_samples)
    ):
        gap = difference(
            statistic(first_samples), statistic(own_samples), size(own_samples), resamples=resamples, level=level
        )
        found["difference"] = asdict(gap)
    return found


def paired(one: RunSummary, other: RunSummary) -> bool:
    """Whether both runs were measured on the same inputs."""
    return one.measured == other.measured and bool(one.samples) and bool(other.samples)


def _thin(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    return [[round(x, 2), float(f"{y:.6g}")] for x, y in downsample(points, _MAX_POINTS)]


def _notes(runs: Sequence[RunSummary]) -> list[str]:
    unmeasured = [run for run in runs if not run.samples and run.can_eval]
    notes = [f"{run.name} has no intervals: headway eval {run.name}" for run in unmeasured]
    if len({run.measured for run in runs}) > 1:
        notes.append(
            "the runs were evaluated on different inputs: differences are not paired, and may come from the data"
        )
    if len({run.recipe for run in runs}) > 1:
        notes.append("the runs have different recipes: metrics with the same name may differ in meaning")
    return notes


__all__ = ["RunSummary", "compare", "read_run"]


# The comparison as a self-contained HTML page


_NOISY = ("grad_norm", "loss")


def page(comparison: Mapping[str, Any]) -> str:
    """Render the page: tables, and a chart per curve with one line per run. It needs no network."""
    names = [run["name"] for run in comparison["runs"]]
    return render(
        "headway.artifacts",
        "compare.html",
        kind="comparison of runs",
        title=" against ".join(names),
        subtitle="; ".join(f"{run['name']}: {run['measured']}" for run in comparison["runs"]),
        head=["", *names],
        metrics=[[name, *map(metric_text, values)] for name, values in comparison["metrics"].items()],
        notes=comparison["notes"],
        settings=[[key, *values] for key, values in comparison["settings"].items()],
        figures=[(name, _curve(comparison, name)) for name in comparison["curves"]],
        footer=f"Written by Headway {__version__}.",
    )


def metric_text(entry: Mapping[str, Any]) -> str:
    """Format 0.912 [0.901, 0.923], with the difference from the first run if it is known."""
    if entry.get("value") is None:
        return ""
    text = f"{entry['value']:.4f}"
    if "low" in entry:
        text += f" [{entry['low']:.4f}, {entry['high']:.4f}]"
    if "difference" in entry:
        gap = entry["difference"]
        text += f"  {gap['value']:+.4f} [{gap['low']:+.4f}, {gap['high']:+.4f}]{' *' if is_significant(entry) else ''}"
    return text


def is_significant(entry: Mapping[str, Any]) -> bool:
    """Whether the interval of the difference excludes 0."""
    gap = entry.get("difference")
    return gap is not None and (gap["low"] > 0 or gap["high"] < 0)


def _curve(comparison: Mapping[str, Any], name: str) -> str:
    runs = zip(comparison["runs"], comparison["curves"][name], strict=True)
    lines = [Line(run["name"], [(x, y) for x, y in points], noisy=name in _NOISY) for run, points in runs if points]
    return chart(name, lines)
