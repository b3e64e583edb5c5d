"""Read samples for a model from files: tables (CSV, JSON lines, JSON, Parquet), folders, globs, and single values.

Used by `headway predict`, and by `headway eval` for tables that hold the true outputs, too.
"""

from __future__ import annotations

import csv
import fnmatch
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np

from headway.artifacts.media import decode_wav, open_picture
from headway.core.errors import BadInput, NotThere
from headway.model import Audio, Image, Input, Row, Tensor
from headway.model.values import example, from_text, parse
from headway.storage import local_path, open_store

TABLES: Final = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
_SUFFIXES: Final = {
    "image": (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    "audio": (".wav",),
    "text": (".txt",),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One input, not decoded yet.

    Attributes:
        name: What to call it in the results: a path, or the number of a table's row.
        values: Values by input: paths of files, or plain values.
        base: URL of the folder to which its paths are relative.
        row: All cells of its row in a table.
    """

    name: str
    values: Mapping[str, Any]
    base: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)


def is_table(source: str) -> bool:
    return PurePosixPath(source).suffix.lower() in TABLES


def samples_in(source: str, inputs: Mapping[str, Input]) -> list[Sample]:
    """List the samples of a table, a folder or a glob, at any storage URL. Files are not opened yet."""
    if is_table(source):
        base, _, name = source.rpartition("/")
        rows = rows_of(_read(source), name)
        return [
            Sample(str(number), _values(row, inputs, f"{source}, row {number + 1}"), base or ".", row)
            for number, row in enumerate(rows)
        ]
    only = _only_file_input(inputs, source)
    folder, pattern = _split_glob(source)
    suffixes = _SUFFIXES[inputs[only].kind]
    keys = sorted(entry.key for entry in open_store(folder).list(""))
    found = [key for key in keys if (fnmatch.fnmatch(key, pattern) if pattern else key.lower().endswith(suffixes))]
    if not found:
        raise BadInput(f"{source} has no files that fit: {', '.join(suffixes)}", fix="check the folder or the pattern")
    return [Sample(key, {only: key}, folder) for key in found]


def typed_sample(text: str, inputs: Mapping[str, Input]) -> Sample:
    """Return a sample typed on the command line: a value, values with commas between them, or a JSON object."""
    if text.lstrip().startswith("{"):
        try:
            values = json.loads(text)
        except ValueError as error:
            raise BadInput(f"not JSON: {error}", where=text[:60]) from None
        return Sample(text, _values(values, inputs, text[:60]), ".")
    needed = [name for name, each in inputs.items() if each.required]
    parts = [text] if len(needed) == 1 else text.split(",")
    if len(parts) != len(needed):
        shown = json.dumps(dict.fromkeys(needed, "…"), ensure_ascii=False)
        raise BadInput(
            f"{text[:60]!r} has {len(parts)} values, but this model takes {', '.join(needed)}",
            fix=f"separate them by commas, or give a JSON object: '{shown}'",
        )
    (only, *_) = needed
    if len(needed) == 1 and isinstance(inputs[only], Row | Tensor):
        raise BadInput(f"{text[:60]!r} is not JSON", fix=f"give a JSON object: '{_typed_example(only, inputs[only])}'")
    return Sample(text, dict(zip(needed, parts, strict=True)), ".")


def decoded(sample: Sample, inputs: Mapping[str, Input]) -> dict[str, Any]:
    """Return the sample as `predict` takes it: files read, numbers checked. Raises BadInput that names it."""
    made = {}
    for name, value in sample.values.items():
        try:
            made[name] = _decode(value, inputs[name], sample.base)
        except ValueError as error:
            raise BadInput(f"{name}: {error}", where=sample.name) from None
    return made


def _decode(value: Any, declared: Input, base: str) -> Any:
    if isinstance(declared, Image):
        where = _join(base, str(value))
        return np.asarray(open_picture(where, None if local_path(where) else _read(where)))
    if isinstance(declared, Audio):
        return decode_wav(_read(_join(base, str(value))), declared.rate)
    parsed = parse(declared, from_text(declared, value))
    return np.asarray(parsed, np.float32) if isinstance(declared, Tensor) else parsed


def rows_of(body: bytes, name: str) -> list[dict[str, Any]]:
    """Parse a table. Raises BadInput with the line."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix == ".parquet":
        return _parquet(body, name)
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"not UTF-8 text: byte {error.start}", where=name) from None
    if suffix in (".csv", ".tsv"):
        return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if suffix == ".tsv" else ","))
    try:
        found = (
            json.loads(text) if suffix == ".json" else [json.loads(line) for line in text.splitlines() if line.strip()]
        )
    except ValueError as error:
        raise BadInput(f"not JSON: {error}", where=name) from None
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise BadInput("a table is a list of objects", where=name)
    return found


def _parquet(body: bytes, name: str) -> list[dict[str, Any]]:
    from headway.core.errors import needs

    with needs("data", "reading Parquet"):
        arrow, parquet = (import_module(each) for each in ("pyarrow", "pyarrow.parquet"))
    try:
        rows: list[dict[str, Any]] = parquet.read_table(io.BytesIO(body)).to_pylist()
    except (arrow.ArrowException, OSError) as error:
        raise BadInput(f"not a Parquet file: {error}", where=name) from None
    return rows


def _values(row: Any, inputs: Mapping[str, Input], where: str) -> dict[str, Any]:
    """Pick a sample's inputs out of a table's row. The columns of a lone `Row` need no name around them."""
    if not isinstance(row, Mapping):
        raise BadInput("a sample is an object", where=where)
    made: dict[str, Any] = {}
    for name, declared in inputs.items():
        if isinstance(declared, Row) and name not in row:
            if set(declared.typed) <= set(row):
                made[name] = {column: row[column] for column in declared.typed}
        elif row.get(name) is not None:
            made[name] = row[name]
        if name not in made and declared.required:
            columns = declared.typed if isinstance(declared, Row) else [name]
            missing = next(column for column in columns if column not in row or row[column] is None)
            raise BadInput(
                f"there is no column {missing!r}: it has {', '.join(map(str, row))}",
                where=where,
                fix=f"the model takes {', '.join(inputs)}",
            )
    return made


def truths(rows: Sequence[Sample], outputs: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    """Return the true values of the outputs that the table has. Raises BadInput if it has none."""
    found = {
        name: [sample.row[name] for sample in rows]
        for name in outputs
        if rows and all(name in sample.row for sample in rows)
    }
    if not found:
        columns = ", ".join(map(str, rows[0].row)) if rows else "none"
        raise BadInput(
            f"no column holds the truth of {' or '.join(outputs)}: it has {columns}",
            where=where,
            fix="name the column as the output, or write evaluate(self, data) in the class",
        )
    return found


def _typed_example(name: str, declared: Input) -> str:
    return json.dumps({name: example(declared)}, ensure_ascii=False)


def _only_file_input(inputs: Mapping[str, Input], source: str) -> str:
    files = [name for name, each in inputs.items() if each.kind in _SUFFIXES and each.required]
    others = [name for name, each in inputs.items() if each.required and name not in files]
    if len(files) != 1 or others:
        raise BadInput(
            f"the files of {source} are one input, but the model takes {', '.join(inputs)}",
            fix="give a table with a column per input: CSV, JSON lines or Parquet",
        )
    return files[0]


def _split_glob(source: str) -> tuple[str, str]:
    """Split `gs://bucket/photos/*.png` into the folder and the pattern below it."""
    parts = source.split("/")
    at = next((place for place, part in enumerate(parts) if any(sign in part for sign in "*?[")), None)
    if at is None:
        return source, ""
    return "/".join(parts[:at]) or ("/" if source.startswith("/") else "."), "/".join(parts[at:])


def _join(base: str, path: str) -> str:
    return path if not base or base == "." or path.startswith("/") or "://" in path else f"{base}/{path}"


def _read(url: str) -> bytes:
    folder, _, name = url.rpartition("/")
    try:
        return open_store(folder or ("/" if url.startswith("/") else ".")).read(name)
    except NotThere:
        raise BadInput(f"{url} does not exist", fix="check the path") from None
