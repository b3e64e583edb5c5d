"""Predictions and labels from CSV, JSON or JSON lines, paired by id or by order. All that is wrong is said at once."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import BadInput
from headway.score.findings import Findings, kind, parse_json, read_text

_IDS = ("id", "image_id", "image", "file", "name", "id_code")
_LABELS = ("label", "target", "truth", "grade", "y_true")
_PREDICTIONS = ("prediction", "predicted", "pred", "y_pred")
_PROBABILITIES = "probabilities"  # in JSON a list; in CSV the columns p_0, p_1, … or probability_0, …

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Judged:
    """What was predicted for each sample, and what is true; as they stand in the file."""

    labels: list[Any]
    predictions: list[Any]
    probabilities: list[list[float]] | None
    columns: list[int] | None  # the class of each probability, where the file says it: p_1, p_2 …
    notes: list[str]


def read_judged(predictions: Path, labels: Path | None = None, *, allow_missing: bool = False) -> Judged:
    """Samples with label and prediction, from one file that has both or from two that share an id (or an order)."""
    findings, notes = Findings(), list[str]()
    guesses = read_rows(predictions)
    if labels is None:
        pairs = [(row, row) for row in guesses]
        label_path = predictions
    else:
        pairs, notes = _pair(guesses, read_rows(labels), (predictions, labels), findings, allow_missing)
        label_path = labels
    if not pairs:
        findings.refuse()
        raise BadInput("there are no samples to score", where=str(predictions))
    label_key = _column(pairs[0][1], _LABELS, "true", label_path)
    guess_key = _column(pairs[0][0], _PREDICTIONS, "predicted", predictions, alone=labels is not None)
    truth = [_value(row, label_key, label_path, number, findings) for number, (_, row) in enumerate(pairs, 1)]
    guess = [_value(row, guess_key, predictions, number, findings) for number, (row, _) in enumerate(pairs, 1)]
    columns = _probability_columns(pairs[0][0])
    probabilities = _probabilities([row for row, _ in pairs], columns, predictions, findings)
    findings.refuse()
    return Judged(truth, guess, probabilities, list(columns.values()) or None, notes)


def read_rows(path: Path) -> list[Row]:
    """The rows of a table: CSV with a header, a JSON list of objects, or an object on each line."""
    text = read_text(path)
    start = text.lstrip()[:1]
    if path.suffix.lower() in (".jsonl", ".ndjson") or (start == "{" and path.suffix.lower() != ".json"):
        lines = [line for line in text.split("\n") if line.strip()]
        return _objects([parse_json(line, path) for line in lines], path)
    if start in ("[", "{"):
        return _objects(parse_json(text, path), path)
    return _csv(text, path)


def _objects(rows: object, path: Path) -> list[Row]:
    if not isinstance(rows, list):
        raise BadInput(f"rows must be a list of objects, not {kind(rows)}", where=str(path))
    findings = Findings()
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            findings.add(path, "rows that are no objects", f"number {number} is {kind(row)}")
    findings.refuse()
    return rows


def _csv(text: str, path: Path) -> list[Row]:
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise BadInput(f"not CSV: {error}", where=str(path)) from None
    rows = [row for row in rows if row]
    if not rows:
        raise BadInput("the file is empty", where=str(path))
    header, findings = [name.strip() for name in rows[0]], Findings()
    if len(set(header)) != len(header):
        raise BadInput("two columns have the same name", where=f"{path}:1")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            findings.add(path, f"rows without exactly {len(header)} columns", f"row {number} has {len(row)}")
    findings.refuse()
    return [dict(zip(header, row, strict=True)) for row in rows[1:]]


def _pair(
    guesses: Sequence[Row], truths: Sequence[Row], paths: tuple[Path, Path], findings: Findings, allow_missing: bool
) -> tuple[list[tuple[Row, Row]], list[str]]:
    key = next((name for name in _IDS if guesses and truths and name in guesses[0] and name in truths[0]), None)
    if key is None:
        if len(guesses) != len(truths):
            raise BadInput(
                f"{len(guesses):,} predictions in {paths[0]}, but {len(truths):,} labels in {paths[1]}",
                fix=f"give both files a column {_IDS[0]!r}, so that they can be paired",
            )
        return list(zip(guesses, truths, strict=True)), []
    mine, theirs = _by_id(guesses, key, paths[0], findings), _by_id(truths, key, paths[1], findings)
    notes = []
    for path, here, there, what in (
        (paths[0], mine, theirs, "predictions without a label"),
        (paths[1], theirs, mine, "labels without a prediction"),
    ):
        alone = [one for one in here if one not in there]
        if allow_missing and alone:
            notes.append(f"{path.name}: {len(alone):,} {what} were left out")
        elif alone:
            for one in alone:
                findings.add(path, what, one, fix="--allow-missing scores the samples that are in both files")
    return [(row, theirs[one]) for one, row in mine.items() if one in theirs], notes


def _by_id(rows: Sequence[Row], key: str, path: Path, findings: Findings) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for number, row in enumerate(rows, 1):
        if key not in row:
            findings.add(path, f"rows without {key}", f"row {number}")
            continue
        one = str(row[key])
        if one in found:
            findings.add(path, f"rows whose {key} was used before", one)
        found.setdefault(one, row)
    return found


def _column(row: Row, names: Sequence[str], what: str, path: Path, *, alone: bool = False) -> str:
    """The column of the names that the table has. A file of predictions alone may call them labels."""
    wanted = (*names, *_LABELS) if alone else names
    for name in wanted:
        if name in row:
            return name
    raise BadInput(
        f"no column says what was {what}: there are {', '.join(map(str, row)) or 'none'}",
        where=str(path),
        fix=f"name it {' or '.join(map(repr, names))}",
    )


def _value(row: Row, key: str, path: Path, number: int, findings: Findings) -> Any:
    value = row.get(key)
    if isinstance(value, str):
        value = value.strip()
    if value is None or value == "" or isinstance(value, (bool, list, dict)):
        findings.add(path, f"rows without a usable {key}", f"row {number}")
        return None
    return value


def _probabilities(
    rows: Sequence[Row], columns: Mapping[str, int], path: Path, findings: Findings
) -> list[list[float]] | None:
    if not columns and _PROBABILITIES not in rows[0]:
        return None
    found = []
    for number, row in enumerate(rows, 1):
        given: Any = [row.get(name) for name in columns] if columns else row.get(_PROBABILITIES)
        try:
            found.append([float(value) for value in given or ()])
        except (TypeError, ValueError):
            findings.add(path, "rows whose probabilities are no numbers", f"row {number}")
    for number, values in enumerate(found, 1):
        if len(values) != len(found[0]):
            findings.add(path, f"rows without {len(found[0])} probabilities like the first", f"row {number}")
    return found


def _probability_columns(row: Row) -> dict[str, int]:
    """The columns of probabilities, and the class that each is of, in order."""
    for prefix in ("p_", "probability_"):
        numbers = {name: name.removeprefix(prefix) for name in row if name.startswith(prefix)}
        found = {name: int(number) for name, number in numbers.items() if number.isdecimal()}
        if found:
            return dict(sorted(found.items(), key=lambda item: item[1]))
    return {}
