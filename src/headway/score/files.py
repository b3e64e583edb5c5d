"""Scores of files, as `headway score` gives them: reads, checks, scores. Bad input is named, counted and refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.errors import BadInput
from headway.score import classification, ordinal, translation
from headway.score import meteor as meteor_jar
from headway.score.captions import CaptionScorer
from headway.score.coco import read_pair
from headway.score.findings import Findings, read_text
from headway.score.tables import Judged, read_judged


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
    """bleu_1 … bleu_4, rouge_l, cider, and meteor where Java is, of COCO's results against COCO's annotations.

    Refused unless allowed: pictures in one file only (`allow_missing` scores those in both) and empty captions. Always
    refused: two results for a picture, ids used twice, wrong types. `pictures`, `references` and `notes` come with
    the scores, and with `per_image` the scores of each picture under its id.
    """
    pair = read_pair(
        Path(results), Path(references), tokenized=tokenized, allow_missing=allow_missing, allow_empty=allow_empty
    )
    scorer = CaptionScorer(pair.references, tokenized=tokenized)
    scores = scorer.measure(pair.hypotheses)
    corpus, each, notes = scores.corpus(), scores.each(), pair.notes
    if meteor and (reason := meteor_jar.why_not()):
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
    """qwk, mae, accuracy, within_one, a row for each grade and the confusion matrix, from one table or two.

    Tables are CSV, JSON or JSON lines with the columns `label` and `prediction`, paired by `id` where they are two
    files. With probabilities (columns `p_1`, `p_2` …, or a list `probabilities`) also ece and emd2.
    """
    judged = read_judged(Path(predictions), Path(labels) if labels else None, allow_missing=allow_missing)
    truth, guess = _whole_numbers(judged, Path(predictions), Path(labels or predictions))
    if grades is None and judged.probabilities:
        grades = judged.columns or _numbered(len(judged.probabilities[0]), [*truth, *guess])
    report = ordinal.score(truth, guess, judged.probabilities, grades=grades)
    return {**report, "notes": judged.notes + report["notes"]}


def score_classification(
    predictions: str | Path,
    labels: str | Path | None = None,
    *,
    top: Sequence[int] = (5,),
    allow_missing: bool = False,
) -> dict[str, Any]:
    """accuracy, macro_f1, a row for each class and the confusion matrix, from tables like those of `score_ordinal`.

    Classes are whatever names or numbers occur; with probabilities they are the numbers of their columns.
    """
    judged = read_judged(Path(predictions), Path(labels) if labels else None, allow_missing=allow_missing)
    if judged.probabilities:
        numbers = _whole_numbers(judged, Path(predictions), Path(labels or predictions))
        truth, guess = list(map(str, numbers[0])), list(map(str, numbers[1]))
        classes = list(map(str, judged.columns or _numbered(len(judged.probabilities[0]), [*numbers[0], *numbers[1]])))
    else:
        truth, guess = list(map(str, judged.labels)), list(map(str, judged.predictions))
        classes = sorted({*truth, *guess}, key=_natural)
    place = {name: number for number, name in enumerate(classes)}
    if strange := [name for name in truth + guess if name not in place]:
        raise BadInput(f"class {strange[0]} has no probability", where=str(predictions))
    rows = [place[name] for name in truth], [place[name] for name in guess]
    report = classification.score(*rows, judged.probabilities, classes=classes, top=top)
    return {**report, "notes": judged.notes + report["notes"]}


def score_translation(
    hypotheses: str | Path,
    references: str | Path | Sequence[str | Path],
    *,
    tokenizer: str = "13a",
    lowercase: bool = False,
    allow_empty: bool = False,
) -> dict[str, Any]:
    """bleu and chrf of a file with a sentence on each line, by sacrebleu, with its signature."""
    paths = [references] if isinstance(references, (str, Path)) else list(references)
    if not paths:
        raise BadInput("there is no file of references")
    mine, theirs = _lines(Path(hypotheses)), [_lines(Path(path)) for path in paths]
    findings, fix = Findings(), "--allow-empty scores them as they are"
    for path, lines in zip(paths, theirs, strict=True):
        if len(lines) != len(mine):
            raise BadInput(f"{len(lines):,} lines, but {hypotheses} has {len(mine):,}", where=str(path))
    empty = 0
    for path, lines in zip([hypotheses, *paths], [mine, *theirs], strict=True):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                empty += 1
                findings.add(Path(path), "empty lines", f"line {number}", fix=fix)
    if not allow_empty:
        findings.refuse()
    report = translation.score(mine, theirs, tokenizer=tokenizer, lowercase=lowercase)
    return {**report, "notes": [f"{empty:,} empty lines were scored as they are"] if empty else []}


def _lines(path: Path) -> list[str]:
    """The lines of a text, however they end. Other line separators are part of a sentence: files must stay in step."""
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _whole_numbers(judged: Judged, predictions: Path, labels: Path) -> tuple[list[int], list[int]]:
    findings, columns = Findings(), []
    for path, what, values in ((labels, "labels", judged.labels), (predictions, "predictions", judged.predictions)):
        column = []
        for number, value in enumerate(values, 1):
            whole = _whole(value)
            if whole is None:
                findings.add(path, f"{what} that are no whole numbers", f"row {number}: {value}")
            else:
                column.append(whole)
        columns.append(column)
    findings.refuse()
    return columns[0], columns[1]


def _whole(value: object) -> int | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if abs(number) < _HUGE and number == int(number) else None


_HUGE = 1e9  # no grade or class is as high; a table of so many would not fit in memory


def _numbered(count: int, seen: Sequence[int]) -> list[int]:
    """Which classes a plain list of probabilities is of: counted from 0, or from 1 where the highest says so."""
    first = 1 if max(seen) == count and min(seen) >= 1 else 0
    return list(range(first, first + count))


def _natural(name: str) -> tuple[bool, int, str]:
    """Sorts 2 before 10, and numbers before names."""
    number = int(name) if name.isdecimal() and len(name) < 10 else 0
    return not name.isdecimal(), number, name
