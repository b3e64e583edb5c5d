"""Scores of files, as `headway score` gives them: reads, checks, scores. Bad input is named, counted and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.score import meteor as meteor_jar
from headway.score.captions import CaptionScorer
from headway.score.coco import read_pair


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
