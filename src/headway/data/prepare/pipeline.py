"""Prepare a data set: read a source, split, clean, decode, and write shards. Resumable after a kill.

Annotations are read into a scratch file; rows are split and cut into chunks whose bounds depend on the rows and the
settings alone; workers turn each chunk into a shard and a receipt (ShardReport); the receipts become the report and,
last of all, the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headway.core.errors import BadInput, DiskFull, NotThere
from headway.data.dataset.manifest import NAME, Manifest, OtherFile, ShardFile, read_manifest
from headway.data.download.http import Login
from headway.data.download.resolve import KnownDataset, resolve
from headway.data.prepare.executor import run, usable_cores
from headway.data.prepare.images import FITS, MAX_PIXELS, Fit
from headway.data.prepare.quality import Threshold, TooManyBadRows, check, equal_groups, similar_groups
from headway.data.prepare.shard_task import Chunk, ShardReport, ShardSettings, make_shard, receipt_key
from headway.data.prepare.split import DEFAULT, ChunkPlan, drop_leaks, split_rows
from headway.data.prepare.staging import RowStore, made_with, scratch_for
from headway.data.readers.base import Reader
from headway.data.readers.detect import reader_for
from headway.data.readers.files import Tree
from headway.data.text import BpeTokenizer, Rules, normalised, pair_exclusion
from headway.storage import Store, join, local_path, open_store

# Finalization: turn the receipts into a report, the files beside the shards, and the manifest.


DROPPED, DUPLICATES, WORDS, TOKENIZER = "dropped.jsonl", "duplicates.jsonl", "words.json", "tokenizer.json"
_RANK = {"test": 2, "val": 1}  # a picture in two splits stays in the evaluation split


class ShardIndex:
    """Index of the finished shards. Per-row details go to the staging file; only shard entries stay in memory."""

    def __init__(self, staging: RowStore) -> None:
        self._staging = staging
        self._shards: dict[str, tuple[str, ShardFile | None]] = {}
        self.rows = 0

    def add(self, receipt: ShardReport) -> None:
        """Record a receipt. A chunk that was made again replaces its earlier entry."""
        if receipt.chunk in self._shards:
            self._staging.delete_chunk(receipt.chunk)
        else:
            self.rows += receipt.rows
        self._shards[receipt.chunk] = (receipt.split, receipt.shard)
        self._staging.record_excluded(receipt.dropped, receipt.chunk)
        self._staging.add_chunk_stats(receipt.chunk, receipt.split, receipt.hashes, receipt.words)

    def splits(self, names: Iterable[str]) -> dict[str, tuple[ShardFile, ...]]:
        found: dict[str, list[ShardFile]] = {name: [] for name in names}
        for _, (split, shard) in sorted(self._shards.items()):
            if shard is not None:
                found[split].append(shard)
        return {split: tuple(shards) for split, shards in found.items()}


class DuplicateReport:
    """Groups of duplicate pictures: identical files anywhere, or perceptually similar ones in different splits."""

    def __init__(self, staging: RowStore) -> None:
        self._staging = staging
        columns = array("q"), array("q"), array("q"), array("q"), array("q")
        codes: dict[str, int] = {}
        for number, exact, near, split in staging.hashes():
            values = (number, exact, near or 0, near is not None, codes.setdefault(split, len(codes)))
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        numbers, files, looks, textured, splits = (np.array(column, dtype=np.int64) for column in columns)
        self.exact = [self._named(numbers[group]) for group in equal_groups(files.view(np.uint64))]
        shown = np.flatnonzero(textured)  # flat pictures all look alike, so their hashes mean nothing
        groups = (shown[group] for group in similar_groups(looks[shown].view(np.uint64)))
        self.near = [self._named(numbers[group]) for group in groups if len(np.unique(splits[group])) > 1]

    def _named(self, numbers: Any) -> list[tuple[str, str, str]]:
        return sorted({self._staging.picture_at(int(number)) for number in numbers}, key=lambda m: (m[2], m[1], m[0]))

    def lines(self) -> Iterator[dict[str, Any]]:
        for kind, groups in (("exact", self.exact), ("near", self.near)):
            for group in sorted(groups, key=lambda members: [member[1:] for member in members]):
                rows = [{"row": row, "split": split} for _, row, split in group]
                yield {"kind": kind, "across_splits": len({split for *_, split in group}) > 1, "rows": rows}

    def rows_to_drop(self) -> dict[str, dict[str, str]]:
        """Return chunk -> row -> reason for rows that val or test also contains (train < val < test)."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for kind, groups in (("the same file as", self.exact), ("looks like", self.near)):
            for group in groups:
                keep = max(group, key=lambda member: _RANK.get(member[2], 0))
                for chunk, row, split in group:
                    if _RANK.get(split, 0) < _RANK.get(keep[2], 0):
                        found[chunk].setdefault(row, f"{kind} {keep[1]} of {keep[2]}")
        return dict(found)


def finish(
    dest: Store, manifest: Manifest, index: ShardIndex, staging: RowStore, duplicates: DuplicateReport, scratch: Path
) -> Manifest:
    """Write all files beside the shards, the manifest last; then delete the preparation's intermediate files."""
    files = [
        _send_lines(dest, DROPPED, (asdict(line) for line in staging.dropped()), scratch),
        _send_lines(dest, DUPLICATES, duplicates.lines(), scratch),
    ]
    if manifest.task == "captions":
        files.append(_send(dest, WORDS, _words(staging)))
    done = replace(
        manifest,
        splits=index.splits(manifest.splits),
        dropped=staging.reasons(),
        files=(*manifest.files, *files),
    )
    dest.write(NAME, done.to_json().encode())
    _delete_stale(dest, done)
    return done


def send_report(dest: Store, staging: RowStore, scratch: Path) -> None:
    """Write the report of rows dropped so far, so that the user can see why there were too many."""
    _send_lines(dest, DROPPED, (asdict(line) for line in staging.dropped()), scratch)


def _words(staging: RowStore) -> bytes:
    total: Counter[str] = Counter()
    for counted in staging.words():
        total.update(counted)
    ordered = dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
    return (json.dumps(ordered, ensure_ascii=False, indent=0) + "\n").encode()


def _send_lines(dest: Store, key: str, lines: Iterable[dict[str, Any]], scratch: Path) -> OtherFile:
    path, digest, size = scratch / key, hashlib.sha256(), 0
    with path.open("wb") as file:
        for line in lines:
            text = (json.dumps(line, ensure_ascii=False) + "\n").encode()
            digest.update(text)
            size += file.write(text)
    dest.write(key, path)
    return OtherFile(key=key, bytes=size, sha256=digest.hexdigest())


def _send(dest: Store, key: str, body: bytes) -> OtherFile:
    dest.write(key, body)
    return OtherFile(key=key, bytes=len(body), sha256=hashlib.sha256(body).hexdigest())


def send_tokenizer(dest: Store, text: str) -> OtherFile:
    return _send(dest, TOKENIZER, text.encode())


def _delete_stale(dest: Store, manifest: Manifest) -> None:
    """Delete the receipts, and stale shards of an earlier preparation that are not in the manifest."""
    wanted = {shard.key for shards in manifest.splits.values() for shard in shards}
    stale = [entry.key for entry in dest.list("shards/") if entry.key not in wanted]
    for key in [*stale, *(entry.key for entry in dest.list("receipts/"))]:
        dest.delete(key)
    folder = local_path(dest.url)
    if folder is not None:
        with suppress(OSError):  # not empty: it holds files that are not ours
            (folder / "receipts").rmdir()


Progress = Callable[[str, int, int], None]  # stage, amount done, total
Encoding = Literal["jpeg", "raw"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareOptions:
    """Optional settings of a preparation."""

    format: str | None = None  # reader to use; by default detected from the files
    year: str | None = None  # COCO: 2014 or 2017
    languages: tuple[str, str] | None = None  # parallel text: source, target
    fit: Fit | None = None  # default: `short` for JPEG, `crop` for raw pixels, `squash` for graded pictures
    quality: int = 90
    max_pixels: int = MAX_PIXELS
    rules: Rules = field(default_factory=Rules)
    splits: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT))  # used if the source defines none
    seed: int = 0  # for those splits
    duplicates: Literal["report", "drop"] = "report"  # or drop rows of train that are duplicates of val or test
    bpe_size: int = 8000
    name: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Result of a preparation."""

    url: str
    manifest: Manifest
    seconds: float
    chunks: int = 0
    kept: int = 0  # chunks reused from an earlier start; all of them if nothing was left to do
    bad_rows: int = 0
    duplicate_groups: Mapping[str, int] = field(default_factory=dict)  # duplicate groups by kind: exact, near

    @property
    def rows(self) -> dict[str, int]:
        return {split: self.manifest.rows(split) for split in self.manifest.splits}

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shards in self.manifest.splits.values() for shard in shards)


def prepare(
    source: str,
    to: str,
    *,
    size: int | None = 256,
    encoding: Encoding = "jpeg",
    workers: int | None = None,
    dask: str | None = None,
    max_bad: str | float = "1%",
    options: PrepareOptions | None = None,
    overwrite: bool = False,
    login: Login | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Prepare `source` (a folder, an archive, a URL, an object store or a known name) as shards at `to`.

    Resumes an interrupted preparation from its finished chunks, and leaves a complete data set as it is. Raises
    TooMuchBad if more than `max_bad` rows are bad. Runs on `workers` local processes, or on the Dask scheduler at
    `dask`.
    """
    options, report = options or PrepareOptions(), progress or _no_progress
    _check(size, encoding, workers, options)
    limit = Threshold.parse(max_bad)
    found = resolve(source, login=login, progress=lambda name, *sizes: report(f"fetching {name}", *sizes))
    _check_no_overlap(found.url, to)
    with scratch_for(to) as scratch, _disk_full_mapped(scratch):
        tree = Tree(found.url, scratch)
        options = _with_known_defaults(options, found.known, source)
        reader = reader_for(tree, options.format, year=options.year, languages=options.languages)
        staging = RowStore(scratch / "rows.sqlite")
        job = _Preparation(tree, reader, staging, open_store(to), scratch, options, limit, report)
        job.read()
        plan = ChunkPlan(staging, job.settings(size, encoding), tree, to)
        before = job.existing(plan, overwrite)
        if before is not None:
            chunks = len(plan.proofs)
            return Summary(url=to, manifest=before, seconds=job.seconds, chunks=chunks, kept=chunks)
        return job.make(plan, workers or usable_cores(), dask)


class _Preparation:
    """One preparation, from rows to manifest."""

    def __init__(
        self,
        tree: Tree,
        reader: Reader,
        staging: RowStore,
        dest: Store,
        scratch: Path,
        options: PrepareOptions,
        limit: Threshold,
        progress: Progress,
    ) -> None:
        self._tree, self._reader, self._staging, self._dest = tree, reader, staging, dest
        self._scratch, self._options, self._limit, self._progress = scratch, options, limit, progress
        self._began, self._kept, self._total = time.monotonic(), 0, 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def read(self) -> None:
        self._progress(f"reading {self._reader.name}", 0, 0)
        self._staging.add_all(self._reader.read_rows())
        self._total = self._staging.count() + self._staging.bad_rows()
        if not self._staging.count():
            self._check_bad_rows()
            raise BadInput(f"there are no rows in {self._tree.url}", fix="check the folder, or choose a --format")
        self._staging.index()
        split_rows(self._staging, self._options.splits, self._options.seed)
        drop_leaks(self._staging)
        self._check_bad_rows()

    def settings(self, size: int | None, encoding: Encoding) -> ShardSettings:
        task = self._reader.task
        tokenizer = self._bpe() if task == "translation" else ""
        classes = _classes(self._staging.labels(), task) if task in ("classes", "grades") else ()
        columns = {"translation": (), "grades": self._staging.picture_columns()}.get(task, ("picture",))
        return ShardSettings(
            task=task,
            pictures=columns,
            size=size,
            fit=self._options.fit or _default_fit(task, encoding),
            encoding=encoding,
            quality=self._options.quality,
            max_pixels=self._options.max_pixels,
            rules=self._options.rules,
            classes=classes,
            tokenizer=tokenizer,
            numbers=self._staging.number_columns,
            made_with=made_with(),
        )

    def existing(self, plan: ChunkPlan, overwrite: bool) -> Manifest | None:
        """Return the manifest at the destination if it has the same rows and settings.

        Raises BadInput for a different data set, unless `overwrite` is set.
        """
        try:
            manifest = read_manifest(self._dest.url, self._dest)
        except BadInput:
            return None  # there is no manifest, or a damaged one
        if manifest.settings.get("proof") == self._proof(plan):
            return manifest
        if not overwrite:
            raise BadInput(
                f"{self._dest.url} already contains a data set with other rows or other settings",
                fix="choose another folder, or replace it with --overwrite",
            )
        self._dest.delete(NAME)  # from here until the new manifest is written, there is no data set
        return None

    def make(self, plan: ChunkPlan, workers: int, dask: str | None) -> Summary:
        index = ShardIndex(self._staging)
        self._make_shards(plan, plan.chunks(), index, workers, dask)
        self._progress("looking for duplicates", 0, 0)
        duplicates = DuplicateReport(self._staging)
        to_drop = duplicates.rows_to_drop() if self._options.duplicates == "drop" else {}
        if to_drop:
            self._make_shards(plan, plan.chunks(to_drop), index, workers, dask)
        self._require_rows(index)
        tokenizer = plan.settings.tokenizer
        manifest = Manifest(
            name=self._options.name or "data",
            task=plan.settings.task,
            columns=plan.settings.columns,
            splits=dict.fromkeys(self._staging.splits(), ()),
            classes=plan.settings.classes,
            files=(send_tokenizer(self._dest, tokenizer),) if tokenizer else (),
            settings=self._recorded_settings(plan),
            made_with=plan.settings.made_with,
        )
        return Summary(
            url=self._dest.url,
            manifest=finish(self._dest, manifest, index, self._staging, duplicates, self._scratch),
            seconds=self.seconds,
            chunks=len(plan.proofs),
            kept=self._kept,
            bad_rows=self._staging.bad_rows(),
            duplicate_groups={"exact": len(duplicates.exact), "near": len(duplicates.near)},
        )

    def _make_shards(
        self, plan: ChunkPlan, chunks: Iterator[Chunk], index: ShardIndex, workers: int, dask: str | None
    ) -> None:
        finished = self._finished()

        def pending_tasks() -> Iterator[str]:
            for chunk in chunks:
                known = None if chunk.doomed else finished.get(chunk.name)
                receipt = self._receipt(chunk.name, plan.proofs[chunk.name]) if known else None
                if receipt is None:
                    yield plan.task_input(chunk)
                else:
                    self._kept += 1
                    self._add_report(index, receipt)

        workers = min(workers, len(plan.proofs))
        for text in run(make_shard, pending_tasks(), workers=workers, dask=dask, scratch=self._scratch):
            self._add_report(index, ShardReport.from_json(text))
            self._check_bad_rows()

    def _add_report(self, index: ShardIndex, receipt: ShardReport) -> None:
        index.add(receipt)
        self._progress("preparing", index.rows, self._staging.count())

    def _finished(self) -> dict[str, int]:
        """List the existing receipts as chunk name -> size: one listing instead of one request per chunk."""
        listed = self._dest.list("receipts/")
        return {os.path.basename(entry.key).removesuffix(".json"): entry.size for entry in listed}

    def _receipt(self, chunk: str, proof: str) -> ShardReport | None:
        """Return the receipt of an earlier start if rows and settings are unchanged and its shard has the full size."""
        try:
            receipt = ShardReport.from_json(self._dest.read(receipt_key(chunk)))
            if receipt.proof != proof:
                return None
            if receipt.shard is not None and self._dest.stat(receipt.shard.key).size != receipt.shard.bytes:
                return None
        except (NotThere, ValueError, KeyError, TypeError):
            return None
        return receipt

    def _check_bad_rows(self) -> None:
        try:
            check(self._limit, self._staging, self._total, join(self._dest.url, "dropped.jsonl"))
        except TooManyBadRows:
            send_report(self._dest, self._staging, self._scratch)
            raise

    def _require_rows(self, index: ShardIndex) -> None:
        """Raise BadInput if every row was excluded."""
        if any(index.splits(dict.fromkeys(self._staging.splits(), ())).values()):
            return
        send_report(self._dest, self._staging, self._scratch)
        reasons = ", ".join(f"{count} × {reason}" for reason, count in self._staging.reasons().items())
        raise BadInput(
            f"all {self._total} rows were dropped: {reasons}",
            where=join(self._dest.url, "dropped.jsonl"),
            fix="relax the filters that drop them; the report lists every row",
        )

    def _bpe(self) -> str:
        self._progress("learning the subwords", 0, 0)

        def sentences() -> Iterator[str]:
            for pair in self._staging.texts("train"):
                source, target = normalised(pair[0]), normalised(pair[1])
                if pair_exclusion(source, target, self._options.rules) is None:
                    yield source
                    yield target

        return BpeTokenizer.train(sentences(), size=self._options.bpe_size).to_json()

    def _proof(self, plan: ChunkPlan) -> str:
        return f"{plan.proof}-{self._options.duplicates}"

    def _recorded_settings(self, plan: ChunkPlan) -> dict[str, Any]:
        """Return the settings to record in the manifest, for people and for the next start to compare."""
        settings: dict[str, Any] = json.loads(plan.settings.to_json())
        for recorded_elsewhere in ("classes", "tokenizer", "made_with", "task"):
            del settings[recorded_elsewhere]
        return settings | {
            "format": self._reader.name,
            "duplicates": self._options.duplicates,
            "seed": self._options.seed,
            "proof": self._proof(plan),
        }


def _check_no_overlap(source: str, to: str) -> None:
    """Raise BadInput if source and destination overlap: the output would be read as part of the source next time."""
    here, there = local_path(source), local_path(to)
    if here is not None and there is not None and (here == there or here in there.parents or there in here.parents):
        raise BadInput(f"{to} and its source {source} overlap", fix="choose a folder beside the source")


def _with_known_defaults(options: PrepareOptions, entry: KnownDataset | None, source: str) -> PrepareOptions:
    """Fill in the data set's name, and the format of a known data set."""
    name = options.name or os.path.basename(source.partition("#")[0].rstrip("/")) or "data"
    if entry is None:
        return replace(options, name=name)
    return replace(options, name=name, format=options.format or entry.format, year=options.year or entry.year)


def _classes(labels: list[str], task: str) -> tuple[str, ...]:
    """Return the class names in order; for grades, every integer from the lowest to the highest, seen or not."""
    if task == "classes":
        return tuple(labels)
    grades = sorted(int(label) for label in labels)
    if grades[-1] - grades[0] > 1000:
        raise BadInput(f"grades from {grades[0]} to {grades[-1]} are not a scale", fix="give grades such as 1 to 10")
    return tuple(str(grade) for grade in range(grades[0], grades[-1] + 1))


def _default_fit(task: str, encoding: Encoding) -> Fit:
    """Return how a picture becomes square: what is graded is kept whole, as by the grading recipe's own inputs."""
    if task == "grades":
        return "squash"
    return "crop" if encoding == "raw" else "short"


def _check(size: int | None, encoding: str, workers: int | None, options: PrepareOptions) -> None:
    if size is not None and not 8 <= size <= 4096:
        raise BadInput(f"pictures of {size} pixels are not supported", fix="choose --size between 8 and 4096")
    if encoding not in ("jpeg", "raw"):
        raise BadInput(f"unknown encoding {encoding!r}", fix="choose --encoding jpeg or raw")
    if options.fit is not None and options.fit not in FITS:
        raise BadInput(f"unknown fit {options.fit!r}", fix=f"choose one of {', '.join(FITS)}")
    if encoding == "raw" and (size is None or options.fit == "short"):
        raise BadInput("raw encoding needs pictures of one size", fix="choose --size, and --fit crop, squash or pad")
    if workers is not None and workers < 1:
        raise BadInput(f"the number of workers must be at least 1, not {workers}", fix="choose --workers 1 or more")
    if not 1 <= options.quality <= 100:
        raise BadInput(f"invalid JPEG quality {options.quality}", fix="choose 1 to 100; 90 is good")


class _disk_full_mapped:
    """Context manager that converts SQLite and OS disk-full errors to DiskFull."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        full = isinstance(error, sqlite3.OperationalError) and "full" in str(error)
        if full or (isinstance(error, OSError) and error.errno == 28):
            raise DiskFull(
                "the disk is full",
                where=str(self._scratch),
                fix="free some space and retry: finished shards are kept",
            ) from None


def _no_progress(what: str, done: int, total: int) -> None:
    pass
