"""The manifest of a prepared data set: its schema, files and hashes. Imports nothing heavy.

Preparation writes `manifest.json` last: without it, there is no data set. The fingerprint covers everything that
training can see (schema, classes, rows and their order) and nothing else: neither paths nor dates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from headway.core.errors import BadInput, NotThere, Problem, StoreError, json_of
from headway.spec.model import Data, Source
from headway.storage import Store, join, local_path, open_store

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


def _how_to_prepare(url: str) -> str:
    """Advise a preparation. A folder with other files in it is a source, which no shards are to be written into."""
    folder = local_path(url)
    is_raw = folder is not None and folder.is_dir() and any(folder.iterdir()) and not any(folder.rglob("*.arrow"))
    if is_raw:
        return f"headway data prepare {url} --to {url.rstrip('/')}-prepared"
    return f"headway data prepare SOURCE --to {url} (an interrupted preparation resumes)"


def read_manifest(url: str, store: Store | None = None) -> Manifest:
    """Read the manifest of the data set at `url`. Raises BadInput, with a fix, if there is none."""
    where = join(url, NAME)
    try:
        body = (store or open_store(url)).read(NAME)
    except NotThere:
        raise BadInput(
            f"no prepared data set at {url}",
            where=where,
            fix=_how_to_prepare(url),
        ) from None
    return Manifest.from_json(body, where=where)


def fingerprint(url: str) -> str:
    """Return the fingerprint that a plan pins. Cost: one small read."""
    return read_manifest(url).fingerprint


def sources_of(data: Data, split: str, default: str) -> tuple[Source, ...]:
    """Return the sources of a split: the job's own, else this split of its training sources, else `default`."""
    own: tuple[Source, ...] = getattr(data, split)
    train = tuple(replace(source, split=None, limit=None, weight=1.0) for source in data.train)
    return own or train or (Source(source=default),)


# Validate a job's data sources from their manifests alone, before anything starts or costs money.
#
# Imports nothing heavy, so that a plan can be checked on a machine that never trains.


_BUILT_IN = "builtin:"


def check_data(data: Data, *, task: str | None = None) -> list[Problem]:
    """Return every problem of every source.

    `task` is the task the recipe trains (captions, classes, grades, translation).
    """
    found: list[Problem] = []
    for split in ("train", "val", "test"):
        sources: Sequence[Source] = getattr(data, split)
        for number, source in enumerate(sources):
            if not source.source.startswith(_BUILT_IN):
                found += _problems(source, split, f"data.{split}[{number}]", task)
        weights = [source.weight for source in sources]
        if weights and not any(weight > 0 for weight in weights):
            found.append(Problem(what="no source has a weight above 0", where=f"data.{split}", fix="give one a weight"))
    return found


def _problems(source: Source, split: str, where: str, task: str | None) -> Iterator[Problem]:
    if source.weight < 0:
        yield Problem(what=f"the weight must be at least 0, not {source.weight}", where=where, fix="choose 0 or more")
    if source.limit is not None and source.limit < 1:
        yield Problem(what=f"a limit of {source.limit} leaves no row", where=where, fix="choose 1 or more")
    try:
        manifest = read_manifest(source.source)
    except (BadInput, StoreError) as error:
        yield Problem(what=error.problem.what, where=where, fix=error.problem.fix)
        return
    chosen = source.split or split
    if not manifest.splits.get(chosen):
        known = ", ".join(name for name, shards in manifest.splits.items() if shards)
        yield Problem(what=f"{source.source} has no rows in {chosen!r}", where=where, fix=f"split: one of {known}")
    if task is not None and manifest.task != task:
        what = f"{source.source} has {manifest.task}, but this recipe needs {task}"
        yield Problem(what=what, where=where, fix="name data of that kind")
    for name, value in source.where.items():
        yield from _filter_problems(manifest, name, value, where)


def _filter_problems(manifest: Manifest, name: str, value: object, where: str) -> Iterator[Problem]:
    usable = {column.name: column for column in manifest.columns if column.kind in ("text", "integer")}
    if name not in usable:
        yield Problem(what=f"rows cannot be filtered by {name!r}", where=where, fix=f"one of {', '.join(usable)}")
        return
    for wanted in value if isinstance(value, list | tuple) else (value,):
        number = isinstance(wanted, int) and not isinstance(wanted, bool)
        if usable[name].kind == "integer" and not number and str(wanted) not in manifest.classes:
            known = ", ".join(manifest.classes[:12])
            fix = f"one of {known}" if known else "a number"
            yield Problem(what=f"there is no {name} {wanted!r}", where=where, fix=fix)
