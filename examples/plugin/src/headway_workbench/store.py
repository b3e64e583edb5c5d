"""Keep run folders in one SQLite file: `sqlite:///data/runs.db/folder`."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from contextlib import closing
from pathlib import Path

from headway.core.errors import BadInput, Conflict, NotThere, StoreError, Transient
from headway.storage import ABSENT, ObjectInfo
from headway.storage.base import checked_key, checked_prefix, checked_span
from headway.storage.transfer import read_body

TABLE = "CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, version TEXT NOT NULL, body BLOB NOT NULL)"


class SqliteStore:
    def __init__(self, url, *, endpoint=None, retry=None):
        found = re.fullmatch(r"sqlite://(/.+?\.db)((?:/[^/]+)*)/?", url)
        if found is None:
            raise BadInput(f"{url} names no SQLite file", fix="write it as sqlite:///data/runs.db/folder")
        self.url = url.rstrip("/")
        self._file, self._folder = Path(found[1]), f"{found[2].lstrip('/')}/".lstrip("/")

    def read(self, key, span=None):
        body = self._row(key, "body")[0]
        return body if span is None else body[slice(*checked_span(span))]

    def write(self, key, body, *, when=None):
        name, content = self._folder + checked_key(key), read_body(body)
        version = hashlib.sha256(content).hexdigest()
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")  # excludes all other writers until the commit
            row = database.execute("SELECT version FROM objects WHERE key = ?", (name,)).fetchone()
            if when is not None and when != (row[0] if row else ABSENT):
                raise Conflict(f"{key} has changed", where=self.url)
            database.execute("REPLACE INTO objects VALUES (?, ?, ?)", (name, version, content))
            database.execute("COMMIT")
        return version

    def stat(self, key):
        size, version = self._row(key, "length(body), version")
        return ObjectInfo(key, size, version)

    def list(self, prefix=""):
        start = self._folder + checked_prefix(prefix)
        query = "SELECT key, length(body), version FROM objects WHERE substr(key, 1, ?) = ? ORDER BY key"
        with self._open() as database:
            rows = database.execute(query, (len(start), start)).fetchall()
        return (ObjectInfo(key[len(self._folder) :], size, version) for key, size, version in rows)

    def delete(self, key):
        with self._open() as database:
            database.execute("DELETE FROM objects WHERE key = ?", (self._folder + checked_key(key),))

    def _row(self, key, columns):
        with self._open() as database:
            query = f"SELECT {columns} FROM objects WHERE key = ?"
            row = database.execute(query, (self._folder + checked_key(key),)).fetchone()
        if row is None:
            raise NotThere(f"there is no {key}", where=self.url)
        return row

    def _open(self):
        return _Connection(self._file, self.url)


class _Connection:
    """One connection per request: nothing is shared by threads, processes or forks. SQLite's errors become Headway's."""

    def __init__(self, file, url):
        self._file, self._url = file, url

    def __enter__(self):
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._closing = closing(sqlite3.connect(self._file, timeout=60, isolation_level=None))
            database = self._closing.__enter__()
            database.execute(TABLE)
            return database
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"the database cannot be opened: {error}", where=self._url) from error

    def __exit__(self, kind, error, trace):
        self._closing.__exit__(kind, error, trace)  # rolls back what was not committed
        if isinstance(error, sqlite3.OperationalError):  # locked for a minute, or the disk is full
            raise Transient(f"the database cannot be used: {error}", where=self._url) from error
