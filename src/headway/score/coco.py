"""COCO's results and annotations, read and paired. Whatever does not fit is named, counted and refused."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import BadInput
from headway.score.findings import Findings, kind, parse_json, read_text, short
from headway.score.ptb import tokenize

PictureId = int | str

_RESULTS = '[{"image_id": 1, "caption": "a dog"}, …]'
_ANNOTATIONS = '{"annotations": [{"id": 1, "image_id": 1, "caption": "a dog"}, …]}'


@dataclass(slots=True)
class Paired:
    """The pictures to score: one hypothesis and all references for each, in the order of the results."""

    pictures: list[PictureId]
    hypotheses: list[str]
    references: list[list[str]]
    notes: list[str] = field(default_factory=list)  # what was left out, since it was allowed


def read_pair(
    results_path: Path, references_path: Path, *, tokenized: bool, allow_missing: bool, allow_empty: bool
) -> Paired:
    """Reads both files. All problems of both are in one BadInput.

    `allow_missing` takes the pictures that are in both; `allow_empty` keeps empty results and drops empty references.
    """
    findings, notes = Findings(), list[str]()
    results = _read_results(results_path, findings)
    references = _read_references(references_path, findings)
    silent = [picture for picture, caption in results.items() if not _has_words(caption, tokenized)]
    notes += _refuse_or_note(
        findings, allow_empty, results_path, _EMPTY, silent, "--allow-empty scores them as they are"
    )
    empty = _take_empty(references, tokenized)
    notes += _refuse_or_note(findings, allow_empty, references_path, _EMPTY, empty, "--allow-empty leaves them out")
    both = "--allow-missing scores the pictures that are in both files"
    for path, missing in (
        (results_path, _only_in(results, references, "references")),
        (references_path, _only_in(references, results, "a result")),
    ):
        notes += _refuse_or_note(findings, allow_missing, path, *missing, both)
    findings.refuse()
    pictures = [picture for picture in results if picture in references]
    if not pictures:
        raise BadInput(f"no picture has both a result in {results_path} and references in {references_path}")
    return Paired(pictures, [results[one] for one in pictures], [references[one] for one in pictures], notes)


_EMPTY = "captions without a word, of pictures"


def _refuse_or_note(
    findings: Findings, allowed: bool, path: Path, what: str, culprits: Collection[PictureId], fix: str
) -> list[str]:
    if allowed:
        done = fix.partition(" ")[2]  # what the option does
        return [f"{path.name}: {len(culprits):,} {what.removesuffix(', of pictures')}; {done}"] if culprits else []
    for culprit in culprits:
        findings.add(path, what, culprit, fix=fix)
    return []


def _only_in(here: Collection[PictureId], there: Collection[PictureId], wanted: str) -> tuple[str, list[PictureId]]:
    alone = [picture for picture in here if picture not in there]
    what = f"pictures without {wanted}"
    if len(alone) == len(here) and set(map(str, here)) & set(map(str, there)):
        what += " (image_id is text in one file and a number in the other)"
    return what, alone


def _take_empty(references: dict[PictureId, list[str]], tokenized: bool) -> list[PictureId]:
    """Takes references without a word out, and pictures without any other. Returns whose they were."""
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


def _read_results(path: Path, findings: Findings) -> dict[PictureId, str]:
    entries = parse_json(read_text(path), path)
    if not isinstance(entries, list):
        raise BadInput(f"results must be a list, not {kind(entries)}", where=str(path), fix=_RESULTS)
    results: dict[PictureId, str] = {}
    for picture, caption in _captions(entries, path, "results", findings):
        if picture in results:
            findings.add(path, "results for a picture that has one already", picture)
        results.setdefault(picture, caption)
    return results


def _read_references(path: Path, findings: Findings) -> dict[PictureId, list[str]]:
    raw = parse_json(read_text(path), path)
    entries = raw.get("annotations") if isinstance(raw, Mapping) else raw
    if not isinstance(entries, list):
        found = 'an object without a list "annotations"' if isinstance(raw, Mapping) else kind(raw)
        raise BadInput(f"references must be COCO annotations, not {found}", where=str(path), fix=_ANNOTATIONS)
    for twice in _repeated(entry.get("id") for entry in entries if isinstance(entry, Mapping)):
        findings.add(path, "annotations with an id used before", twice)
    references: dict[PictureId, list[str]] = {}
    for picture, caption in _captions(entries, path, "annotations", findings):
        references.setdefault(picture, []).append(caption)
    return references


def _captions(entries: list[Any], path: Path, noun: str, findings: Findings) -> Iterator[tuple[PictureId, str]]:
    """Every picture and caption that is well formed; the others go to the findings."""
    for number, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            findings.add(path, f"{noun} that are no objects", f"number {number} is {kind(entry)}")
            continue
        missing = [key for key in ("image_id", "caption") if key not in entry]
        if missing:
            findings.add(path, f"{noun} without {' and '.join(missing)}", f"number {number}")
            continue
        picture, caption = entry["image_id"], entry["caption"]
        if isinstance(picture, bool) or not isinstance(picture, (int, str)):
            findings.add(path, f"{noun} whose image_id is no whole number or text", f"number {number}: {kind(picture)}")
        elif not isinstance(caption, str):
            findings.add(path, f"{noun} whose caption is no text", f"picture {short(picture)}: {kind(caption)}")
        else:
            yield picture, caption


def _repeated(ids: Iterable[object]) -> Iterator[object]:
    seen: set[Hashable] = set()
    for one in ids:
        if one is not None and isinstance(one, Hashable):
            if one in seen:
                yield one
            seen.add(one)
