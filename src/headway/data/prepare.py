"""From a source to shards: read, split, clean, decode, write. Killed and started again, it goes on where it was.

The source's annotations are read into a scratch file; rows are split and cut into chunks whose bounds depend on the
rows and the settings alone; each chunk becomes a shard and a receipt, on as many workers as there are; the receipts
become the report and, last of all, the manifest.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from headway.data.chunk import Chunk, Receipt, Settings, make_shard, receipt_key
from headway.data.clean import Rules, normalised, pair_drop
from headway.data.fetch import Login
from headway.data.finish import Ledger, Twins, finish, send_report, send_tokenizer
from headway.data.known import Known
from headway.data.manifest import NAME, Manifest, read_manifest
from headway.data.ordering import Orders
from headway.data.pictures import FITS, MAX_PIXELS, Fit
from headway.data.resolve import resolve
from headway.data.runner import run, usable_cores
from headway.data.scratch import made_with, scratch_for
from headway.data.sources.base import Reader
from headway.data.sources.detect import reader_for
from headway.data.sources.tree import Tree
from headway.data.splitting import DEFAULT, drop_leaks, split_rows
from headway.data.staging import Staging
from headway.data.text import BpeTokenizer
from headway.data.threshold import Threshold, TooMuchBad, check
from headway.errors import BadInput, DiskFull, NotThere
from headway.storage import Store, join, local_path, open_store

Progress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much
Encoding = Literal["jpeg", "raw"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """How rows become shards, where the defaults are not wanted."""

    format: str | None = None  # which reader; by default seen from the files
    year: str | None = None  # COCO: 2014 or 2017
    languages: tuple[str, str] | None = None  # parallel text: from, to
    fit: Fit | None = None  # by default `short` for JPEG, `crop` for raw pixels
    quality: int = 90
    max_pixels: int = MAX_PIXELS
    rules: Rules = field(default_factory=Rules)
    splits: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT))  # where the source gives none
    seed: int = 0  # of those splits
    duplicates: Literal["report", "drop"] = "report"  # or drop what train shares with val or test
    bpe_size: int = 8000
    name: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What was made, in numbers."""

    url: str
    manifest: Manifest
    seconds: float
    chunks: int = 0
    kept: int = 0  # chunks that an earlier start had finished; all of them if nothing was left to do
    bad_rows: int = 0
    twins: Mapping[str, int] = field(default_factory=dict)  # groups of duplicates: exact, near

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
    wishes: Wishes | None = None,
    overwrite: bool = False,
    login: Login | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Prepare `source` (a folder, an archive, a URL, an object store or a known name) as shards at `to`.

    Finished chunks of a broken-off start are kept, a finished data set is left as it is. More than `max_bad` bad rows
    stop it. `workers` processes of this machine do it, or those of the Dask scheduler at `dask`.
    """
    wishes, report = wishes or Wishes(), progress or _silent
    _check(size, encoding, workers, wishes)
    limit = Threshold.parse(max_bad)
    found = resolve(source, login=login, progress=lambda name, *sizes: report(f"fetching {name}", *sizes))
    _check_apart(found.url, to)
    with scratch_for(to) as scratch, _full_disk_said(scratch):
        tree = Tree(found.url, scratch)
        wishes = _as_known(wishes, found.known, source)
        reader = reader_for(tree, wishes.format, year=wishes.year, languages=wishes.languages)
        staging = Staging(scratch / "rows.sqlite")
        job = _Job(tree, reader, staging, open_store(to), scratch, wishes, limit, report)
        job.read()
        orders = Orders(staging, job.settings(size, encoding), tree, to)
        before = job.existing(orders, overwrite)
        if before is not None:
            chunks = len(orders.proofs)
            return Summary(url=to, manifest=before, seconds=job.seconds, chunks=chunks, kept=chunks)
        return job.make(orders, workers or usable_cores(), dask)


class _Job:
    """One preparation, from rows to manifest."""

    def __init__(
        self,
        tree: Tree,
        reader: Reader,
        staging: Staging,
        dest: Store,
        scratch: Path,
        wishes: Wishes,
        limit: Threshold,
        progress: Progress,
    ) -> None:
        self._tree, self._reader, self._staging, self._dest = tree, reader, staging, dest
        self._scratch, self._wishes, self._limit, self._progress = scratch, wishes, limit, progress
        self._began, self._kept, self._total = time.monotonic(), 0, 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def read(self) -> None:
        self._progress(f"reading {self._reader.name}", 0, 0)
        self._staging.take(self._reader.found())
        self._total = self._staging.count() + self._staging.bad_rows()
        if not self._staging.count():
            self._too_bad()
            raise BadInput(f"there are no rows in {self._tree.url}", fix="check the folder, or say --format")
        self._staging.index()
        split_rows(self._staging, self._wishes.splits, self._wishes.seed)
        drop_leaks(self._staging)
        self._too_bad()

    def settings(self, size: int | None, encoding: Encoding) -> Settings:
        task = self._reader.task
        tokenizer = self._bpe() if task == "translation" else ""
        classes = _classes(self._staging.labels(), task) if task in ("classes", "grades") else ()
        columns = {"translation": (), "grades": self._staging.picture_columns()}.get(task, ("picture",))
        return Settings(
            task=task,
            pictures=columns,
            size=size,
            fit=self._wishes.fit or ("crop" if encoding == "raw" else "short"),
            encoding=encoding,
            quality=self._wishes.quality,
            max_pixels=self._wishes.max_pixels,
            rules=self._wishes.rules,
            classes=classes,
            tokenizer=tokenizer,
            numbers=self._staging.number_columns,
            made_with=made_with(),
        )

    def existing(self, orders: Orders, overwrite: bool) -> Manifest | None:
        """The data set that is there already, if it is this one. Another one is not touched unless asked."""
        try:
            there = read_manifest(self._dest.url, self._dest)
        except BadInput:
            return None  # none, or a broken one
        if there.settings.get("proof") == self._proof(orders):
            return there
        if not overwrite:
            raise BadInput(
                f"{self._dest.url} already holds a data set, made of other rows or with other settings",
                fix="choose another place, or replace it with --overwrite",
            )
        self._dest.delete(NAME)  # from here on there is no data set, until the new one is whole
        return None

    def make(self, orders: Orders, workers: int, dask: str | None) -> Summary:
        ledger = Ledger(self._staging)
        self._work(orders, orders.chunks(), ledger, workers, dask)
        self._progress("looking for duplicates", 0, 0)
        twins = Twins(self._staging)
        doomed = twins.doomed() if self._wishes.duplicates == "drop" else {}
        if doomed:
            self._work(orders, orders.chunks(doomed), ledger, workers, dask)
        self._nothing_left(ledger)
        tokenizer = orders.settings.tokenizer
        manifest = Manifest(
            name=self._wishes.name or "data",
            task=orders.settings.task,
            columns=orders.settings.columns,
            splits=dict.fromkeys(self._staging.splits(), ()),
            classes=orders.settings.classes,
            files=(send_tokenizer(self._dest, tokenizer),) if tokenizer else (),
            settings=self._said(orders),
            made_with=orders.settings.made_with,
        )
        return Summary(
            url=self._dest.url,
            manifest=finish(self._dest, manifest, ledger, self._staging, twins, self._scratch),
            seconds=self.seconds,
            chunks=len(orders.proofs),
            kept=self._kept,
            bad_rows=self._staging.bad_rows(),
            twins={"exact": len(twins.exact), "near": len(twins.near)},
        )

    def _work(self, orders: Orders, chunks: Iterator[Chunk], ledger: Ledger, workers: int, dask: str | None) -> None:
        finished = self._finished()

        def wanted() -> Iterator[str]:
            for chunk in chunks:
                known = None if chunk.doomed else finished.get(chunk.name)
                receipt = self._receipt(chunk.name, orders.proofs[chunk.name]) if known else None
                if receipt is None:
                    yield orders.order(chunk)
                else:
                    self._kept += 1
                    self._enter(ledger, receipt)

        workers = min(workers, len(orders.proofs))
        for text in run(make_shard, wanted(), workers=workers, dask=dask, scratch=self._scratch):
            self._enter(ledger, Receipt.from_json(text))
            self._too_bad()

    def _enter(self, ledger: Ledger, receipt: Receipt) -> None:
        ledger.enter(receipt)
        self._progress("preparing", ledger.rows, self._staging.count())

    def _finished(self) -> dict[str, int]:
        """Receipts that lie there: name -> size. One listing instead of a question for each chunk."""
        listed = self._dest.list("receipts/")
        return {os.path.basename(entry.key).removesuffix(".json"): entry.size for entry in listed}

    def _receipt(self, chunk: str, proof: str) -> Receipt | None:
        """Of a chunk that an earlier start finished with the same rows and settings, if its shard is there whole."""
        try:
            receipt = Receipt.from_json(self._dest.read(receipt_key(chunk)))
            if receipt.proof != proof:
                return None
            if receipt.shard is not None and self._dest.stat(receipt.shard.key).size != receipt.shard.bytes:
                return None
        except (NotThere, ValueError, KeyError, TypeError):
            return None
        return receipt

    def _too_bad(self) -> None:
        try:
            check(self._limit, self._staging, self._total, join(self._dest.url, "dropped.jsonl"))
        except TooMuchBad:
            send_report(self._dest, self._staging, self._scratch)
            raise

    def _nothing_left(self, ledger: Ledger) -> None:
        """A data set without a row is nobody's wish: some rule left everything out."""
        if any(ledger.splits(dict.fromkeys(self._staging.splits(), ())).values()):
            return
        send_report(self._dest, self._staging, self._scratch)
        reasons = ", ".join(f"{count} × {reason}" for reason, count in self._staging.reasons().items())
        raise BadInput(
            f"nothing is left of {self._total} rows: {reasons}",
            where=join(self._dest.url, "dropped.jsonl"),
            fix="loosen what leaves them out; every row is listed in the report",
        )

    def _bpe(self) -> str:
        self._progress("learning the subwords", 0, 0)

        def sentences() -> Iterator[str]:
            for pair in self._staging.texts("train"):
                source, target = normalised(pair[0]), normalised(pair[1])
                if pair_drop(source, target, self._wishes.rules) is None:
                    yield source
                    yield target

        return BpeTokenizer.train(sentences(), size=self._wishes.bpe_size).to_json()

    def _proof(self, orders: Orders) -> str:
        return f"{orders.proof}-{self._wishes.duplicates}"

    def _said(self, orders: Orders) -> dict[str, Any]:
        """What was asked for, for people and for the next start."""
        settings: dict[str, Any] = json.loads(orders.settings.to_json())
        for said_elsewhere in ("classes", "tokenizer", "made_with", "task"):
            del settings[said_elsewhere]
        return settings | {
            "format": self._reader.name,
            "duplicates": self._wishes.duplicates,
            "seed": self._wishes.seed,
            "proof": self._proof(orders),
        }


def _check_apart(source: str, to: str) -> None:
    """A data set inside of its own source would be read as part of it the next time."""
    here, there = local_path(source), local_path(to)
    if here is not None and there is not None and (here == there or here in there.parents or there in here.parents):
        raise BadInput(f"{to} and its source {source} lie in each other", fix="choose a place beside it")


def _as_known(wishes: Wishes, entry: Known | None, source: str) -> Wishes:
    """A known data set brings its format; any has a name."""
    name = wishes.name or os.path.basename(source.partition("#")[0].rstrip("/")) or "data"
    if entry is None:
        return replace(wishes, name=name)
    return replace(wishes, name=name, format=wishes.format or entry.format, year=wishes.year or entry.year)


def _classes(labels: list[str], task: str) -> tuple[str, ...]:
    """Names in order; grades as every whole number from the lowest to the highest, seen or not."""
    if task == "classes":
        return tuple(labels)
    grades = sorted(int(label) for label in labels)
    if grades[-1] - grades[0] > 1000:
        raise BadInput(f"grades from {grades[0]} to {grades[-1]} are no scale", fix="give grades such as 1 to 10")
    return tuple(str(grade) for grade in range(grades[0], grades[-1] + 1))


def _check(size: int | None, encoding: str, workers: int | None, wishes: Wishes) -> None:
    if size is not None and not 8 <= size <= 4096:
        raise BadInput(f"pictures of {size} pixels make no sense here", fix="choose --size between 8 and 4096")
    if encoding not in ("jpeg", "raw"):
        raise BadInput(f"no encoding is called {encoding!r}", fix="choose --encoding jpeg or raw")
    if wishes.fit is not None and wishes.fit not in FITS:
        raise BadInput(f"no fit is called {wishes.fit!r}", fix=f"choose one of {', '.join(FITS)}")
    if encoding == "raw" and (size is None or wishes.fit == "short"):
        raise BadInput("raw pixels need one size for all pictures", fix="choose --size, and --fit crop, squash or pad")
    if workers is not None and workers < 1:
        raise BadInput(f"{workers} workers cannot do anything", fix="choose --workers 1 or more")
    if not 1 <= wishes.quality <= 100:
        raise BadInput(f"JPEG quality {wishes.quality} does not exist", fix="choose 1 to 100; 90 is good")


class _full_disk_said:
    """The scratch file's own words for a full disk, translated."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        full = isinstance(error, sqlite3.OperationalError) and "full" in str(error)
        if full or (isinstance(error, OSError) and error.errno == 28):
            raise DiskFull(
                "the disk is full", where=str(self._scratch), fix="make room and start again: finished shards are kept"
            ) from None


def _silent(what: str, done: int, total: int) -> None:
    pass
