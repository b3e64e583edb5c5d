"""`headway predict … --out FILE`: answer many samples in parts, so that a killed or repeated command goes on.

Each part is a file in `FILE.parts/`. Several processes share the work: part n belongs to the process n modulo their
number. Whoever finds that all parts are there joins them and removes the folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from headway.artifacts.predictor import PredictionError
from headway.artifacts.samples import Sample, decoded, is_table, samples_in, typed_sample
from headway.core.errors import BadInput, NotThere, needs
from headway.core.progress import with_progress
from headway.model import Image, Input, Text
from headway.model.code import ModelFailed
from headway.storage import local_path, open_store

if TYPE_CHECKING:
    from headway.artifacts.models import LoadedModel
    from headway.artifacts.predictor import Field, PredictionService
    from headway.storage.base import Store

AT_ONCE: Final = 32  # samples given to the model together
PER_PART: Final = 512
_ABOUT: Final = "about.json"
FORMS: Final = (".jsonl", ".parquet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """The part of the work of one of several processes.

    Attributes:
        index: Its number, from 0.
        count: How many there are.
    """

    index: int = 0
    count: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """What was done: how many samples there are, were answered here, and were refused; whether the file is written."""

    samples: int
    answered: int
    refused: int
    complete: bool


def shard_of(text: str | None, env: Mapping[str, str] = os.environ) -> Shard:
    """Return the shard that `--shard 1/4` names, else the rank that a launcher gave this process."""
    if text is None:
        given = (env.get("RANK", "0"), env.get("WORLD_SIZE", "1"))
        index, count = (int(each) if each.isdigit() else 0 for each in given)
        return Shard(index=index, count=max(1, count))
    first, _, last = text.partition("/")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise BadInput(f"--shard {text} is no part of a whole", fix="--shard 1/4, 2/4, 3/4, 4/4: one per process")
    return Shard(index=int(first) - 1, count=int(last))


def predict_to_file(
    model: LoadedModel, inputs: Sequence[str], out: str, *, shard: Shard, per_part: int = PER_PART
) -> Answered:
    """Answer all samples of tables, folders, globs and single values, and write JSON lines or Parquet.

    A sample that cannot be read, or that the model refuses, gets an `error` instead of an answer.
    """
    if PurePosixPath(out).suffix not in FORMS:
        raise BadInput(f"--out {out} is neither JSON lines nor Parquet", fix=f"--out {out.partition('.')[0]}.jsonl")
    service = model.service()
    types = types_of(service.fields)
    samples = [sample for text in inputs for sample in _samples(text, types)]
    parts = [samples[first : first + per_part] for first in range(0, len(samples), per_part)]
    store = open_store(f"{out}.parts")
    _claim(store, out, model, samples, per_part)
    done = {entry.key for entry in store.list("")}
    mine = [n for n in range(len(parts)) if n % shard.count == shard.index and _name(n) not in done]
    answered = refused = 0
    for number in with_progress(iter(mine), "predicting", len(mine)):
        rows = [
            row
            for first in range(0, len(parts[number]), AT_ONCE)
            for row in _answers(service, types, parts[number][first : first + AT_ONCE])
        ]
        store.write(_name(number), _lines(rows))
        answered, refused = answered + len(rows), refused + sum("error" in row for row in rows)
    complete = _join(store, out, len(parts))
    return Answered(samples=len(samples), answered=answered, refused=refused, complete=complete)


def types_of(fields: Sequence[Field]) -> dict[str, Input]:
    """Return the types of a service's inputs."""
    plain = {"picture": Image(), "text": Text()}
    return {field.name: field.declared or plain[field.kind] for field in fields}


def _samples(text: str, types: Mapping[str, Input]) -> list[Sample]:
    path = local_path(text) if len(text) < 4096 else None
    several = is_table(text) or any(sign in text for sign in "*?") or (path is not None and path.is_dir())
    several = several or (text.endswith("/") and "://" in text)
    if several and not text.startswith("{"):
        return samples_in(text, types)
    return [typed_sample(text, types)]


def _answers(service: PredictionService, types: Mapping[str, Input], part: Sequence[Sample]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"input": sample.name} for sample in part]
    prepared: list[tuple[int, Any]] = []
    for number, sample in enumerate(part):
        try:
            prepared.append((number, service.prepare(decoded(sample, types))))
        except (BadInput, PredictionError) as error:
            made[number]["error"] = error.problem.what if isinstance(error, BadInput) else error.detail
    for number, answer in _answered(service, prepared):
        made[number] |= answer
    return made


def _answered(service: PredictionService, prepared: Sequence[tuple[int, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Answer together; if that fails, one by one, so that a sample that the model cannot take fails alone."""
    if not prepared:
        return []
    try:
        answers = service.answer([each for _, each in prepared], explain=False)
        return [(number, answer) for (number, _), answer in zip(prepared, answers, strict=True)]
    except (ModelFailed, PredictionError) as error:
        if len(prepared) == 1:
            return [(prepared[0][0], {"error": str(error).partition("\n")[0]})]
    return [found for each in prepared for found in _answered(service, [each])]


def _claim(store: Store, out: str, model: LoadedModel, samples: Sequence[Sample], per_part: int) -> None:
    """Record what the parts hold. Raises BadInput if parts of other samples or another model are there."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(json.dumps([sample.base, sample.name, dict(sample.values)], default=str).encode())
    about = {
        "model": model.name,
        "kind": model.kind,
        "samples": len(samples),
        "per_part": per_part,
        "sha256": digest.hexdigest(),
    }
    try:
        found = json.loads(store.read(_ABOUT))
    except NotThere:
        store.write(_ABOUT, (json.dumps(about, indent=2) + "\n").encode())
        return
    if found != about:
        raise BadInput(
            f"{out}.parts holds answers to other samples, or of another model",
            fix=f"choose another --out, or remove {out}.parts",
        )


def _join(store: Store, out: str, count: int) -> bool:
    """Write the file once all parts are there, and remove them; return whether it is written."""
    names = [_name(number) for number in range(count)]
    try:
        if not {*names} <= {entry.key for entry in store.list("")}:
            return False
        body = b"".join(store.read(name) for name in names)
    except NotThere:
        return True  # another process has joined them just now
    folder, _, name = out.rpartition("/")
    target = open_store(folder or ("/" if out.startswith("/") else "."))
    target.write(name, body if name.endswith(".jsonl") else _parquet(body))
    for each in (*names, _ABOUT):
        store.delete(each)
    path = local_path(store.url)
    if path is not None and path.is_dir() and not any(path.iterdir()):
        path.rmdir()
    return True


def _name(number: int) -> str:
    return f"{number:06d}.jsonl"


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _parquet(lines: bytes) -> bytes:
    with needs("data", "writing Parquet"):
        arrow, parquet = (import_module(each) for each in ("pyarrow", "pyarrow.parquet"))
    body = io.BytesIO()
    rows = [json.loads(line) for line in lines.splitlines()]
    names = dict.fromkeys(name for row in rows for name in row)  # Arrow takes the columns of the first row alone
    parquet.write_table(arrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]), body)
    return body.getvalue()
