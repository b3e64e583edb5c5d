"""`headway eval`: score a run's model on data it has not learnt from; writes report.json and report.html.

Needs torch. What is measured is the recipe's business; it hands back an `Evaluation`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from headway.core.errors import BadInput, NotThere
from headway.spec.model import Cache, Data, Source
from headway.storage import fetch_file, local_path, open_store

SPLITS = ("train", "val", "test")
SAMPLES = "report_samples.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One input with the model's answer, for people to look at."""

    picture: bytes | None = None  # PNG
    given: str = ""  # what was asked, where it was text
    answer: str
    expected: tuple[str, ...]
    right: bool | None = None  # None where nothing can tell
    group: str = ""
    note: str = ""  # how good this one is, in a few words


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """More than a metric's one number: a row for each class, a confusion matrix. In both reports."""

    name: str  # its key in report.json
    title: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[str | float | None]]
    matrix: bool = False  # counts to be shaded; the first column says which class it was in truth


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """What is reached without learning anything from an input: metrics mean little without it."""

    words: str  # what it does: "always says grade 5"
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What a recipe found out about a model on one split."""

    data: str  # which data, in words
    count: int  # how many inputs
    metrics: Mapping[str, float]
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the same, for parts of the data
    examples: Sequence[Example] = ()  # taken in order, never picked
    best: Sequence[Example] = ()  # picked: those that went best, and …
    worst: Sequence[Example] = ()  # … those that went worst, the worst first
    baseline: Baseline | None = None
    tables: Sequence[Table] = ()
    samples: Mapping[str, Any] = field(default_factory=dict)  # by metric, what each input adds to it: for intervals


def evaluate(
    ref: str, *, checkpoint: str = "best", split: str = "test", data: str | None = None, root: str | None = None
) -> dict[str, Any]:
    """Measure a run's model, or a bundle's, on its own data or on what `data` names (see `evaluate_data`).

    A run gets both reports into its folder; a bundle is left as it is. Returns what report.json says, or would say.
    """
    if split not in SPLITS:
        raise BadInput(f"there is no split {split!r}", fix=f"choose one of {', '.join(SPLITS)}")
    if root is not None and data is None:
        raise BadInput("--root says where the pictures of a splits.json are", fix="--data splits.json --root DIR")
    if not is_bundle(ref):
        return _of_run(ref, checkpoint, split, data, root)
    if checkpoint != "best":
        raise BadInput(f"a bundle has one set of weights, and no checkpoint {checkpoint!r}", where=ref)
    return _of_bundle(ref, split, data, root)


def evaluate_run(run_url: str, *, checkpoint: str = "best", split: str = "test") -> dict[str, Any]:
    """The same, for a run on its own data."""
    return evaluate(run_url, checkpoint=checkpoint, split=split)


def _of_run(run_url: str, checkpoint: str, split: str, data: str | None, root: str | None) -> dict[str, Any]:
    from headway.artifacts.checkpoint_model import open_trained
    from headway.artifacts.report import write_report

    trained = open_trained(run_url, checkpoint)
    begun = time.monotonic()
    with named_data(data, root, split, trained.config, otherwise=trained.job.data) as read:
        found: Evaluation = trained.recipe.load("evaluate")(
            trained.model, trained.config, read, split, cache=_cache_here(trained.job.cache)
        )
    record = {
        "run": run_url.rstrip("/").rsplit("/", 1)[-1],
        "checkpoint": trained.checkpoint,
        "step": trained.step,
        "validation": dict(trained.scores),
        "environment": dict(trained.environment),
        **_record(trained.recipe.name, split, found, time.monotonic() - begun),
    }
    write_samples(run_url, record, found.samples)
    return write_report(run_url, record, found)


def _cache_here(cache: Cache) -> Cache:
    """The run's own where its folder is on this machine, else this machine's."""
    return cache if cache.dir is None or Path(cache.dir).expanduser().is_dir() else replace(cache, dir=None)


def _of_bundle(url: str, split: str, data: str | None, root: str | None) -> dict[str, Any]:
    from headway.bundle.format import Bundle
    from headway.plugins import RECIPES
    from headway.spec.model import Data

    bundle = Bundle.open(url)
    if bundle.recipe not in RECIPES:
        raise BadInput(f"this Headway has no recipe {bundle.recipe!r}", where=url, fix="use the one that exported it")
    recipe = RECIPES[bundle.recipe]
    predictor = recipe.load("predictor")(bundle)
    begun = time.monotonic()
    with named_data(data, root, split, predictor.config, otherwise=Data()) as read:
        found: Evaluation = recipe.load("evaluate")(predictor.model, predictor.config, read, split)
    return {
        "bundle": url,
        "validation": dict(bundle.metrics),
        **_record(recipe.name, split, found, time.monotonic() - begun),
    }


def _record(recipe: str, split: str, found: Evaluation, seconds: float) -> dict[str, Any]:
    return {
        "recipe": recipe,
        "split": split,
        "data": found.data,
        "count": found.count,
        "metrics": dict(found.metrics),
        "groups": {name: dict(values) for name, values in found.groups.items()},
        "baseline": None
        if found.baseline is None
        else {"words": found.baseline.words, "metrics": dict(found.baseline.metrics)},
        **{table.name: [dict(zip(table.head, row, strict=True)) for row in table.rows] for table in found.tables},
        "seconds": round(seconds, 3),
    }


def write_samples(run_url: str, record: Mapping[str, Any], samples: Mapping[str, Any]) -> None:
    """What each input adds to each metric, beside report.json: intervals and comparisons are drawn from it."""
    from headway.storage import open_store

    about = {name: record[name] for name in ("data", "split", "count", "step")}
    body = json.dumps({**about, "samples": samples}, sort_keys=True, separators=(",", ":")) + "\n"
    open_store(run_url).write(SAMPLES, body.encode())


def extremes(good: Sequence[float], count: int = 6) -> tuple[list[int], list[int]]:
    """Which inputs went best and which went worst, given how good each is; none is both."""
    order = sorted(range(len(good)), key=lambda row: (-good[row], row))
    count = min(count, len(order) // 2)
    return order[:count], order[len(order) - count :][::-1]


def is_bundle(ref: str) -> bool:
    """Whether a bundle lies there, and not a run."""
    from headway.bundle.format import RECORD
    from headway.core.errors import NotThere
    from headway.storage import open_store

    try:
        open_store(ref).stat(RECORD)
    except NotThere:
        return False
    return True


# What `headway eval --data` names: prepared data as it is, or a splits.json whose pictures are prepared for it.


PICTURES: Final = "pictures"  # where those of a splits.json lie while they are prepared
_SIDES: Final = ("front", "back")
_AT_ONCE: Final = 16  # pictures fetched at the same time
_ALIASES: Final = {"val": ("val", "valid", "validation", "dev"), "test": ("test", "testing"), "train": ("train",)}


@contextmanager
def named_data(data: str | None, root: str | None, split: str, config: Any, *, otherwise: Data) -> Iterator[Data]:
    """The data to read `split` from; where none is named, `otherwise`. Prepared pictures are gone afterwards."""
    if data is None:
        yield otherwise
    elif not data.endswith(".json"):
        if root is not None:
            raise BadInput("--root goes with a splits.json, and this is a folder", where=data, fix="leave out --root")
        yield _only(data, split)
    else:
        with tempfile.TemporaryDirectory(prefix="headway-eval-") as folder:
            yield _only(_prepared(data, root, split, config, Path(folder)), split)


def _only(source: str, split: str) -> Data:
    sources = (Source(source=source, split=split),)
    return Data(train=sources, val=sources, test=sources)


def _prepared(data: str, root: str | None, split: str, config: Any, folder: Path) -> str:
    """Whole pictures, squashed to the square that the model sees."""
    from headway.data.prepare.pipeline import PrepareOptions, prepare

    entries = _entries(data, split)
    base = root or data.rpartition("/")[0] or "."
    (folder / "source").mkdir()
    keys = {path: _key(path, base) for entry in entries for path in _named(entry)}
    _bring(set(keys.values()), base, folder / "source" / PICTURES)
    rows = [_moved(entry, keys) for entry in entries]
    (folder / "source" / "splits.json").write_text(json.dumps({split: rows}))
    to = str(folder / "shards")
    side = int(getattr(config, "side", 224))
    prepare(str(folder / "source"), to, size=side, encoding="raw", workers=1, wishes=PrepareOptions(fit="squash"))
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
        raise BadInput(f"{data} has no split {split!r}", fix=f"choose one of its own with --split: {known}")
    return listed[0]


def _named(entry: Any) -> list[str]:
    """The pictures of an entry, as it names them."""
    found = [entry.get(side) for side in _SIDES] if isinstance(entry, dict) else []
    return [path for path in found if isinstance(path, str)]


def _moved(entry: Any, keys: Mapping[str, str]) -> Any:
    """The entry with its pictures where they were brought to. Preparing says what else is wrong with it."""
    return (
        entry
        if not _named(entry)
        else {
            name: f"{PICTURES}/{keys[value]}" if name in _SIDES and isinstance(value, str) else value
            for name, value in entry.items()
        }
    )


def _bring(keys: Iterable[str], base: str, to: Path) -> None:
    """Linked where they lie here, else fetched, many at once. What is missing stays missing: preparing reports it."""
    here = local_path(base)

    def bring(key: str) -> None:
        place = to / key
        place.parent.mkdir(parents=True, exist_ok=True)
        if here is None:
            with suppress(NotThere):
                fetch_file(open_store(base), key, place)
        elif (here / key).is_file():
            place.symlink_to((here / key).resolve())

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(bring, sorted(keys)))


def _key(path: str, base: str) -> str:
    key = _relative(path, base)
    if ".." in PurePosixPath(key).parts or key.startswith("/"):
        raise BadInput(f"{path!r} leads outside of {base}", fix="say where the pictures are with --root")
    return key


def _relative(path: str, base: str) -> str:
    """Other tools write whole paths: accepted where they lie below the root."""
    for start in (f"{base.rstrip('/')}/", f"{local_path(base)}/"):
        if path.startswith(start):
            return path[len(start) :]
    return path
