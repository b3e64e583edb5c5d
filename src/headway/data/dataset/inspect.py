"""Inspect a prepared data set (statistics, exclusions, HTML report with thumbnails) and verify its file hashes.

Inspection reads the small columns of every shard of a local set, but only the first shard per split of a remote one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput, HeadwayError, NotThere
from headway.core.format import size
from headway.core.html import render
from headway.data.dataset.manifest import Manifest, OtherFile, ShardFile, read_manifest
from headway.data.dataset.shards import Shard
from headway.data.prepare.pipeline import DROPPED, DUPLICATES, TOKENIZER, WORDS
from headway.data.text import WordTokenizer, load_tokenizer, words
from headway.storage import Store, local_path, open_store
from headway.storage.transfer import fetch_file

_SHOWN = 48  # thumbnails on a split's contact sheet


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A thumbnail on the contact sheet: a small JPEG with its caption or class."""

    id: str
    jpeg: bytes
    caption: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitFacts:
    rows: int
    bytes: int
    shards: int
    sampled: bool = False  # the statistics below cover only the first shard
    classes: Mapping[str, int] = field(default_factory=dict)  # class -> rows
    captions: int = 0
    lengths: Mapping[int, int] = field(default_factory=dict)  # words per caption or sentence -> count
    sizes: Mapping[str, int] = field(default_factory=dict)  # megapixel bin of the original -> count
    sheet: tuple[Picture, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    url: str
    manifest: Manifest
    splits: Mapping[str, SplitFacts]
    vocabulary: int = 0  # distinct words in the training captions, or the tokenizer's vocabulary size
    common: tuple[tuple[str, int], ...] = ()  # the most frequent words
    unknown: float = 0.0  # share of training words outside a vocabulary with min_count=5
    duplicates: Mapping[str, int] = field(default_factory=dict)  # number of groups by kind: exact, near, across splits

    def page(self) -> str:

        return page(self)


def inspect(dest: str, *, pictures: int = _SHOWN) -> Inspection:
    """Collect the statistics of the data set at `dest`. Raises BadInput if its files do not hold what they should."""
    try:
        return _inspected(dest, pictures)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:  # also of pyarrow, Pillow
        if isinstance(error, HeadwayError):
            raise
        what = f"the data set is damaged: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise BadInput(what, where=dest, fix=f"headway data verify {dest}, or prepare the data again") from None


def _inspected(dest: str, pictures: int) -> Inspection:
    store, manifest = open_store(dest), read_manifest(dest)
    counts: dict[str, int] = json.loads(_read(store, WORDS) or b"{}")
    with _shards_of(dest, store) as (open_shard, read_all):
        splits = {
            split: _facts(manifest, shards, open_shard, read_all, pictures) for split, shards in manifest.splits.items()
        }
    tokenizer = _read(store, TOKENIZER)
    return Inspection(
        url=dest,
        manifest=manifest,
        splits=splits,
        vocabulary=len(load_tokenizer(tokenizer)) if tokenizer else len(counts),
        common=tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:30]),
        unknown=_unknown(counts),
        duplicates=_duplicates(store),
    )


def dropped(dest: str, *, reason: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows that preparation excluded, optionally only those with the given `reason`."""
    store = open_store(dest)
    for line in (_read(store, DROPPED) or b"").splitlines():
        found: dict[str, Any] = json.loads(line)
        if reason is None or found["reason"] == reason:
            yield found


@contextmanager
def _shards_of(dest: str, store: Store) -> Iterator[tuple[Any, bool]]:
    """Yield a function that opens a shard, and whether to read every shard (False if each must be downloaded)."""
    folder = local_path(dest)
    if folder is not None:
        yield (lambda manifest, shard: Shard(folder / shard.key, manifest.columns)), True
        return
    with tempfile.TemporaryDirectory(prefix="headway-inspect-") as scratch:

        def fetched(manifest: Manifest, shard: ShardFile) -> Shard:
            path = Path(scratch) / f"{shard.sha256}.arrow"
            if not path.exists():
                fetch_file(store, shard.key, path)
            return Shard(path, manifest.columns)

        yield fetched, False


def _facts(
    manifest: Manifest, shards: tuple[ShardFile, ...], open_shard: Any, read_all: bool, pictures: int
) -> SplitFacts:
    read = [open_shard(manifest, shard) for shard in (shards if read_all else shards[:1])]
    lengths, captions = _lengths(manifest, read)
    return SplitFacts(
        rows=sum(shard.rows for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        shards=len(shards),
        sampled=len(read) < len(shards),
        classes=_balance(manifest, read),
        captions=captions,
        lengths=lengths,
        sizes=_sizes(manifest, read),
        sheet=tuple(_sheet(manifest, read, pictures)),
    )


def _balance(manifest: Manifest, shards: list[Shard]) -> dict[str, int]:
    if not manifest.classes:
        return {}
    total = np.zeros(len(manifest.classes), np.int64)
    for shard in shards:
        total += np.bincount(_numbers(shard, "label"), minlength=len(manifest.classes))
    return dict(zip(manifest.classes, total.tolist(), strict=True))


def _numbers(shard: Shard, column: str) -> NDArray[np.int64]:
    cells: Any = shard.cells(column)
    return np.asarray(cells.view, dtype=np.int64)


def _lengths(manifest: Manifest, shards: list[Shard]) -> tuple[dict[int, int], int]:
    counted: Counter[int] = Counter()
    column = {"captions": "captions", "translation": "source"}.get(manifest.task)
    for shard in shards if column else ():
        cells = shard.cells(column or "")
        for row in range(len(shard)):
            texts = cells[row] if column == "captions" else [cells[row]]
            counted.update(len(words(text)) for text in texts)
    return dict(sorted(counted.items())), sum(counted.values()) if column == "captions" else 0


def _sizes(manifest: Manifest, shards: list[Shard]) -> dict[str, int]:
    if "width" not in {column.name for column in manifest.columns}:
        return {}
    counted: Counter[str] = Counter()
    for shard in shards:
        megapixels = _numbers(shard, "width") * _numbers(shard, "height") / 1e6
        bins = np.digitize(megapixels, [0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20])
        counted.update(_MEGAPIXELS[number] for number in bins.tolist())
    return {name: counted[name] for name in _MEGAPIXELS if counted[name]}


_MEGAPIXELS = ("< 0.05", "0.05–0.1", "0.1–0.25", "0.25–0.5", "0.5–1", "1–2", "2–5", "5–10", "10–20", "> 20")


def _sheet(manifest: Manifest, shards: list[Shard], most: int) -> Iterator[Picture]:
    """Yield thumbnails at evenly spaced rows."""
    columns = [column for column in manifest.columns if column.kind == "picture"]
    total = sum(len(shard) for shard in shards)
    if not columns or not total:
        return
    starts = np.cumsum([0, *(len(shard) for shard in shards)])
    for row in np.unique(np.linspace(0, total - 1, min(most, total)).astype(np.int64)).tolist():
        number = int(np.searchsorted(starts, row, side="right")) - 1
        shard, inside = shards[number], row - int(starts[number])
        yield Picture(
            id=shard.cells("id")[inside],
            jpeg=_thumbnail([shard.cells(column.name)[inside] for column in columns]),
            caption=_caption(manifest, shard, inside),
        )


def _thumbnail(cells: list[Any]) -> bytes:
    from headway.data.prepare.images import Shape, decode, encode_jpeg

    made = []
    for cell in cells:
        body = cell if isinstance(cell, memoryview) else encode_jpeg(np.asarray(cell), 95)
        made.append(decode(body, Shape(112, "pad")).pixels)
    return encode_jpeg(np.concatenate(made, axis=1), 80)


def _caption(manifest: Manifest, shard: Shard, row: int) -> str:
    if manifest.task == "captions":
        return str(shard.cells("captions")[row][0])
    return manifest.classes[shard.cells("label")[row]] if manifest.classes else ""


def _unknown(counts: Mapping[str, int]) -> float:
    total = sum(counts.values())
    kept = set(WordTokenizer.from_counts(counts, min_count=5).words)
    return sum(count for word, count in counts.items() if word not in kept) / total if total else 0.0


def _duplicates(store: Store) -> dict[str, int]:
    found: Counter[str] = Counter()
    for line in (_read(store, DUPLICATES) or b"").splitlines():
        group = json.loads(line)
        found[group["kind"]] += 1
        found["across splits"] += bool(group["across_splits"])
    return dict(found)


def _read(store: Store, key: str) -> bytes | None:
    try:
        return store.read(key)
    except NotThere:
        return None


# HTML report


_BARS = 40  # maximum bars per chart


def page(inspection: Inspection) -> str:
    manifest = inspection.manifest
    return render(
        "headway.data.dataset",
        "inspect.html",
        name=manifest.name,
        task=manifest.task,
        url=inspection.url,
        fingerprint=manifest.fingerprint,
        dropped=_bars(manifest.dropped),
        duplicates=", ".join(f"{count} {kind}" for kind, count in inspection.duplicates.items()),
        vocabulary=_vocabulary(inspection),
        common=_bars(dict(inspection.common)) if inspection.vocabulary else {},
        splits=[_split(name, facts) for name, facts in inspection.splits.items()],
    )


def _vocabulary(inspection: Inspection) -> str:
    if not inspection.vocabulary:
        return ""
    words = f"{inspection.vocabulary:,} words"
    if not inspection.common:
        return words
    return f"{words} in the training captions; {inspection.unknown:.2%} of the words occur fewer than five times"


def _split(name: str, facts: SplitFacts) -> dict[str, Any]:
    charts = (
        ("Classes", facts.classes),
        ("Words in a text", {str(length): count for length, count in facts.lengths.items()}),
        ("Megapixels of the originals", facts.sizes),
    )
    captions = f"{facts.captions:,}" if facts.captions else ""
    return {
        "name": name,
        "numbers": (f"{facts.rows:,}", captions, f"{facts.shards:,}", size(facts.bytes)),
        "sampled": facts.sampled,
        "sheet": [
            {"id": shown.id, "caption": shown.caption[:120], "jpeg": base64.b64encode(shown.jpeg).decode()}
            for shown in facts.sheet
        ],
        "charts": [(title, _bars(counts)) for title, counts in charts if counts],
    }


def _bars(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return a bar chart of the first counts, or an empty dictionary if there are none."""
    if not counts:
        return {}
    shown = dict(list(counts.items())[:_BARS])
    most = max(shown.values()) or 1
    bars = [
        {"name": name, "percent": f"{100 * count / most:.1f}", "count": f"{count:,}"} for name, count in shown.items()
    ]
    return {"bars": bars, "more": max(0, len(counts) - _BARS)}


# Verification: hash every file again. Costs one full read of the data.


_SPAN = 16 << 20

Progress = Callable[[str, int, int], None]  # file key, bytes done, total bytes


@dataclass(frozen=True, slots=True)
class FileDamage:
    key: str
    what: str


@dataclass(frozen=True, slots=True)
class VerifyResult:
    manifest: Manifest
    files: int
    bytes: int
    damage: tuple[FileDamage, ...]

    @property
    def intact(self) -> bool:
        return not self.damage


def verify(dest: str, *, progress: Progress | None = None) -> VerifyResult:
    """Check every shard and file of the data set at `dest` against its manifest.

    Raises BadInput if there is no manifest.
    """
    store, manifest = open_store(dest), read_manifest(dest)
    wanted = list(_files(manifest))
    total, done = sum(file.bytes for file in wanted), 0
    damage: list[FileDamage] = []
    for file in wanted:
        what = _problems_of(store, file)
        if what:
            damage.append(FileDamage(file.key, what))
        done += file.bytes
        if progress is not None:
            progress(file.key, done, total)
    listed = {file.key for file in wanted}
    strays = [entry.key for entry in store.list("shards/") if entry.key not in listed]
    damage += [FileDamage(key, "is not in the manifest") for key in strays]
    return VerifyResult(manifest, len(wanted), total, tuple(damage))


def _files(manifest: Manifest) -> Iterator[ShardFile | OtherFile]:
    for shards in manifest.splits.values():
        yield from shards
    yield from manifest.files


def _problems_of(store: Store, file: ShardFile | OtherFile) -> str:
    try:
        size = store.stat(file.key).size
        if size != file.bytes:
            return f"has {size:,} bytes instead of {file.bytes:,}"
        digest = hashlib.sha256()
        for start in range(0, size, _SPAN):
            digest.update(store.read(file.key, (start, min(start + _SPAN, size))))
    except NotThere:
        return "is missing"
    return "" if digest.hexdigest() == file.sha256 else "does not match its hash"
