"""The manifest of a prepared data set: its schema, files and hashes. Imports nothing heavy.

Preparation writes `manifest.json` last: without it, there is no data set. The fingerprint covers everything that
training can see (schema, classes, rows and their order) and nothing else: neither paths nor dates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headway.core.errors import BadInput, NotThere, json_of
from headway.storage import Store, join, open_store

NAME = "manifest.json"
FORMAT, VERSION = "headway-shards", 1

Kind = Literal["picture", "text", "texts", "integer", "integers", "numbers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of the schema. Pictures are JPEG bytes of any size, or raw pixels (height × width × 3) of one size."""

    name: str
    kind: Kind
    encoding: Literal["jpeg", "raw", ""] = ""
    height: int = 0
    width: int = 0

    @property
    def raw_bytes(self) -> int:
        return self.height * self.width * 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFile:
    key: str  # relative to the data set's folder
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherFile:
    """A file besides the shards: tokenizer, word counts or report."""

    key: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    name: str
    task: str  # captions, classes, grades or translation
    columns: tuple[Column, ...]
    splits: Mapping[str, tuple[ShardFile, ...]]
    classes: tuple[str, ...] = ()
    files: tuple[OtherFile, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason -> number of rows
    settings: Mapping[str, Any] = field(default_factory=dict)  # the options given to prepare
    made_with: Mapping[str, str] = field(default_factory=dict)  # library versions that can affect the output bytes

    def rows(self, split: str) -> int:
        return sum(shard.rows for shard in self.splits[split])

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        known = ", ".join(column.name for column in self.columns)
        raise BadInput(f"{self.name} has no column {name!r}", fix=f"choose one of {known}")

    @property
    def fingerprint(self) -> str:
        """Hash the schema, classes, rows and row order to 64 hex digits."""
        shards = {
            split: [(shard.rows, shard.sha256) for shard in shards] for split, shards in sorted(self.splits.items())
        }
        seen = [VERSION, self.task, [asdict(c) for c in self.columns], list(self.classes), shards]
        return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        head = {"format": FORMAT, "version": VERSION, "fingerprint": self.fingerprint}
        body = asdict(self)
        body["columns"] = [{name: value for name, value in column.items() if value} for column in body["columns"]]
        return json.dumps(head | body, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = NAME) -> Manifest:
        try:
            raw = json_of(text)
            if not isinstance(raw, dict) or raw.get("format") != FORMAT:
                raise BadInput(
                    "this is not a prepared data set", where=where, fix="headway data prepare SOURCE --to DEST"
                )
            if raw.pop("version") != VERSION:
                raise BadInput("it was prepared by another version of Headway", where=where, fix="prepare it again")
            stated = raw.pop("fingerprint")
            del raw["format"]
            manifest = cls(
                columns=tuple(Column(**column) for column in raw.pop("columns")),
                splits={name: tuple(ShardFile(**s) for s in shards) for name, shards in raw.pop("splits").items()},
                classes=tuple(raw.pop("classes")),
                files=tuple(OtherFile(**file) for file in raw.pop("files")),
                **raw,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"the manifest is damaged: {type(error).__name__}: {error}"
            raise BadInput(what, where=where, fix="prepare the data again") from None
        if manifest.fingerprint != stated:
            raise BadInput("the manifest does not match its own fingerprint", where=where, fix="prepare the data again")
        return manifest


def read_manifest(url: str, store: Store | None = None) -> Manifest:
    """Read the manifest of the data set at `url`. Raises BadInput, with a fix, if there is none."""
    where = join(url, NAME)
    try:
        body = (store or open_store(url)).read(NAME)
    except NotThere:
        raise BadInput(
            f"no prepared data set at {url}",
            where=where,
            fix=f"headway data prepare SOURCE --to {url} (started again, a broken-off preparation goes on)",
        ) from None
    return Manifest.from_json(body, where=where)


def fingerprint(url: str) -> str:
    """Return the fingerprint that a plan pins. Cost: one small read."""
    return read_manifest(url).fingerprint
