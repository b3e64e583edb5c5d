"""Evaluation of translators: sacrebleu's BLEU and chrF, with signatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from headway.artifacts.evaluate import Baseline, Evaluation, Example, Table, extremes
from headway.data.loading.text import SentenceFeed
from headway.metrics.bleu import BleuCounts
from headway.metrics.samples import of_counts, of_values
from headway.metrics.translation import score, translation_counts
from headway.recipes.translation.beam_search import translate, translate_all
from headway.recipes.translation.config import Config
from headway.recipes.translation.data import Pairs, load
from headway.recipes.translation.model import Translator
from headway.spec.model import Cache, Data

if TYPE_CHECKING:
    from headway.training import Run

SHOWN: Final = 24  # examples of each group in the report
LONGEST: Final = 1000  # maximum tokens per sentence in an evaluation: so long that none is skipped
REPORTED: Final = ("bleu", "chrf", "length_ratio")


def validate(run: Run, model: Translator, cfg: Config, pairs: Pairs) -> dict[str, float]:
    """Return loss and scores of greedy translations, each rank translating its share."""
    learning = model.training
    model.eval()
    feed = SentenceFeed(pairs.sources, max(4096, LONGEST + 2), training=False, max_length=LONGEST)
    written = torch.zeros(len(pairs), cfg.max_length, dtype=torch.int64)
    loss, tokens = torch.zeros(()), 0
    with torch.inference_mode():
        for batch in run.evaluating(feed):
            found, count = model(batch["source"], batch["target"])
            loss, tokens = loss + found.cpu(), tokens + int(count)
            translations = translate(model, batch["source"], max_length=cfg.max_length)
            for row, ids in zip(batch["row"].tolist(), translations, strict=True):
                written[row, : len(ids)] = torch.tensor(ids)
    model.train(learning)
    sums = run.total({"loss": float(loss), "tokens": float(tokens)})
    rows: Tensor = run.total(written.to(run.device))
    texts = [model.tokenizer.decode(row) for row in rows.tolist()]
    return {"val_loss": sums["loss"] / sums["tokens"], **scores(pairs, texts)}


def scores(pairs: Pairs, translations: Sequence[str], rows: Sequence[int] | None = None) -> dict[str, float]:
    """Score all or some sentences; for generated phrases, also compute the share of exact matches."""
    references = pairs.texts("target")
    chosen = range(len(translations)) if rows is None else rows
    mine, theirs = [translations[row] for row in chosen], [references[row] for row in chosen]
    measured = score(mine, theirs)
    found = {name: float(measured[name]) for name in REPORTED if measured[name] is not None}
    if pairs.held_out is not None:
        found["exact"] = float(np.mean([one == other for one, other in zip(mine, theirs, strict=True)]))
    return found


def evaluate(model: Translator, cfg: Config, data: Data, split: str, *, cache: Cache | None = None) -> Evaluation:
    """Evaluate the whole split with beam search, and separately seen and held-out combinations."""
    pairs = load(cfg, data, split, cache=cache)
    given, references = pairs.texts("source"), pairs.texts("target")
    translations = translate_all(
        model, given, max_length=cfg.max_length, beam=cfg.beam, length_penalty=cfg.length_penalty
    )
    groups = _groups(pairs)
    by_group = {name: scores(pairs, translations, rows) for name, rows in groups.items()}
    metrics = scores(pairs, translations)
    for name, found in by_group.items():
        metrics |= {f"{metric}_{name}": value for metric, value in found.items() if metric in ("bleu", "exact")}
    good = _sample_quality(translations, references)

    def example(row: int, group: str = "", note: str = "") -> Example:
        right = None if pairs.held_out is None else translations[row] == references[row]
        answer, expected = translations[row], (references[row],)
        return Example(given=given[row], answer=answer, expected=expected, right=right, group=group, note=note)

    best, worst = ([example(row, note=f"{100 * good[row]:.0f} % in common") for row in rows] for rows in extremes(good))
    return Evaluation(
        data=pairs.name,
        count=len(pairs),
        metrics=metrics,
        groups=by_group,
        examples=[
            example(row, group=name)
            for name, rows in (groups or {"": range(len(given))}).items()
            for row in rows[:SHOWN]
        ],
        best=best,
        worst=worst,
        baseline=Baseline(words="returns the source sentence unchanged", metrics=scores(pairs, given)),
        tables=[_signatures(translations, references), _by_length(given, translations, references)],
        samples=_samples(pairs, translations, references),
    )


def _sample_quality(translations: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return, per sentence, the share of n-grams up to length four in common with the reference."""
    counts = translation_counts(translations, references)
    whole = np.maximum(counts.guesses.sum(axis=1), np.maximum(4 * counts.reference_length - 6, 1))
    found: list[float] = (counts.correct.sum(axis=1) / whole).tolist()
    return found


def _groups(pairs: Pairs) -> dict[str, Sequence[int]]:
    """Split rows into held-out and seen combinations; empty unless there are both."""
    if pairs.held_out is None or not pairs.held_out.any() or pairs.held_out.all():
        return {}
    return {
        "held_out": np.flatnonzero(pairs.held_out).tolist(),
        "seen": np.flatnonzero(~pairs.held_out).tolist(),
    }


def _samples(pairs: Pairs, translations: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return each sentence's contribution to each metric, for confidence intervals and comparisons of runs."""
    counts = translation_counts(translations, references)
    found = BleuCounts(counts.correct, counts.guesses, counts.length, counts.reference_length)
    record: dict[str, Any] = {"bleu": of_counts(found, scale=100.0)}
    if pairs.held_out is not None:
        record["exact"] = of_values([one == other for one, other in zip(translations, references, strict=True)])
    return record


def _signatures(translations: Sequence[str], references: Sequence[str]) -> Table:
    """List sacrebleu's signatures, which make scores comparable with published ones."""
    measured = score(translations, references)
    rows = [
        ("bleu", measured["bleu"], measured["signature"]),
        ("chrf", measured["chrf"], measured["chrf_signature"]),
    ]
    return Table(name="signatures", title="Signatures of the metrics", head=("metric", "value", "signature"), rows=rows)


def _by_length(given: Sequence[str], translations: Sequence[str], references: Sequence[str]) -> Table:
    """Return BLEU by sentence length, which shows whether quality drops for long sentences."""
    rows: list[tuple[str | float | None, ...]] = []
    for low, high in ((1, 8), (9, 12), (13, 18), (19, 30), (31, LONGEST)):
        chosen = [row for row, text in enumerate(given) if low <= len(text.split()) <= high]
        if chosen:
            found = score([translations[row] for row in chosen], [references[row] for row in chosen])
            name = f"{low} to {high}" if high < LONGEST else f"{low} and more"
            rows.append((name, len(chosen), found["bleu"], found["length_ratio"]))
    return Table(name="by_length", title="By length", head=("words", "sentences", "bleu", "length ratio"), rows=rows)
