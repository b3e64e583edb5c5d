"""report.json and report.html: a run's job, training history and evaluation. The page needs no network.

Built from the run folder alone (metrics, events, plan) and an evaluation's results.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

import yaml

from headway._version import __version__
from headway.artifacts.svg_chart import Line, chart
from headway.core.html import render
from headway.plugins import RECIPES
from headway.rundir.history import metric_curves
from headway.rundir.layout import REPORT, RunFolder, encode
from headway.rundir.lease import spent_s
from headway.rundir.spending import Spending
from headway.spec import Accelerator, Cadence, Job, TargetEntry, to_plain, undump
from headway.spec.constraints import Key, forms, keys_of, union_members, unmarked
from headway.spec.renamed import current_config
from headway.spec.units import format_accelerator, format_cadence, format_duration, format_size
from headway.storage import open_store

if TYPE_CHECKING:
    from headway.artifacts.evaluate import Evaluation, Example, Table
    from headway.core.plan import Plan


# The job as a job file


def as_job_file(job: Job) -> str:
    """Write the job as YAML that loads as the same job: non-default values only, in the units that users type."""
    typed = _typed(job)
    config = _config(job)
    typed.pop("config", None)
    if config:
        typed["config"] = config
    if typed.get("targets") == {"local": {"kind": "local"}}:
        del typed["targets"]  # the default of every job
    order = sorted(typed, key=lambda name: list(keys_of(Job)).index(name))
    text: str = yaml.safe_dump({name: typed[name] for name in order}, sort_keys=False, allow_unicode=True)
    return text


def _config(job: Job) -> dict[str, Any]:
    """Return the settings that differ from the recipe's defaults."""
    settings = current_config({"recipe": job.recipe, "config": to_plain(job.config)})
    if job.recipe is None or job.recipe not in RECIPES:
        return settings
    defaults = to_plain(RECIPES[job.recipe].load_config()())
    return {name: value for name, value in settings.items() if name not in defaults or defaults[name] != value}


def _typed(value: Any) -> dict[str, Any]:
    """Convert a dataclass to the mapping that a user would write for it."""
    written = {}
    for key in keys_of(type(value)).values():
        member = getattr(value, key.field.name)
        if key.required or member != key.default():
            written[key.name] = _value(member, key)
    return written


def _value(value: Any, key: Key) -> Any:
    if isinstance(value, Accelerator):
        return format_accelerator(value)
    if isinstance(value, Cadence):
        return format_cadence(value)
    if isinstance(value, TargetEntry):
        given = {name: option for name, option in to_plain(value.options).items() if option is not None}
        return {"kind": value.kind, **given}
    if is_dataclass(value):
        return _typed(value)
    if isinstance(value, tuple):
        return [_value(item, key) for item in value]
    if isinstance(value, dict):
        return {name: _value(item, key) for name, item in value.items()}
    marked = [form for member in union_members(key.type) for form in forms(unmarked(member)[1])]
    if "duration" in marked:
        return format_duration(value)
    return format_size(value) if "size" in marked else to_plain(value)


PAGE = "report.html"
_NOISY = ("grad_norm", "loss")  # drawn with a running mean
_WORDS = {
    "bleu_1": "BLEU-1",
    "bleu_2": "BLEU-2",
    "bleu_3": "BLEU-3",
    "bleu_4": "BLEU-4",
    "ece": "calibration error",
    "emd2": "squared earth mover's distance",
    "mae": "mean absolute error in grades",
    "qwk": "QWK",
    "within_one": "within one grade",
    "cider": "CIDEr",
    "exact": "exactly right",
    "held_out": "new combinations",
    "seen": "known combinations",
    "loss": "training loss",
    "rouge_l": "ROUGE-L",
    "grad_norm": "norm of the gradient",
    "lr": "learning rate",
}

_COST_LABELS = {"expected_usd": "expected", "budget_usd": "budget"}
_HEADINGS = {
    "held_out": "new combinations, not in the training data",
    "seen": "known combinations, in images that are not in the training data",
}


def write_report(run_url: str, record: Mapping[str, Any], found: Evaluation | None = None) -> dict[str, Any]:
    """Write both files to the run folder; return the contents of report.json: `record`, the training and its cost.

    The page also shows the examples and tables of `found`.
    """
    folder = RunFolder(open_store(run_url))
    plan = folder.plan()
    job = undump(plan.job, where=run_url)
    history = folder.metrics()
    training = _training(folder, history, plan.nodes * plan.processes)
    report = {
        **record,
        "job": job.name,
        "headway": __version__,
        "plan": plan.hash,
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "training": training,
        "cost": _cost(plan, training["seconds"]),
    }
    folder.store.write(REPORT, encode(report))
    folder.store.write(PAGE, page(run_url, report, job, history, found).encode())
    return report


def _cost(plan: Plan, seconds: float) -> dict[str, Any]:
    """Return the cost by the price in the reviewed plan; `usd` is None if the target is not billed."""
    spent = Spending.at(plan, seconds)
    return {"usd": None if spent.usd is None else round(spent.usd, 4), "budget_usd": spent.budget_usd,
            "expected_usd": spent.expected_usd, "target": plan.target}  # fmt: skip


def _training(folder: RunFolder, history: Sequence[Mapping[str, Any]], ranks: int) -> dict[str, Any]:
    """Summarise the training: duration, attempts, ranks, steps. Time between attempts does not count."""
    events = folder.events()
    ended = folder.ended()
    return {
        "seconds": round(spent_s(folder) or _wall_clock_s(events), 1),
        "attempts": sum(event["kind"] == "attempt" for event in events),
        "ranks": ranks,
        "steps": max((int(record["step"]) for record in history), default=0),
        "checkpoints": sum(event["kind"] == "checkpoint" for event in events),
        "state": ended["state"] if ended else "not ended",
    }


def _wall_clock_s(events: Sequence[Mapping[str, Any]]) -> float:
    """Sum the attempts' durations from event times, for runs started by hand with an older Headway, which did not
    record the seconds spent."""
    times: dict[int, list[float]] = {}
    for event in events:
        if isinstance(event.get("time"), (int, float)):  # the supervisor writes text, and records the seconds itself
            times.setdefault(event["attempt"], []).append(float(event["time"]))
    return sum(max(seen) - min(seen) for seen in times.values())


def page(
    run_url: str,
    record: Mapping[str, Any],
    job: Job,
    history: Sequence[Mapping[str, Any]],
    found: Evaluation | None = None,
) -> str:
    """Render the page."""
    tables, examples = (found.tables, found.examples) if found else ((), ())
    best, worst = (found.best, found.worst) if found else ((), ())
    return render(
        "headway.artifacts",
        "report.html",
        kind="run report",
        title=record["run"],
        subtitle=_subtitle(record, job),
        tiles=_tiles(record),
        figures=_charts(history),
        metrics=_metrics(record),
        details=list(map(_detail, tables)),
        examples=[
            ("Examples", _sheets(examples)),
            ("Best results", _sheets(best)),
            ("Worst results", _sheets(worst)),
        ],
        facts=_facts(run_url, record, job),
        run_url=run_url,
        job_file=as_job_file(job),
        footer=f"Written by Headway {record['headway']} at {record['written_at']}.",
    )


def _subtitle(record: Mapping[str, Any], job: Job) -> str:
    trained_on = ", ".join(source.source for source in job.data.train) or "the recipe's generated data"
    return f"{record['recipe']}, trained on {trained_on}; evaluated on {record['count']:,} inputs of {record['data']}"


def _tiles(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the headline numbers with their names."""
    metrics, training = record["metrics"], record["training"]
    wanted = [name for name in ("exact_held_out", "exact_seen", "exact", "bleu_4") if name in metrics]
    if "exact_held_out" in wanted:
        wanted.remove("exact")
    numbers = [(_shown(metrics[name], name), metric_name(name)) for name in wanted or list(metrics)[:4]]
    numbers += [(_time(training["seconds"]), "training time"), (f"{training['steps']:,}", "steps")]
    if record["cost"]["usd"] is not None:
        numbers.append((_usd(record["cost"]["usd"]), "cost"))
    return numbers


def _charts(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Chart the loss, then the scores between 0 and 1 together, then other scores, then other per-step metrics."""
    curves = metric_curves(history)
    often = max((len(points) for points in curves.values()), default=0)
    scores = [name for name, points in curves.items() if len(points) < often and max(y for _, y in points) <= 1]
    groups = [["loss"]] if "loss" in curves else []
    groups += [scores] if scores else []
    rest = [name for name in curves if name != "loss" and name not in scores]
    groups += [[name] for name in sorted(rest, key=lambda name: (len(curves[name]) == often, name))]
    return [_figure(group, curves) for group in groups]


def _figure(names: Sequence[str], curves: Mapping[str, Sequence[tuple[float, float]]]) -> tuple[str, str]:
    title = "validation scores" if len(names) > 1 else metric_name(names[0])
    lines = [Line(metric_name(name) if len(names) > 1 else "", curves[name], noisy=name in _NOISY) for name in names]
    return title, chart(title, lines, floor=0.0)


def _metrics(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row per metric, with columns for the whole split, each subset and the run's own validation."""
    groups, validation = record["groups"], record["validation"]
    baseline = record.get("baseline") or {"metrics": {}, "words": ""}
    plain = [name for name in record["metrics"] if not any(name.endswith(f"_{group}") for group in groups)]
    head = [
        "",
        record["split"],
        *(["baseline"] if baseline["metrics"] else []),
        *(f"{record['split']}: {metric_name(group)}" for group in groups),
        "validation, while training",
    ]
    rows = [
        [
            metric_name(name),
            _shown(record["metrics"][name], name),
            *([_shown(baseline["metrics"].get(name), name)] if baseline["metrics"] else []),
            *(_shown(values.get(name), name) for values in groups.values()),
            _shown(validation.get(name), name),
        ]
        for name in plain
    ]
    note = f"Weights of step {record['step']:,} (checkpoint “{record['checkpoint']}”)."
    note += f" The baseline is not trained: it {baseline['words']}." if baseline["words"] else ""
    return {"head": head, "rows": rows, "note": note}


def _detail(table: Table) -> dict[str, Any]:
    """Return a table's cells; for a matrix, each count with its percentage of the row."""
    rows = [(row[0], _shares(row[1:])) for row in table.rows] if table.matrix else _cells(table.rows)
    return {"title": table.title, "head": table.head, "rows": rows, "matrix": table.matrix}


def _shares(row: Sequence[str | float | None]) -> list[tuple[float, int]]:
    counts = [float(count or 0) for count in row]
    total = sum(counts) or 1.0
    return [(count, round(100 * count / total)) for count in counts]


def _cells(rows: Sequence[Sequence[str | float | None]]) -> list[Any]:
    return [[_cell(value) for value in row] for row in rows]


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _sheets(examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Return the examples with the model's answers, by group."""
    groups: dict[str, list[Example]] = {}
    for example in examples:
        groups.setdefault(example.group, []).append(example)
    return [
        {
            "title": _HEADINGS.get(name, name).capitalize() + _count_correct(members) if name else "",
            "examples": list(map(_example, members)),
        }
        for name, members in groups.items()
    ]


def _count_correct(examples: Sequence[Example]) -> str:
    known = [example.right for example in examples if example.right is not None]
    return f": {sum(known)} of these {len(known)} right" if known else ""


def _example(example: Example) -> dict[str, Any]:
    notes = [] if example.right else [f"e.g. {example.expected[0]}"]
    return {
        "kind": {True: "right", False: "wrong", None: "said"}[example.right],
        "mark": {True: "✓", False: "✗", None: ""}[example.right],
        "png": base64.b64encode(example.picture).decode() if example.picture is not None else "",
        "given": example.given,
        "answer": example.answer,
        "notes": [*notes, *([example.note] if example.note else [])],
    }


def _facts(run_url: str, record: Mapping[str, Any], job: Job) -> list[list[str]]:
    training = record["training"]
    resumed = f" in {training['attempts']} attempts" if training["attempts"] > 1 else ""
    return [
        ["run", run_url],
        ["recipe", record["recipe"]],
        ["training data", ", ".join(source.source for source in job.data.train) or "the recipe's generated data"],
        ["seed", str(job.seed)],
        ["training", f"{_time(training['seconds'])}{resumed}, {training['steps']:,} steps, {training['state']}"],
        ["cost", _costs(record["cost"])],
        ["checkpoints written", str(training["checkpoints"])],
        ["evaluation", f"{_time(record['seconds'])} for {record['count']:,} inputs"],
        *([name, str(value)] for name, value in sorted(record.get("environment", {}).items())),
        ["plan", record["plan"][:16]],
    ]


def _costs(cost: Mapping[str, Any]) -> str:
    if cost["usd"] is None:
        return f"nothing is billed on {cost['target']}"
    against = [f"{_usd(cost[key])} {words}" for key, words in _COST_LABELS.items() if cost[key] is not None]
    return f"{_usd(cost['usd'])} on {cost['target']}" + (f" ({', '.join(against)})" if against else "")


def _usd(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.3f}"


def metric_name(metric: str) -> str:
    """Return a metric's display name: exact_held_out → exactly right, new combinations."""
    for tail in ("held_out", "seen"):
        if metric.endswith(f"_{tail}"):
            return f"{metric_name(metric.removesuffix(f'_{tail}'))}, {_WORDS[tail]}"
    return _WORDS.get(metric, metric.replace("_", " "))


def _shown(value: float | None, name: str) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if name.startswith(("exact", "accuracy", "within_one")) else f"{value:.3f}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s" if seconds < 10 else f"{rest} s"
