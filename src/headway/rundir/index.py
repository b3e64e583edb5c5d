"""This machine's index of runs (SQLite), and the rules for run names.

The index makes `headway ps` fast and can be lost: the truth about a run is in its folder. Trouble with the index never
stops a run: errors are logged.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headway.core.errors import BadInput
from headway.core.platform import make_state_dir, state_dir

if TYPE_CHECKING:
    import sqlite3

    from headway.core.plan import Plan


T = TypeVar("T")
FORMAT = 1
BUSY_TIMEOUT_S = 5.0  # wait for another process that is writing

_TABLE = """
CREATE TABLE IF NOT EXISTS runs (
  url TEXT PRIMARY KEY, name TEXT NOT NULL, target TEXT NOT NULL, job TEXT NOT NULL,
  created REAL NOT NULL, state TEXT NOT NULL, seen REAL NOT NULL);
CREATE INDEX IF NOT EXISTS by_age ON runs (created);
CREATE INDEX IF NOT EXISTS by_name ON runs (name);
"""
_COLUMNS = "name, url, target, job, created, state, seen"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """One run as last seen from this machine. Times are Unix seconds."""

    name: str
    url: str
    target: str
    job: str
    created: float
    state: str = "pending"
    seen: float = 0.0


def _warn(text: str) -> None:
    import logging

    logging.getLogger("headway").warning(text)


class RunIndex:
    """The index. Every call opens the file anew, so any number of processes and threads may use it at once."""

    def __init__(self, path: Path | None = None, *, log: Callable[[str], None] = _warn) -> None:
        self.path = state_dir() / "ledger.sqlite" if path is None else path
        self._log = log

    def record(self, *rows: RunRow) -> None:
        """Insert runs; update those whose URL is known."""
        values = [(r.name, r.url, r.target, r.job, r.created, r.state, r.seen or time.time()) for r in rows]
        self._write(
            lambda db: db.executemany(
                f"INSERT INTO runs ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (url) DO UPDATE SET "
                "name = excluded.name, target = excluded.target, job = excluded.job, created = excluded.created, "
                "state = excluded.state, seen = excluded.seen",
                values,
            )
        )

    def update_state(self, url: str, state: str) -> None:
        """Record the state in which a run was just seen."""
        self._write(
            lambda db: db.execute("UPDATE runs SET state = ?, seen = ? WHERE url = ?", (state, time.time(), url))
        )

    def remove(self, url: str) -> None:
        self._write(lambda db: db.execute("DELETE FROM runs WHERE url = ?", (url,)))

    def rows(self, *, glob: str | None = None, target: str | None = None, limit: int | None = None) -> list[RunRow]:
        """Return the matching runs, newest first."""
        return self._read(
            "WHERE (?1 IS NULL OR name GLOB ?1) AND (?2 IS NULL OR target = ?2) "
            "ORDER BY created DESC, rowid DESC LIMIT ?3",
            (glob, target, -1 if limit is None else limit),
        )

    def page(self, terms: Sequence[str], *, offset: int, limit: int) -> tuple[int, list[RunRow]]:
        """Return how many runs contain all these words in name, job, target or state, and one page, newest first."""
        searched = "lower(name || ' ' || job || ' ' || target || ' ' || state)"
        where = "WHERE " + " AND ".join(["1", *(f"instr({searched}, ?)" for _ in terms)])
        values: tuple[object, ...] = tuple(term.lower() for term in terms)

        def count(db: sqlite3.Connection) -> int:
            return int(db.execute(f"SELECT count(*) FROM runs {where}", values).fetchone()[0])

        total = self._with_recovery(count, 0) if self.path.exists() else 0
        clause = f"{where} ORDER BY created DESC, rowid DESC LIMIT ? OFFSET ?"
        return total, self._read(clause, (*values, limit, offset))

    def with_prefix(self, prefix: str) -> list[RunRow]:
        """Return the runs whose name starts with `prefix`, newest first."""
        return self._read(
            "WHERE name >= ? AND name < ? ORDER BY created DESC, rowid DESC", (prefix, prefix + "\U0010ffff")
        )

    def rebuild(self, outputs: str) -> int:
        """Record every run found below `outputs`; return how many there were."""
        from headway.rundir.status import rows_below

        found = list(rows_below(outputs))
        self.record(*found)
        return len(found)

    def _read(self, clause: str, values: tuple[object, ...]) -> list[RunRow]:
        def select(db: sqlite3.Connection) -> list[RunRow]:
            names = _COLUMNS.split(", ")
            return [
                RunRow(**dict(zip(names, found, strict=True)))
                for found in db.execute(f"SELECT {_COLUMNS} FROM runs {clause}", values)
            ]

        return self._with_recovery(select, []) if self.path.exists() else []

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        self._with_recovery(work, None)

    def _with_recovery(self, work: Callable[[sqlite3.Connection], T], default: T) -> T:
        """Do the work, on a new file if this one is damaged; return `default` where it cannot be done at all."""
        import sqlite3

        try:
            try:
                return self._with_database(work)
            except sqlite3.DatabaseError as error:
                if type(error) is not sqlite3.DatabaseError:
                    raise  # busy, full, read-only: not damage
                self._replace_damaged(error)
                return self._with_database(work)
        except (sqlite3.Error, OSError) as error:
            self._log(f"the index of runs could not be used (the run is not affected): {self.path}: {error}")
            return default

    def _with_database(self, work: Callable[[sqlite3.Connection], T]) -> T:
        import sqlite3

        make_state_dir()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S)) as db, db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > FORMAT:
                raise OSError("it was written by a newer Headway")
            if version < FORMAT:
                db.executescript(f"BEGIN IMMEDIATE; {_TABLE} PRAGMA user_version = {FORMAT}; COMMIT;")
            return work(db)

    def _replace_damaged(self, why: Exception) -> None:
        """Rename a damaged file, so that a new one can be created. Of several processes, one does it."""
        with _locked(self.path.with_suffix(".lock")):
            if self._is_intact():
                return  # another process was quicker
            backup = self.path.with_suffix(f".damaged-{time.time_ns()}")
            os.replace(self.path, backup)
            # A journal left behind would be replayed into the new file.
            for journal in _journal_files(self.path):
                journal.unlink(missing_ok=True)
        self._log(
            f"the index of runs was damaged ({why}) and was recreated; the old file is {backup}. "
            "No run is lost: headway ps --rebuild OUTPUTS adds them again"
        )

    def _is_intact(self) -> bool:
        import sqlite3

        try:
            with closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S)) as db:
                return bool(db.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
        except sqlite3.DatabaseError:
            return False


def _journal_files(path: Path) -> Iterable[Path]:
    return (path.with_name(path.name + suffix) for suffix in ("-journal", "-wal", "-shm"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Run names: valid as they are on every target, bucket and file system.


MAX_NAME_LENGTH = 50  # fits a StatefulSet's pods, a label's value and a socket's path
RESERVED = ("code", "last")  # the folder beside the runs, and the alias for the newest run
_NAME = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?")


def checked_name(name: str) -> str:
    """Return the name, or raise BadInput saying what is wrong with it."""
    fix = f"lower case letters, digits and dashes, at most {MAX_NAME_LENGTH}, starting with a letter"
    if name in RESERVED:
        raise BadInput(f"{name!r} is a reserved word, not a valid run name", fix="choose another --name")
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is not a valid run name", fix=f"--name with {fix}")
    return name


def candidate_names(plan: Plan, index: RunIndex) -> Iterator[str]:
    """Yield `<job>-<plan hash>-1`, `-2`, …, starting after the highest that this machine's index knows."""
    suffix_length = len("-123456-12345")
    job = str(plan.job["name"])[: MAX_NAME_LENGTH - suffix_length].rstrip("-")
    prefix = f"{job}-{plan.name_hash}-"
    known = [row.name[len(prefix) :] for row in index.with_prefix(prefix)]
    first = 1 + max((int(number) for number in known if number.isdigit()), default=0)
    return (f"{prefix}{number}" for number in count(first))
