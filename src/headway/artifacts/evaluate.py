"""`headway eval`: score a run's or a bundle's model on held-out data, and write report.json and report.html.

Needs torch. The recipe decides what is measured and returns an `Evaluation`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from headway.bundle.format import RECORD
from headway.core.errors import BadBundle, BadInput, NotThere
from headway.rundir.layout import PLAN, RunFolder
from headway.spec.model import Data, Source
from headway.storage import fetch_file, join, local_path, open_store

if TYPE_CHECKING:
    from headway.artifacts.own_model import Choice

SPLITS = ("train", "val", "test")
SAMPLES = "report_samples.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One input with the model's answer, shown in the report."""

    picture: bytes | None = None  # PNG
    given: str = ""  # the input, if it is text
    answer: str
    expected: tuple[str, ...]
    right: bool | None = None  # None if that cannot be decided
    group: str = ""
    note: str = ""  # how good this one is, in a few words


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table for both reports, such as one row per class or a confusion matrix."""

    name: str  # its key in report.json
    title: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[str | float | None]]
    matrix: bool = False  # shade the counts as a confusion matrix; the first column is the true class


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The metrics of a trivial predictor that ignores its input, to compare a model's metrics with."""

    words: str  # a description of what it does: "always predicts grade 5"
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """A recipe's results for a model on one split."""

    data: str  # a description of the data
    count: int  # how many inputs
    metrics: Mapping[str, float]
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the metrics of subsets of the data
    examples: Sequence[Example] = ()  # the first ones in order, not selected
    best: Sequence[Example] = ()  # selected: those with the best answers
    worst: Sequence[Example] = ()  # selected: those with the worst answers, worst first
    baseline: Baseline | None = None
    tables: Sequence[Table] = ()
    samples: Mapping[str, Any] = field(default_factory=dict)  # per metric, each input's contribution, for intervals


def evaluate(
    ref: str,
    *,
    checkpoint: str = "best",
    split: str = "test",
    data: str | None = None,
    root: str | None = None,
    choice: Choice | None = None,
) -> dict[str, Any]:
    """Evaluate the model of a run, a bundle or a file of weights, on its own data or on `data` (see `data_override`).

    For a run, both reports are written to its folder; a bundle is not changed. Returns the contents of report.json.
    """
    if split not in SPLITS:
        raise BadInput(f"there is no split {split!r}", fix=f"choose one of {', '.join(SPLITS)}")
    if root is not None and data is None:
        raise BadInput("--root is the folder with the images of a splits.json", fix="--data splits.json --root DIR")
    from headway.artifacts.models import open_checkpoint
    from headway.artifacts.own_model import Choice
    from headway.artifacts.report import write_report

    of_run = _has(ref, PLAN)
    if checkpoint != "best" and not of_run:
        raise BadInput(f"a bundle has one set of weights, and no checkpoint {checkpoint!r}", where=ref)
    model = open_checkpoint(ref, choice or Choice(), checkpoint)
    begun = time.monotonic()
    found = model.evaluate(split, data, root)
    run = {"run": ref.rstrip("/").rsplit("/", 1)[-1]} if of_run else {}
    record = {**run, **model.about, **_record(model.kind, split, found, time.monotonic() - begun)}
    if not of_run:
        return record
    write_samples(ref, record, found.samples)
    return write_report(ref, record, found)


def evaluate_run(run_url: str, *, checkpoint: str = "best", split: str = "test") -> dict[str, Any]:
    """Evaluate a run on its own data."""
    return evaluate(run_url, checkpoint=checkpoint, split=split)


def _record(recipe: str, split: str, found: Evaluation, seconds: float) -> dict[str, Any]:
    return {
        "recipe": recipe,
        "split": split,
        "data": found.data,
        "count": found.count,
        "metrics": dict(found.metrics),
        "intervals": _intervals(found),
        "groups": {name: dict(values) for name, values in found.groups.items()},
        "baseline": None
        if found.baseline is None
        else {"words": found.baseline.words, "metrics": dict(found.baseline.metrics)},
        **{table.name: [dict(zip(table.head, row, strict=True)) for row in table.rows] for table in found.tables},
        "seconds": round(seconds, 3),
    }


def _intervals(found: Evaluation) -> dict[str, list[float]]:
    """Return the 95 % interval of each metric that has values per sample."""
    from headway.metrics.samples import interval, size, statistic

    made = {}
    for name, record in found.samples.items():
        with suppress(BadInput):  # undefined in every resample, as the kappa of a single grade
            ends = interval(statistic(record), size(record))
            made[name] = [round(ends.low, 6), round(ends.high, 6)]
    return made


def write_samples(run_url: str, record: Mapping[str, Any], samples: Mapping[str, Any]) -> None:
    """Write each input's contribution to each metric beside report.json: intervals and comparisons resample them."""
    from headway.storage import open_store

    about = {name: record[name] for name in ("data", "split", "count", "step")}
    body = json.dumps({**about, "samples": samples}, sort_keys=True, separators=(",", ":")) + "\n"
    open_store(run_url).write(SAMPLES, body.encode())


def extremes(good: Sequence[float], count: int = 6) -> tuple[list[int], list[int]]:
    """Return the rows of the best and the worst inputs, given a quality per input. No row is in both."""
    order = sorted(range(len(good)), key=lambda row: (-good[row], row))
    count = min(count, len(order) // 2)
    return order[:count], order[len(order) - count :][::-1]


def is_bundle(ref: str) -> bool:
    """Whether there is a bundle at `ref`, rather than a run."""
    from headway.bundle.format import RECORD
    from headway.core.errors import NotThere
    from headway.storage import open_store

    try:
        open_store(ref).stat(RECORD)
    except NotThere:
        return False
    return True


# `headway eval --data`: prepared data, or a splits.json whose images are prepared on the fly


PICTURES: Final = "pictures"  # folder of a splits.json's images during preparation
_SIDES: Final = ("front", "back")
_PARALLEL_DOWNLOADS: Final = 16  # images fetched in parallel
_ALIASES: Final = {"val": ("val", "valid", "validation", "dev"), "test": ("test", "testing"), "train": ("train",)}


@contextmanager
def data_override(data: str | None, root: str | None, split: str, config: Any, *, otherwise: Data) -> Iterator[Data]:
    """Context manager: the data to read `split` from, or `otherwise` if `data` is None. Deletes what it prepared."""
    if data is None:
        yield otherwise
    elif not data.endswith(".json"):
        if root is not None:
            raise BadInput(
                "--root applies only to a splits.json, and --data is a folder", where=data, fix="leave out --root"
            )
        yield _only_split(data, split)
    else:
        with tempfile.TemporaryDirectory(prefix="headway-eval-") as folder:
            yield _only_split(_prepare_data(data, root, split, config, Path(folder)), split)


def _only_split(source: str, split: str) -> Data:
    sources = (Source(source=source, split=split),)
    return Data(train=sources, val=sources, test=sources)


def _prepare_data(data: str, root: str | None, split: str, config: Any, folder: Path) -> str:
    """Prepare the images of a splits.json: whole, squashed to the square that the model takes."""
    from headway.data.prepare.pipeline import PrepareOptions, prepare

    entries = _entries(data, split)
    base = root or data.rpartition("/")[0] or "."
    (folder / "source").mkdir()
    keys = {path: _key(path, base) for entry in entries for path in _file_pairs(entry)}
    _download(set(keys.values()), base, folder / "source" / PICTURES)
    rows = [_with_local_paths(entry, keys) for entry in entries]
    (folder / "source" / "splits.json").write_text(json.dumps({split: rows}))
    to = str(folder / "shards")
    side = int(getattr(config, "side", 224))
    prepare(str(folder / "source"), to, size=side, encoding="raw", workers=1, options=PrepareOptions(fit="squash"))
    return to


def _entries(data: str, split: str) -> list[Any]:
    parent, _, name = data.rpartition("/")
    try:
        found = json.loads(open_store(parent or ".").read(name))
    except NotThere:
        raise BadInput(f"{data} does not exist", fix="check the path") from None
    except ValueError as error:
        raise BadInput(f"not JSON: {error}", where=data) from None
    listed = [found[name] for name in _ALIASES[split] if isinstance(found, dict) and name in found]
    if not listed or not isinstance(listed[0], list) or not listed[0]:
        known = ", ".join(found) if isinstance(found, dict) else "none"
        raise BadInput(f"{data} has no split {split!r}", fix=f"choose one with --split: {known}")
    return listed[0]


def _file_pairs(entry: Any) -> list[str]:
    """List the image paths of an entry, as written there."""
    found = [entry.get(side) for side in _SIDES] if isinstance(entry, dict) else []
    return [path for path in found if isinstance(path, str)]


def _with_local_paths(entry: Any, keys: Mapping[str, str]) -> Any:
    """Rewrite the entry's image paths to where they were fetched. Preparation reports any other problem with it."""
    return (
        entry
        if not _file_pairs(entry)
        else {
            name: f"{PICTURES}/{keys[value]}" if name in _SIDES and isinstance(value, str) else value
            for name, value in entry.items()
        }
    )


def _download(keys: Iterable[str], base: str, to: Path) -> None:
    """Link local images and fetch remote ones, in parallel. Skips missing ones: preparation reports them."""
    here = local_path(base)

    def download_one(key: str) -> None:
        place = to / key
        place.parent.mkdir(parents=True, exist_ok=True)
        if here is None:
            with suppress(NotThere):
                fetch_file(open_store(base), key, place)
        elif (here / key).is_file():
            place.symlink_to((here / key).resolve())

    with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
        list(pool.map(download_one, sorted(keys)))


def _key(path: str, base: str) -> str:
    key = _relative(path, base)
    if ".." in PurePosixPath(key).parts or key.startswith("/"):
        raise BadInput(f"{path!r} is outside of {base}", fix="set the folder with the images: --root DIR")
    return key


def _relative(path: str, base: str) -> str:
    """Make a path relative to the root. Other tools write absolute paths, accepted if they lie below it."""
    for start in (f"{base.rstrip('/')}/", f"{local_path(base)}/"):
        if path.startswith(start):
            return path[len(start) :]
    return path


def predict(ref: str, inputs: Sequence[str]) -> list[dict[str, Any]]:
    """Answer inputs as typed on the command line: one answer per input, in order, each with `input` and `text`."""
    from headway.artifacts.models import open_model
    from headway.artifacts.own_model import Choice

    return open_model(ref, Choice()).answers(list(inputs))


def bundle_of(ref: str) -> str:
    """Return the URL of a bundle: `ref` itself, or the one in a run's folder."""
    if _has(ref, RECORD):
        return ref
    inside = join(ref, "export")
    if _has(inside, RECORD):
        return inside
    if _has(ref, PLAN):
        name = ref.rstrip("/").rsplit("/", 1)[-1]
        job = RunFolder(open_store(ref)).plan().job
        if not job.get("recipe"):
            raise program_has_no_model(name)
        raise BadInput(
            f"the run {name} has exported no bundle yet",
            fix=f"wait until it has finished, or export its best checkpoint: headway export {name}",
        )
    raise BadBundle(f"{ref} is neither a bundle nor a run", fix="give a run, or a folder written by headway export")


def program_has_no_model(run: str) -> BadInput:
    """Return the error of a verb that needs a model, about a run whose program Headway does not know."""
    return BadInput(
        f"the run {run} is one of your own program, whose model Headway cannot rebuild",
        fix=f"its weights, as files: headway export {run} --as pth; for all verbs: headway init model",
    )


def _has(url: str, key: str) -> bool:
    try:
        open_store(url).stat(key)
    except NotThere:
        return False
    return True
