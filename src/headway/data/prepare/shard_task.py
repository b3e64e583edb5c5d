"""Turn one chunk of rows into one shard: the unit of work distributed to processes and machines.

Idempotent: the same rows and settings give the same bytes on every worker. The shard is written first, its receipt
after it; a chunk without a receipt is done again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from headway.core.errors import NotThere
from headway.data.dataset.manifest import Column, ShardFile
from headway.data.dataset.shards import shard_bytes
from headway.data.prepare.images import MAX_PIXELS, BadPicture, Fit, Shape, decode, encode_jpeg, perceptual_hash
from headway.data.prepare.staging import ExcludedRow
from headway.data.readers.base import Task
from headway.data.text import Rules, caption_exclusion, load_tokenizer, normalised, pair_exclusion, split_words
from headway.storage import Store, open_store

PIPELINE = 2  # increment when the same settings would give different bytes
_RAW_SHARD, _JPEG_SHARD = 64 << 20, 16 << 20  # target size in bytes
_TEXT_ROWS, _PICTURE_ROWS = 20_000, 512  # upper limits, so that small sets also keep many workers busy


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSettings:
    """Everything besides the rows that determines a shard's bytes."""

    task: Task
    pictures: tuple[str, ...] = ()  # names of the picture columns
    size: int | None = 256
    fit: Fit = "short"
    encoding: Literal["jpeg", "raw"] = "jpeg"
    quality: int = 90
    max_pixels: int = MAX_PIXELS
    rules: Rules = field(default_factory=Rules)
    classes: tuple[str, ...] = ()
    tokenizer: str = ""  # JSON, for translation
    numbers: Mapping[str, int] = field(default_factory=dict)  # column name -> numbers per row
    made_with: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        plain = asdict(self) | {"pipeline": PIPELINE}
        if not self.numbers:
            del plain["numbers"]  # absent in older versions: keeps existing data sets valid
        return json.dumps(plain, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ShardSettings:
        raw = json.loads(text)
        del raw["pipeline"]
        raw["pictures"], raw["classes"] = tuple(raw["pictures"]), tuple(raw["classes"])
        return cls(rules=Rules(**raw.pop("rules")), **raw)

    @property
    def columns(self) -> tuple[Column, ...]:
        side = self.size or 0
        raw = {"height": side, "width": side} if self.encoding == "raw" else {}
        found = [Column(name="id", kind="text")]
        found += [Column(name=name, kind="picture", encoding=self.encoding, **raw) for name in self.pictures]
        if self.pictures == ("picture",):
            found += [Column(name="width", kind="integer"), Column(name="height", kind="integer")]
        if self.task == "captions":
            found += [Column(name="captions", kind="texts")]
        elif self.task == "translation":
            found += [Column(name=name, kind="text") for name in ("source", "target")]
            found += [Column(name=name, kind="integers") for name in ("source_ids", "target_ids")]
        else:
            found += [Column(name="label", kind="integer")]
        return (*found, *(Column(name=name, kind="numbers") for name in self.numbers))

    @property
    def rows_per_shard(self) -> int:
        """Rows per shard. Depends on the settings only, never on the number of workers."""
        if not self.pictures:
            return _TEXT_ROWS
        if self.encoding == "raw":
            row, target_bytes = (self.size or 0) ** 2 * 3 * len(self.pictures), _RAW_SHARD
        else:
            row, target_bytes = (self.size or 512) ** 2 // 2 * len(self.pictures), _JPEG_SHARD
        return max(16, min(_PICTURE_ROWS, target_bytes // max(1, row)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    split: str
    number: int
    rows: list[dict[str, Any]]
    doomed: dict[str, str] = field(default_factory=dict)  # row -> reason to drop it, found by comparing all chunks

    @property
    def name(self) -> str:
        return f"{self.split or 'all'}-{self.number:05d}"

    def to_json(self) -> str:
        # Not asdict, which copies every row: this runs twice per chunk before the work starts.
        plain = {"split": self.split, "number": self.number, "rows": self.rows, "doomed": self.doomed}
        return json.dumps(plain, sort_keys=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardReport:
    """The receipt of a chunk. `proof` is a hash of its rows and the settings: if it differs, the shard is stale."""

    chunk: str
    split: str
    number: int
    proof: str
    rows: int  # number of input rows
    shard: ShardFile | None
    dropped: list[ExcludedRow]
    hashes: list[tuple[str, int, int | None]]
    words: dict[str, int]

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> ShardReport:
        raw = json.loads(text)
        shard = raw.pop("shard")
        return cls(
            shard=ShardFile(**shard) if shard else None,
            dropped=[ExcludedRow(**line) for line in raw.pop("dropped")],
            hashes=[(row, exact, near) for row, exact, near in raw.pop("hashes")],
            **raw,
        )


def proof_of(settings: str, chunk: str) -> str:
    return hashlib.sha256(f"{settings}\n{chunk}".encode()).hexdigest()


def receipt_key(chunk: str) -> str:
    return f"receipts/{chunk}.json"


def make_shard(task_input: str) -> str:
    """Make one shard from an order and return its receipt, both JSON. Runs in any process that reaches both stores."""
    task = json.loads(task_input)
    settings, chunk = ShardSettings.from_json(task["settings"]), Chunk(**json.loads(task["chunk"]))
    source, dest = _store(task["source"]), _store(task["dest"])
    builder = _ShardBuilder(settings, chunk, source).build()
    shard = None
    if builder.rows:
        written = shard_bytes(settings.columns, builder.values)
        key = f"shards/{chunk.name}.arrow"
        dest.write(key, written.body)
        shard = ShardFile(key=key, rows=written.rows, bytes=written.body.nbytes, sha256=written.sha256)
    report = ShardReport(
        chunk=chunk.name,
        split=chunk.split,
        number=chunk.number,
        proof=proof_of(task["settings"], task["chunk"]),
        rows=len(chunk.rows),
        shard=shard,
        dropped=builder.dropped,
        hashes=builder.hashes,
        words=dict(sorted(builder.words.items())),
    ).to_json()
    dest.write(receipt_key(chunk.name), report.encode())
    return report


@lru_cache(maxsize=8)
def _store(url: str) -> Store:
    return open_store(url)


@lru_cache(maxsize=2)
def _tokenizer(text: str) -> Any:
    return load_tokenizer(text)


def _nan_filled(values: Sequence[float | None] | None, count: int) -> list[float]:
    """Replace missing values by NaN."""
    return [math.nan if value is None else value for value in values or [None] * count]


class _ShardBuilder:
    """Builds the columns of a shard row by row."""

    def __init__(self, settings: ShardSettings, chunk: Chunk, source: Store) -> None:
        self._settings, self._chunk, self._source = settings, chunk, source
        self._shape = Shape(settings.size, settings.fit)
        self._classes = {name: number for number, name in enumerate(settings.classes)}
        self._raw = settings.encoding == "raw"
        self.values: dict[str, Any] = {column.name: [] for column in settings.columns}
        if self._raw:
            for column in settings.columns:
                if column.kind == "picture":
                    self.values[column.name] = np.empty((len(chunk.rows), column.raw_bytes), np.uint8)
        self.rows = 0
        self.dropped: list[ExcludedRow] = []
        self.hashes: list[tuple[str, int, int | None]] = []
        self.words: Counter[str] = Counter()

    def build(self) -> _ShardBuilder:
        for row in self._chunk.rows:
            if row["id"] in self._chunk.doomed:
                self._exclude(row, "duplicate of another split", self._chunk.doomed[row["id"]], fault=False)
                continue
            texts = self._texts(row)
            pictures = None if texts is None else self._pictures(row)
            if texts is not None and pictures is not None:
                self._add_row(row, texts, pictures)
        for name in self._settings.pictures:
            if self._raw:
                self.values[name] = self.values[name][: self.rows]
        return self

    def _add_row(self, row: dict[str, Any], texts: dict[str, Any], pictures: dict[str, tuple[Any, Any]]) -> None:
        self.values["id"].append(row["id"])
        for name, value in texts.items():
            self.values[name].append(value)
        for name, count in self._settings.numbers.items():
            self.values[name].append(_nan_filled(row.get("numbers", {}).get(name), count))
        for name, (stored, _) in pictures.items():
            if self._raw:
                self.values[name][self.rows] = stored.reshape(-1)
            else:
                self.values[name].append(stored)
        if "width" in self.values:
            _, decoded = pictures["picture"]
            self.values["width"].append(decoded.width)
            self.values["height"].append(decoded.height)
        self.rows += 1

    def _texts(self, row: dict[str, Any]) -> dict[str, Any] | None:
        if self._settings.task == "captions":
            return self._captions(row)
        if self._settings.task == "translation":
            return self._sentences(row)
        label = row["label"]
        if label not in self._classes:
            self._exclude(row, "unknown class", repr(label), fault=True)
            return None
        return {"label": self._classes[label]}

    def _captions(self, row: dict[str, Any]) -> dict[str, Any] | None:
        kept: list[str] = []
        for text, flag in row["captions"]:
            clean = normalised(text)
            why = caption_exclusion(clean, flag, self._settings.rules)
            if why is None:
                kept.append(clean)
            else:
                self._exclude(row, why.reason, why.detail, fault=why.fault)
        if not kept:
            self._exclude(row, "no caption left" if row["captions"] else "no caption", fault=False)
            return None
        if self._chunk.split == "train":
            for text in kept:
                self.words.update(split_words(text))
        return {"captions": kept}

    def _sentences(self, row: dict[str, Any]) -> dict[str, Any] | None:
        source, target = (normalised(row["texts"][side]) for side in ("source", "target"))
        why = pair_exclusion(source, target, self._settings.rules)
        if why is not None:
            self._exclude(row, why.reason, why.detail, fault=why.fault)
            return None
        encode = _tokenizer(self._settings.tokenizer).encode
        return {"source": source, "target": target, "source_ids": encode(source), "target_ids": encode(target)}

    def _pictures(self, row: dict[str, Any]) -> dict[str, tuple[Any, Any]] | None:
        made: dict[str, tuple[Any, Any]] = {}
        hashes = []
        for name in self._settings.pictures:
            key = row["pictures"][name]
            try:
                body = self._source.read(key)
                decoded = decode(body, self._shape, max_pixels=self._settings.max_pixels)
            except NotThere:
                self._exclude(row, "picture missing", key, fault=True)
                return None
            except BadPicture as error:
                self._exclude(row, "picture unreadable", f"{key}: {error}", fault=True)
                return None
            stored = decoded.pixels if self._raw else encode_jpeg(decoded.pixels, self._settings.quality)
            made[name] = (stored, decoded)
            exact = int.from_bytes(hashlib.sha256(body).digest()[:8], "big")
            hashes.append((row["id"], exact, perceptual_hash(decoded.pixels)))
        self.hashes += hashes
        return made

    def _exclude(self, row: dict[str, Any], reason: str, detail: str = "", *, fault: bool) -> None:
        line = ExcludedRow(row=row["id"], split=self._chunk.split, reason=reason, detail=detail, fault=fault)
        self.dropped.append(line)
