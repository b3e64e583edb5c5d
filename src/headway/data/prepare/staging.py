"""Staging of a source's rows in a scratch SQLite file, so that memory does not grow with their number.

Nothing in it must survive a crash: a restarted preparation reads its source again, which is fast, and resumes after the
last finished shard.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from headway.core.errors import BadInput, DiskFull, StoreError
from headway.core.platform import state_dir
from headway.data.readers.base import SPLITS, Bad, Caption, Found, Row
from headway.data.text import is_unicode
from headway.storage import local_path

# Scratch folder, locked against a second preparation.


FOLDER = ".work"
_VERSIONED_LIBRARIES = ("pyarrow", "simplejpeg", "pyvips-binary", "pyvips", "pillow", "tokenizers")


@contextmanager
def scratch_for(to: str) -> Iterator[Path]:
    """Yield a locked scratch folder beside the shards, or under Headway's home if they go to an object store.

    It is deleted on success and kept after a failure, so that nothing is downloaded or unpacked twice.
    """
    dest = local_path(to)
    path = dest / FOLDER if dest is not None else state_dir() / "prepare" / hashlib.sha256(to.encode()).hexdigest()[:16]
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / "lock").open("w")
    except OSError as error:
        kind = DiskFull if error.errno == 28 else StoreError
        raise kind(f"cannot write to {path}: {error.strerror}", where=to, fix="choose another folder") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            what = f"another preparation is writing to {to}"
            raise BadInput(what, fix="wait for it, or choose another folder") from None
        yield path
    shutil.rmtree(path, ignore_errors=True)


@cache
def made_with() -> Mapping[str, str]:
    """Return the versions of the libraries that can affect a shard's bytes. Cached: the lookup takes 14 ms."""
    found: dict[str, str] = {}
    for name in _VERSIONED_LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


_SCRATCH = "pragma journal_mode = off; pragma synchronous = off; pragma temp_store = file;"
_TABLES = """
create table rows (seq integer primary key, id text unique, name text, split text, grp text, label text, body text);
create table captions (seq integer primary key, row text, text text, flag text);
create table dropped (
    seq integer primary key, chunk text, row text, split text, reason text, detail text, fault integer);
create table hashes (seq integer primary key, chunk text, row text, split text, exact integer, near integer);
create table words (chunk text primary key, body text);
"""
_BATCH = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class ExcludedRow:
    """One line of the exclusion report."""

    row: str
    reason: str
    split: str = ""
    detail: str = ""
    fault: bool = False


Hashes = tuple[str, int, int | None]  # row id, hash of the file's bytes, perceptual hash


class RowStore:
    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        # tokenizers reads the texts on its own thread while this one waits: never both at a time.
        self._db = sqlite3.connect(path, check_same_thread=False)
        self.number_columns: dict[str, int] = {}  # column name -> values per row
        self._db.executescript(_SCRATCH + _TABLES)

    def close(self) -> None:
        self._db.close()

    def add_all(self, found: Iterable[Found]) -> None:
        """Store everything a reader yields, then report captions whose row does not exist."""
        rows: list[Row] = []
        captions: list[Caption] = []
        bad: list[ExcludedRow] = []
        for item in found:
            if isinstance(item, Row):
                rows.append(item)
            elif isinstance(item, Caption):
                captions.append(item)
            else:
                bad.append(_excluded_row(item))
            if len(rows) + len(captions) + len(bad) >= _BATCH:
                self._flush(rows, captions, bad)
        self._flush(rows, captions, bad)
        self._db.execute("create index by_row on captions (row)")
        self._report_orphans()

    def _flush(self, rows: list[Row], captions: list[Caption], bad: list[ExcludedRow]) -> None:
        for row in rows:
            self._add(row)
        usable = [(c.row, c.text, c.flag) for c in captions if is_unicode(c.text)]
        broken = [
            ExcludedRow(row=c.row, reason="not UTF-8", detail=ascii(c.text)[:80], fault=True)
            for c in captions
            if not is_unicode(c.text)
        ]
        self._db.executemany("insert into captions (row, text, flag) values (?, ?, ?)", usable)
        self.record_excluded([*bad, *broken])
        for batch in (rows, captions, bad):
            batch.clear()

    def _add(self, row: Row) -> None:
        known: dict[str, Any] = {"pictures": dict(row.pictures), "texts": dict(row.texts)}
        if row.numbers:
            known["numbers"] = {name: list(values) for name, values in row.numbers.items()}
            self.number_columns |= {name: len(values) for name, values in row.numbers.items()}
        body = json.dumps(known, sort_keys=True)
        values = (row.id, row.name or row.id, row.split, row.group, row.label, body)
        if not all(is_unicode(value) for value in values):
            self.record_excluded([ExcludedRow(row=ascii(row.id), reason="not UTF-8", split=row.split, fault=True)])
            return
        try:
            self._db.execute("insert into rows (id, name, split, grp, label, body) values (?, ?, ?, ?, ?, ?)", values)
        except sqlite3.IntegrityError:
            if not row.again:
                self.record_excluded([ExcludedRow(row=row.id, reason="id used twice", split=row.split, fault=True)])

    def _report_orphans(self) -> None:
        """Report captions without a row, unless the row itself was already reported as dropped."""
        self._db.execute(
            "insert into dropped (chunk, row, split, reason, detail, fault)"
            " select '', row, '', 'caption without a picture', substr(text, 1, 80), 1 from captions"
            " where row not in (select id from rows) and row not in (select row from dropped) order by seq"
        )

    def record_excluded(self, lines: Iterable[ExcludedRow], chunk: str = "") -> None:
        self._db.executemany(
            "insert into dropped (chunk, row, split, reason, detail, fault) values (?, ?, ?, ?, ?, ?)",
            [(chunk, d.row, d.split, d.reason, d.detail, int(d.fault)) for d in lines],
        )

    def remove(self, ids: list[str], reason: str, detail: str, *, fault: bool) -> None:
        """Delete rows and record the reason in the report."""
        for row in ids:
            split, name = self._db.execute("select split, name from rows where id = ?", (row,)).fetchone()
            self.record_excluded([ExcludedRow(row=name, split=split, reason=reason, detail=detail, fault=fault)])
        self._db.executemany("delete from rows where id = ?", [(row,) for row in ids])

    def count(self, split: str | None = None) -> int:
        where = "" if split is None else " where split = ?"
        found = self._db.execute("select count(*) from rows" + where, () if split is None else (split,))
        return int(found.fetchone()[0])

    def splits(self) -> list[str]:
        """Return the splits: train, val and test first, others after them."""
        names = [row[0] for row in self._db.execute("select distinct split from rows order by split")]
        return sorted(names, key=lambda name: (SPLITS.index(name) if name in SPLITS else len(SPLITS), name))

    def labels(self) -> list[str]:
        return [row[0] for row in self._db.execute("select distinct label from rows order by label")]

    def picture_columns(self) -> tuple[str, ...]:
        """Return the picture columns of the first row; all rows of a source have the same."""
        body = self._db.execute("select body from rows order by seq limit 1").fetchone()[0]
        return tuple(json.loads(body)["pictures"])

    def groups(self, key: str) -> Iterator[tuple[str, str, int, int]]:
        """Yield (label, group, rows in the group, rows with the label) for rows without a split, class by class.

        Largest groups first; `key` seeds the order of groups of equal size. A row without a group is its own group.
        """
        self._db.create_function("shuffled", 1, lambda text: _shuffled(key, text), deterministic=True)
        self._db.execute(
            "create temp table grouped as select min(label) as label,"
            " case grp when '' then 'row ' || id else 'group ' || grp end as g, count(*) as n"
            " from rows where split = '' group by g"
        )
        yield from self._db.execute(
            "select label, g, n, sum(n) over (partition by label) from grouped"
            " order by label, n desc, shuffled(label || ' ' || g)"
        )
        self._db.execute("drop table grouped")

    def assign(self, groups: Iterable[tuple[str, str]]) -> None:
        """Set the split of each group, given as (group as named by `groups`, split)."""
        self._db.execute("create temp table chosen (g text primary key, split text)")
        self._db.executemany("insert into chosen values (?, ?)", groups)
        self._db.execute(
            "update rows set split = (select chosen.split from chosen where g ="
            " case grp when '' then 'row ' || id else 'group ' || grp end) where split = ''"
        )
        self._db.execute("drop table chosen")

    def rows_in_two_splits(self) -> Iterator[tuple[str, str, str]]:
        """Yield (row, group, other split) for rows whose group also occurs in a later split (val or test)."""
        rank = "case {}.split when 'test' then 2 when 'val' then 1 else 0 end"
        here, there = rank.format("a"), rank.format("b")
        yield from self._db.execute(
            f"select a.id, a.grp, max(b.split) from rows a join rows b on a.grp = b.grp and {there} > {here}"
            " where a.grp != '' group by a.id order by a.seq"
        )

    def index(self) -> None:
        self._db.execute("create index by_split on rows (split, seq)")
        self._db.execute("create index by_group on rows (grp)")

    def rows(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a split in source order, with their captions."""
        reading = self._db.execute("select id, name, label, body from rows where split = ? order by seq", (split,))
        for row, name, label, body in reading:
            captions = self._db.execute("select text, flag from captions where row = ? order by seq", (row,)).fetchall()
            yield {"id": name, "label": label, "captions": captions, **json.loads(body)}

    def texts(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield the sentence pairs of a split as they are in the source."""
        for (body,) in self._db.execute("select body from rows where split = ? order by seq", (split,)):
            texts = json.loads(body)["texts"]
            yield texts["source"], texts["target"]

    def add_chunk_stats(self, chunk: str, split: str, hashes: Iterable[Hashes], words: dict[str, int]) -> None:
        """Store the picture hashes and word counts of a chunk's receipt."""
        values = [(chunk, row, split, _signed(exact), _signed(near)) for row, exact, near in hashes]
        self._db.executemany("insert into hashes (chunk, row, split, exact, near) values (?, ?, ?, ?, ?)", values)
        self._db.execute("insert into words values (?, ?)", (chunk, json.dumps(words)))

    def delete_chunk(self, chunk: str) -> None:
        """Delete the records of a chunk that is being made again."""
        for table in ("dropped", "hashes", "words"):
            self._db.execute(f"delete from {table} where chunk = ?", (chunk,))

    def hashes(self) -> Iterator[tuple[int, int, int | None, str]]:
        """Yield (number, file hash, perceptual hash, split) of each kept picture; hashes are signed 64-bit integers."""
        yield from self._db.execute("select seq, exact, near, split from hashes order by seq")

    def picture_at(self, number: int) -> tuple[str, str, str]:
        """Return (chunk, row, split) of a picture."""
        found = self._db.execute("select chunk, row, split from hashes where seq = ?", (number,)).fetchone()
        return str(found[0]), str(found[1]), str(found[2])

    def words(self) -> Iterator[dict[str, int]]:
        for (body,) in self._db.execute("select body from words"):
            yield json.loads(body)

    def bad_rows(self) -> int:
        return int(self._db.execute("select count(distinct row) from dropped where fault = 1").fetchone()[0])

    def faults(self, limit: int) -> Iterator[tuple[str, int, str]]:
        """Yield (reason, count, example), most frequent first."""
        yield from self._db.execute(
            "select reason, count(*), min(row || case detail when '' then '' else ' (' || detail || ')' end)"
            " from dropped where fault = 1 group by reason order by 2 desc, 1 limit ?",
            (limit,),
        )

    def reasons(self) -> dict[str, int]:
        return dict(self._db.execute("select reason, count(*) from dropped group by reason order by 2 desc, 1"))

    def dropped(self) -> Iterator[ExcludedRow]:
        reading = "select row, split, reason, detail, fault from dropped order by split, reason, row, seq"
        for row, split, reason, detail, fault in self._db.execute(reading):
            yield ExcludedRow(row=row, split=split, reason=reason, detail=detail, fault=bool(fault))


def _excluded_row(bad: Bad) -> ExcludedRow:
    row, detail = (value if is_unicode(value) else ascii(value) for value in (bad.row, bad.detail))
    return ExcludedRow(row=row, reason=bad.reason, detail=detail, fault=bad.fault)


def _shuffled(key: str, text: str) -> bytes:
    return hashlib.blake2b(f"{key} {text}".encode(), digest_size=8).digest()


def _signed(word: int | None) -> int | None:
    """Reinterpret 64 unsigned bits as signed: SQLite's integers are signed."""
    return word - (1 << 64) if word is not None and word >= 1 << 63 else word
