"""What is in a prepared data set, and what is not and why: in numbers, and as one page with pictures.

Reads the small columns of every shard that lies here; of a remote set, the first shard of each split.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.clean import words
from headway.data.finish import DROPPED, DUPLICATES, TOKENIZER, WORDS
from headway.data.manifest import Manifest, ShardFile, read_manifest
from headway.data.shards import Shard
from headway.data.text import WordTokenizer, load_tokenizer
from headway.errors import NotThere
from headway.storage import Store, local_path, open_store
from headway.storage.transfer import fetch_file

_SHOWN = 48  # pictures on the contact sheet of a split


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """One on the contact sheet: a small JPEG and what belongs to it."""

    id: str
    jpeg: bytes
    said: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitFacts:
    rows: int
    bytes: int
    shards: int
    sampled: bool = False  # the numbers below are of a part
    classes: Mapping[str, int] = field(default_factory=dict)  # class -> rows
    captions: int = 0
    lengths: Mapping[int, int] = field(default_factory=dict)  # words of a caption or sentence -> how many
    sizes: Mapping[str, int] = field(default_factory=dict)  # original width × height, rounded -> how many
    sheet: tuple[Picture, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    url: str
    manifest: Manifest
    splits: Mapping[str, SplitFacts]
    vocabulary: int = 0  # words seen in training captions, or subwords of the tokenizer
    common: tuple[tuple[str, int], ...] = ()  # the commonest words
    unknown: float = 0.0  # share of training words that a vocabulary of words seen five times lacks
    duplicates: Mapping[str, int] = field(default_factory=dict)  # groups: exact, near, across splits

    def page(self) -> str:
        from headway.data.page import page

        return page(self)


def inspect(dest: str, *, pictures: int = _SHOWN) -> Inspection:
    """Everything worth knowing about the data set at `dest`."""
    store, manifest = open_store(dest), read_manifest(dest)
    counts: dict[str, int] = json.loads(_read(store, WORDS) or b"{}")
    with _shards_of(dest, store) as (opened, everything):
        splits = {
            split: _facts(manifest, shards, opened, everything, pictures) for split, shards in manifest.splits.items()
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
    """What was left out, row by row; `reason` chooses."""
    store = open_store(dest)
    for line in (_read(store, DROPPED) or b"").splitlines():
        found: dict[str, Any] = json.loads(line)
        if reason is None or found["reason"] == reason:
            yield found


@contextmanager
def _shards_of(dest: str, store: Store) -> Iterator[tuple[Any, bool]]:
    """How to open a shard, and whether all of them are to be: those of an object store would have to be fetched."""
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
    manifest: Manifest, shards: tuple[ShardFile, ...], opened: Any, everything: bool, pictures: int
) -> SplitFacts:
    read = [opened(manifest, shard) for shard in (shards if everything else shards[:1])]
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
    """Pictures spread evenly over the rows."""
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
            said=_said(manifest, shard, inside),
        )


def _thumbnail(cells: list[Any]) -> bytes:
    from headway.data.pictures import Shape, decode, encode_jpeg

    made = []
    for cell in cells:
        body = cell if isinstance(cell, memoryview) else encode_jpeg(np.asarray(cell), 95)
        made.append(decode(body, Shape(112, "pad")).pixels)
    return encode_jpeg(np.concatenate(made, axis=1), 80)


def _said(manifest: Manifest, shard: Shard, row: int) -> str:
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
