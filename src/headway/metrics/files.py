"""Scoring of files for `headway score`: read, validate, score. Invalid input is listed, counted and rejected."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core.errors import BadInput
from headway.metrics import captions as meteor_jar
from headway.metrics import classification, ordinal, translation
from headway.metrics.captions import CaptionScorer
from headway.metrics.ptb_tokenizer import tokenize
from headway.metrics.samples import InputProblems, kind, parse_json, read_text, short

# COCO results and annotations, read and paired.


PictureId = int | str

_RESULTS = '[{"image_id": 1, "caption": "a dog"}, …]'
_ANNOTATIONS = '{"annotations": [{"id": 1, "image_id": 1, "caption": "a dog"}, …]}'


@dataclass(slots=True)
class EvalSet:
    """The pictures to score, in the order of the results: one hypothesis and all references each."""

    pictures: list[PictureId]
    hypotheses: list[str]
    references: list[list[str]]
    notes: list[str] = field(default_factory=list)  # samples excluded because an option allowed it


def read_caption_files(
    results_path: Path, references_path: Path, *, tokenized: bool, allow_missing: bool, allow_empty: bool
) -> EvalSet:
    """Read both files. One BadInput lists all problems of both.

    `allow_missing` scores the pictures that are in both; `allow_empty` keeps empty results and drops empty references.
    """
    problems, notes = InputProblems(), list[str]()
    results = _read_results(results_path, problems)
    references = _read_references(references_path, problems)
    without_caption = [picture for picture, caption in results.items() if not _has_words(caption, tokenized)]
    notes += _reject_or_note(
        problems, allow_empty, results_path, _EMPTY, without_caption, "--allow-empty scores them as they are"
    )
    empty = _remove_empty(references, tokenized)
    notes += _reject_or_note(problems, allow_empty, references_path, _EMPTY, empty, "--allow-empty leaves them out")
    both = "--allow-missing scores the pictures that are in both files"
    for path, missing in (
        (results_path, _only_in(results, references, "references")),
        (references_path, _only_in(references, results, "a result")),
    ):
        notes += _reject_or_note(problems, allow_missing, path, *missing, both)
    problems.raise_if_any()
    pictures = [picture for picture in results if picture in references]
    if not pictures:
        raise BadInput(f"no picture has both a result in {results_path} and references in {references_path}")
    return EvalSet(pictures, [results[one] for one in pictures], [references[one] for one in pictures], notes)


_EMPTY = "captions without a word, of pictures"


def _reject_or_note(
    problems: InputProblems, allowed: bool, path: Path, what: str, culprits: Collection[PictureId], fix: str
) -> list[str]:
    if allowed:
        done = fix.partition(" ")[2]  # the second half of the hint: what the option does
        return [f"{path.name}: {len(culprits):,} {what.removesuffix(', of pictures')}; {done}"] if culprits else []
    for culprit in culprits:
        problems.add(path, what, culprit, fix=fix)
    return []


def _only_in(here: Collection[PictureId], there: Collection[PictureId], wanted: str) -> tuple[str, list[PictureId]]:
    alone = [picture for picture in here if picture not in there]
    what = f"pictures without {wanted}"
    if len(alone) == len(here) and set(map(str, here)) & set(map(str, there)):
        what += " (image_id is text in one file and a number in the other)"
    return what, alone


def _remove_empty(references: dict[PictureId, list[str]], tokenized: bool) -> list[PictureId]:
    """Remove references without words, and pictures left without any. Return their picture ids."""
    empty = []
    for picture, captions in list(references.items()):
        kept = [caption for caption in captions if _has_words(caption, tokenized)]
        empty += [picture] * (len(captions) - len(kept))
        references[picture] = kept
        if not kept:
            del references[picture]
    return empty


def _has_words(caption: str, tokenized: bool) -> bool:
    return bool(caption.split() if tokenized else tokenize(caption))


def _read_results(path: Path, problems: InputProblems) -> dict[PictureId, str]:
    entries = parse_json(read_text(path), path)
    if not isinstance(entries, list):
        raise BadInput(f"results must be a list, not {kind(entries)}", where=str(path), fix=_RESULTS)
    results: dict[PictureId, str] = {}
    for picture, caption in _captions(entries, path, "results", problems):
        if picture in results:
            problems.add(path, "results for a picture that has one already", picture)
        results.setdefault(picture, caption)
    return results


def _read_references(path: Path, problems: InputProblems) -> dict[PictureId, list[str]]:
    raw = parse_json(read_text(path), path)
    entries = raw.get("annotations") if isinstance(raw, Mapping) else raw
    if not isinstance(entries, list):
        found = 'an object without a list "annotations"' if isinstance(raw, Mapping) else kind(raw)
        raise BadInput(f"references must be COCO annotations, not {found}", where=str(path), fix=_ANNOTATIONS)
    for twice in _repeated(entry.get("id") for entry in entries if isinstance(entry, Mapping)):
        problems.add(path, "annotations with an id used before", twice)
    references: dict[PictureId, list[str]] = {}
    for picture, caption in _captions(entries, path, "annotations", problems):
        references.setdefault(picture, []).append(caption)
    return references


def _captions(entries: list[Any], path: Path, noun: str, problems: InputProblems) -> Iterator[tuple[PictureId, str]]:
    """Yield every well-formed picture and caption; record the others in `problems`."""
    for number, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            problems.add(path, f"{noun} that are not objects", f"number {number} is {kind(entry)}")
            continue
        missing = [key for key in ("image_id", "caption") if key not in entry]
        if missing:
            problems.add(path, f"{noun} without {' and '.join(missing)}", f"number {number}")
            continue
        picture, caption = entry["image_id"], entry["caption"]
        if isinstance(picture, bool) or not isinstance(picture, (int, str)):
            problems.add(
                path, f"{noun} whose image_id is neither a whole number nor text", f"number {number}: {kind(picture)}"
            )
        elif not isinstance(caption, str):
            problems.add(path, f"{noun} whose caption is not text", f"picture {short(picture)}: {kind(caption)}")
        else:
            yield picture, caption


def _repeated(ids: Iterable[object]) -> Iterator[object]:
    seen: set[Hashable] = set()
    for one in ids:
        if one is not None and isinstance(one, Hashable):
            if one in seen:
                yield one
            seen.add(one)


# Predictions and labels from CSV, JSON or JSON lines, paired by id or by order. All problems are reported at once.


_IDS = ("id", "image_id", "image", "file", "name", "id_code")
_LABELS = ("label", "target", "truth", "grade", "y_true")
_PREDICTIONS = ("prediction", "predicted", "pred", "y_pred")
_PROBABILITIES = "probabilities"  # in JSON a list; in CSV the columns p_0, p_1, … or probability_0, …

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions and labels per sample, with the values as in the file."""

    labels: list[Any]
    predictions: list[Any]
    probabilities: list[list[float]] | None
    columns: list[int] | None  # the class of each probability column, if the file names them: p_1, p_2 …
    notes: list[str]


def read_predictions(predictions: Path, labels: Path | None = None, *, allow_missing: bool = False) -> Predictions:
    """Read samples with label and prediction, from one file with both or from two paired by id (or by order)."""
    problems, notes = InputProblems(), list[str]()
    guesses = read_rows(predictions)
    if labels is None:
        pairs = [(row, row) for row in guesses]
        label_path = predictions
    else:
        pairs, notes = _pair(guesses, read_rows(labels), (predictions, labels), problems, allow_missing)
        label_path = labels
    if not pairs:
        problems.raise_if_any()
        raise BadInput("there are no samples to score", where=str(predictions))
    label_key = _column(pairs[0][1], _LABELS, "true", label_path)
    guess_key = _column(pairs[0][0], _PREDICTIONS, "predicted", predictions, alone=labels is not None)
    truth = [_value(row, label_key, label_path, number, problems) for number, (_, row) in enumerate(pairs, 1)]
    guess = [_value(row, guess_key, predictions, number, problems) for number, (row, _) in enumerate(pairs, 1)]
    columns = _probability_columns(pairs[0][0])
    probabilities = _probabilities([row for row, _ in pairs], columns, predictions, problems)
    problems.raise_if_any()
    return Predictions(truth, guess, probabilities, list(columns.values()) or None, notes)


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a table: CSV with a header, a JSON list of objects, or JSON lines."""
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
    problems = InputProblems()
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            problems.add(path, "rows that are not objects", f"number {number} is {kind(row)}")
    problems.raise_if_any()
    return rows


def _csv(text: str, path: Path) -> list[Row]:
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise BadInput(f"not CSV: {error}", where=str(path)) from None
    rows = [row for row in rows if row]
    if not rows:
        raise BadInput("the file is empty", where=str(path))
    header, problems = [name.strip() for name in rows[0]], InputProblems()
    if len(set(header)) != len(header):
        raise BadInput("two columns have the same name", where=f"{path}:1")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            problems.add(path, f"rows without exactly {len(header)} columns", f"row {number} has {len(row)}")
    problems.raise_if_any()
    return [dict(zip(header, row, strict=True)) for row in rows[1:]]


def _pair(
    guesses: Sequence[Row],
    truths: Sequence[Row],
    paths: tuple[Path, Path],
    problems: InputProblems,
    allow_missing: bool,
) -> tuple[list[tuple[Row, Row]], list[str]]:
    key = next((name for name in _IDS if guesses and truths and name in guesses[0] and name in truths[0]), None)
    if key is None:
        if len(guesses) != len(truths):
            raise BadInput(
                f"{len(guesses):,} predictions in {paths[0]}, but {len(truths):,} labels in {paths[1]}",
                fix=f"give both files a column {_IDS[0]!r}, so that they can be paired",
            )
        return list(zip(guesses, truths, strict=True)), []
    mine, theirs = _by_id(guesses, key, paths[0], problems), _by_id(truths, key, paths[1], problems)
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
                problems.add(path, what, one, fix="--allow-missing scores the samples that are in both files")
    return [(row, theirs[one]) for one, row in mine.items() if one in theirs], notes


def _by_id(rows: Sequence[Row], key: str, path: Path, problems: InputProblems) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for number, row in enumerate(rows, 1):
        if key not in row:
            problems.add(path, f"rows without {key}", f"row {number}")
            continue
        one = str(row[key])
        if one in found:
            problems.add(path, f"rows whose {key} was used before", one)
        found.setdefault(one, row)
    return found


def _column(row: Row, names: Sequence[str], what: str, path: Path, *, alone: bool = False) -> str:
    """Find the first of the names that the table has. A file of predictions alone may call its column a label."""
    wanted = (*names, *_LABELS) if alone else names
    for name in wanted:
        if name in row:
            return name
    raise BadInput(
        f"no column has the {what} class: the columns are {', '.join(map(str, row)) or 'none'}",
        where=str(path),
        fix=f"name it {' or '.join(map(repr, names))}",
    )


def _value(row: Row, key: str, path: Path, number: int, problems: InputProblems) -> Any:
    value = row.get(key)
    if isinstance(value, str):
        value = value.strip()
    if value is None or value == "" or isinstance(value, (bool, list, dict)):
        problems.add(path, f"rows without a usable {key}", f"row {number}")
        return None
    return value


def _probabilities(
    rows: Sequence[Row], columns: Mapping[str, int], path: Path, problems: InputProblems
) -> list[list[float]] | None:
    if not columns and _PROBABILITIES not in rows[0]:
        return None
    found = []
    for number, row in enumerate(rows, 1):
        given: Any = [row.get(name) for name in columns] if columns else row.get(_PROBABILITIES)
        try:
            found.append([float(value) for value in given or ()])
        except (TypeError, ValueError):
            problems.add(path, "rows whose probabilities are not numbers", f"row {number}")
    for number, values in enumerate(found, 1):
        if len(values) != len(found[0]):
            problems.add(path, f"rows without {len(found[0])} probabilities like the first", f"row {number}")
    return found


def _probability_columns(row: Row) -> dict[str, int]:
    """Return the probability columns in order, with the class of each."""
    for prefix in ("p_", "probability_"):
        numbers = {name: name.removeprefix(prefix) for name in row if name.startswith(prefix)}
        found = {name: int(number) for name, number in numbers.items() if number.isdecimal()}
        if found:
            return dict(sorted(found.items(), key=lambda item: item[1]))
    return {}


def score_captions(
    results: str | Path,
    references: str | Path,
    *,
    tokenized: bool = False,
    per_image: bool = False,
    allow_missing: bool = False,
    allow_empty: bool = False,
    meteor: bool = True,
) -> dict[str, Any]:
    """Score COCO results against COCO annotations: bleu_1 … bleu_4, rouge_l, cider, and meteor if Java is installed.

    Args:
        results: JSON file: `[{"image_id": 1, "caption": "a dog"}, …]`.
        references: JSON file: `{"annotations": [{"id": 1, "image_id": 1, "caption": "a dog"}, …]}`, or that list.
        tokenized: Whether captions are words separated by spaces already.
        per_image: Whether to return the scores of each picture, too.
        allow_missing: Whether to score the pictures that are in both files, if some are in one only.
        allow_empty: Whether to score empty results as they are, and leave out empty references.
        meteor: Whether to compute METEOR, which is slow.

    Returns:
        The scores, `pictures`, `references` and `notes`, and with `per_image` the scores of each picture under its id.

    Raises:
        BadInput: With all problems of both files: two results for a picture, duplicate ids, wrong types, and anything
            that the options do not allow.

    Example:
        >>> import json
        >>> from pathlib import Path
        >>> from headway.metrics.files import score_captions
        >>> result = {"image_id": 1, "caption": "a dog runs on grass"}
        >>> _ = Path("results.json").write_text(json.dumps([result]))
        >>> _ = Path("references.json").write_text(json.dumps({"annotations": [{"id": 7, **result}]}))
        >>> scores = score_captions("results.json", "references.json", meteor=False)
        >>> scores["pictures"], scores["rouge_l"]
        (1, 1.0)
    """
    pair = read_caption_files(
        Path(results), Path(references), tokenized=tokenized, allow_missing=allow_missing, allow_empty=allow_empty
    )
    scorer = CaptionScorer(pair.references, tokenized=tokenized)
    scores = scorer.measure(pair.hypotheses)
    corpus, each, notes = scores.corpus(), scores.each(), pair.notes
    if meteor and (reason := meteor_jar.unavailable_reason()):
        notes = [*notes, f"meteor is left out: {reason}"]
    elif meteor:
        corpus["meteor"], each["meteor"] = meteor_jar.meteor(scorer.tokens(pair.hypotheses), scorer.groups)
    counts = {"pictures": len(pair.pictures), "references": sum(map(len, pair.references))}
    answer: dict[str, Any] = {**corpus, **counts, "notes": notes}
    if per_image:
        rows = (dict(zip(each, row, strict=True)) for row in zip(*each.values(), strict=True))
        answer["per_image"] = dict(zip(map(str, pair.pictures), rows, strict=True))
    return answer


def score_ordinal(
    predictions: str | Path,
    labels: str | Path | None = None,
    *,
    grades: Sequence[int] | None = None,
    allow_missing: bool = False,
) -> dict[str, Any]:
    r"""Score grades from one table or two: qwk, mae, accuracy, within_one, a row per grade and the confusion matrix.

    Tables are CSV, JSON or JSON lines with the columns `label` and `prediction`. With probabilities (columns `p_1`,
    `p_2` …, or a list `probabilities`) there are also ece and emd2.

    Args:
        predictions: The table of predictions, and of labels if there is no other.
        labels: The table of labels, paired with the other by `id`, or by order if there is none.
        grades: Consecutive integers. None: those of the probabilities, or the range that occurs.
        allow_missing: Whether to score the samples that are in both tables, if some are in one only.

    Returns:
        The report of `headway.metrics.ordinal.OrdinalScores`.

    Raises:
        BadInput: With all problems of the tables.

    Example:
        >>> from pathlib import Path
        >>> from headway.metrics.files import score_ordinal
        >>> _ = Path("grades.csv").write_text("label,prediction\n1,1\n2,2\n3,2\n")
        >>> round(score_ordinal("grades.csv")["mae"], 3)
        0.333
    """
    pairs = read_predictions(Path(predictions), Path(labels) if labels else None, allow_missing=allow_missing)
    truth, guess = _integer_columns(pairs, Path(predictions), Path(labels or predictions))
    if grades is None and pairs.probabilities:
        grades = pairs.columns or _numbered(len(pairs.probabilities[0]), [*truth, *guess])
    report = ordinal.score(truth, guess, pairs.probabilities, grades=grades)
    return {**report, "notes": pairs.notes + report["notes"]}


def score_classification(
    predictions: str | Path,
    labels: str | Path | None = None,
    *,
    top: Sequence[int] = (5,),
    allow_missing: bool = False,
) -> dict[str, Any]:
    r"""Score classes from tables like those of `score_ordinal`: accuracy, macro_f1, per-class rows, confusion matrix.

    Classes are the names or numbers that occur; with probabilities they are the numbers of their columns.

    Args:
        predictions: The table of predictions, and of labels if there is no other.
        labels: The table of labels, paired with the other by `id`, or by order if there is none.
        top: Values of k for top-k accuracy.
        allow_missing: Whether to score the samples that are in both tables, if some are in one only.

    Returns:
        The report of `headway.metrics.classification.ClassificationScores`.

    Raises:
        BadInput: With all problems of the tables.

    Example:
        >>> from pathlib import Path
        >>> from headway.metrics.files import score_classification
        >>> _ = Path("classes.csv").write_text("label,prediction\ncat,cat\ndog,cat\n")
        >>> score_classification("classes.csv")["accuracy"]
        0.5
    """
    pairs = read_predictions(Path(predictions), Path(labels) if labels else None, allow_missing=allow_missing)
    if pairs.probabilities:
        numbers = _integer_columns(pairs, Path(predictions), Path(labels or predictions))
        truth, guess = list(map(str, numbers[0])), list(map(str, numbers[1]))
        classes = list(map(str, pairs.columns or _numbered(len(pairs.probabilities[0]), [*numbers[0], *numbers[1]])))
    else:
        truth, guess = list(map(str, pairs.labels)), list(map(str, pairs.predictions))
        classes = sorted({*truth, *guess}, key=_natural)
    place = {name: number for number, name in enumerate(classes)}
    if strange := [name for name in truth + guess if name not in place]:
        raise BadInput(f"class {strange[0]} has no probability", where=str(predictions))
    rows = [place[name] for name in truth], [place[name] for name in guess]
    report = classification.score(*rows, pairs.probabilities, classes=classes, top=top)
    return {**report, "notes": pairs.notes + report["notes"]}


def score_translation(
    hypotheses: str | Path,
    references: str | Path | Sequence[str | Path],
    *,
    tokenizer: str = "13a",
    lowercase: bool = False,
    allow_empty: bool = False,
) -> dict[str, Any]:
    r"""Score a file with one sentence per line by sacrebleu: bleu and chrf, with signatures.

    Args:
        hypotheses: File of the translations.
        references: File of the references, or several files if each sentence has several translations.
        tokenizer: Name of a sacrebleu tokenizer.
        lowercase: Whether to ignore case.
        allow_empty: Whether to score empty lines as they are.

    Returns:
        What `headway.metrics.translation.score` returns, and `notes`.

    Raises:
        BadInput: If the files differ in length, or lines are empty and that is not allowed.
        MissingExtra: If sacrebleu is not installed.

    Example:
        >>> from pathlib import Path
        >>> from headway.metrics.files import score_translation
        >>> _ = Path("mine.txt").write_text("the dog runs in the park\n")
        >>> round(score_translation("mine.txt", "mine.txt")["bleu"], 1)
        100.0
    """
    paths = [references] if isinstance(references, (str, Path)) else list(references)
    if not paths:
        raise BadInput("no file of references was given")
    mine, theirs = _lines(Path(hypotheses)), [_lines(Path(path)) for path in paths]
    problems, fix = InputProblems(), "--allow-empty scores them as they are"
    for path, lines in zip(paths, theirs, strict=True):
        if len(lines) != len(mine):
            raise BadInput(f"{len(lines):,} lines, but {hypotheses} has {len(mine):,}", where=str(path))
    empty = 0
    for path, lines in zip([hypotheses, *paths], [mine, *theirs], strict=True):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                empty += 1
                problems.add(Path(path), "empty lines", f"line {number}", fix=fix)
    if not allow_empty:
        problems.raise_if_any()
    report = translation.score(mine, theirs, tokenizer=tokenizer, lowercase=lowercase)
    return {**report, "notes": [f"{empty:,} empty lines were scored as they are"] if empty else []}


def _lines(path: Path) -> list[str]:
    """Split a text at LF and CRLF only. Other line separators are part of a sentence: files must stay aligned."""
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _integer_columns(pairs: Predictions, predictions: Path, labels: Path) -> tuple[list[int], list[int]]:
    problems, columns = InputProblems(), []
    for path, what, values in ((labels, "labels", pairs.labels), (predictions, "predictions", pairs.predictions)):
        column = []
        for number, value in enumerate(values, 1):
            whole = _to_integer(value)
            if whole is None:
                problems.add(path, f"{what} that are not whole numbers", f"row {number}: {value}")
            else:
                column.append(whole)
        columns.append(column)
    problems.raise_if_any()
    return columns[0], columns[1]


def _to_integer(value: object) -> int | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if abs(number) < _HUGE and number == int(number) else None


_HUGE = 1e9  # a higher grade or class is a mistake: a matrix of this size would not fit in memory


def _numbered(count: int, seen: Sequence[int]) -> list[int]:
    """Return the classes of a plain list of probabilities: numbered from 0, or from 1 if the highest label says so."""
    first = 1 if max(seen) == count and min(seen) >= 1 else 0
    return list(range(first, first + count))


def _natural(name: str) -> tuple[bool, int, str]:
    """Sort key: 2 before 10, and numbers before names."""
    number = int(name) if name.isdecimal() and len(name) < 10 else 0
    return not name.isdecimal(), number, name
