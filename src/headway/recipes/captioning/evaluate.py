"""Evaluation of captioning models: generated captions scored against all references of the same picture."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.artifacts.evaluate import Baseline, Evaluation, Example, extremes
from headway.core.progress import with_progress
from headway.metrics.captions import CaptionScorer
from headway.metrics.samples import of_counts, of_values
from headway.recipes.captioning.beam_search import caption
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import Batch, EvaluationFeed, Pictures, Sources, load
from headway.recipes.captioning.model import Captioner
from headway.spec.model import Cache, Data

if TYPE_CHECKING:
    from headway.training import Run

# beam, length penalty
SEARCHES: Final = ((1, 0.7), (3, 0.7), (3, 1.0), (5, 0.7), (5, 1.0), (8, 0.7), (8, 1.0), (12, 0.7))
SHOWN: Final = 24  # examples per group in the report
SEEN, HELD_OUT = "seen", "held_out"
REPORTED: Final = ("bleu_4", "cider", "rouge_l")
EVERY: Final = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "cider", "rouge_l")


class CaptionJudge:
    """Scores captions of a split repeatedly: the references are tokenised and counted once."""

    def __init__(self, pictures: Pictures) -> None:
        self._pictures = pictures
        self._scorer = CaptionScorer(pictures.references)

    def scores(self, captions: Sequence[str], metrics: Sequence[str] = REPORTED) -> dict[str, float]:
        """Score against all references; for generated scenes, also compute the share of valid captions."""
        measured = self._scorer.score(captions)
        found = {name: measured[name] for name in metrics}
        if self._pictures.valid is not None:
            found["exact"] = float(np.mean(is_correct(self._pictures, captions)))
        return found

    def each(self, captions: Sequence[str]) -> list[float]:
        """Return the CIDEr of each caption."""
        found: list[float] = np.asarray(self._scorer.measure(captions).cider).tolist()
        return found

    def samples(self, captions: Sequence[str]) -> dict[str, Any]:
        """Return each picture's contribution to each metric, for confidence intervals and comparisons of runs."""
        measured = self._scorer.measure(captions)
        found = {
            **{f"bleu_{order}": of_counts(measured.bleu, order) for order in (1, 4)},
            "cider": of_values(measured.cider),
            "rouge_l": of_values(measured.rouge_l),
        }
        if self._pictures.valid is not None:
            found["exact"] = of_values(is_correct(self._pictures, captions))
        return found


class Validation:
    """The validation split of all sources, captioned and scored after every epoch."""

    def __init__(self, cfg: Config, sources: Sources) -> None:
        self._cfg, self._sources, self._feed = cfg, sources, EvaluationFeed(sources)
        self._judges = [CaptionJudge(pictures) for pictures in sources.pictures]

    def scores(self, run: Run, model: Captioner) -> dict[str, float]:
        """Score greedy captions per source and overall. Each rank captions its share."""
        share = generate_captions(model, self._cfg, len(self._sources), run.evaluating(self._feed), beam=1)
        rows: Tensor = run.total(share.to(run.device))
        captions = [model.vocabulary.decode(row) for row in rows.tolist()]
        return average_scores(
            self._sources,
            [judge.scores(part) for judge, part in zip(self._judges, _parts(self._sources, captions), strict=True)],
        )


def average_scores(sources: Sources, each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each source's scores under its name, and their mean, weighted by the sources' weights."""
    if len(each) == 1:
        return dict(each[0])
    weights = [pictures.weight for pictures in sources.pictures]
    shared = [name for name in each[0] if all(name in scores for scores in each)]
    found = {
        name: sum(weight * scores[name] for weight, scores in zip(weights, each, strict=True)) / sum(weights)
        for name in shared
    }
    for pictures, scores in zip(sources.pictures, each, strict=True):
        found |= {f"{name}_{pictures.name}": value for name, value in scores.items()}
    return found


def generate_captions(model: Captioner, cfg: Config, count: int, batches: Iterable[Batch], *, beam: int) -> Tensor:
    """Caption the pictures in `batches`: one row of token ids per picture, zero for those of other ranks."""
    captions = torch.zeros(count, cfg.max_length, dtype=torch.int64)
    learning = model.training
    model.eval()
    for batch in batches:
        words = caption(model, batch.pictures, max_length=cfg.max_length, beam=beam, length_penalty=cfg.length_penalty)
        captions[batch.rows.cpu()] = words.cpu()
    model.train(learning)
    return captions


def evaluate(model: Captioner, cfg: Config, data: Data, split: str, *, cache: Cache | None = None) -> Evaluation:
    """Evaluate the whole split with beam search: per source, and separately for seen and held-out combinations."""
    sources = _encode(model, cfg, load(cfg, data, split, cache=cache), cache)
    feed = EvaluationFeed(sources, both_sides=cfg.both_sides)
    rows = generate_captions(model, cfg, len(sources), _all(feed), beam=cfg.beam)
    captions = _parts(sources, [model.vocabulary.decode(row) for row in rows.tolist()])
    judges = [CaptionJudge(pictures) for pictures in sources.pictures]
    each = [judge.scores(part, EVERY) for judge, part in zip(judges, captions, strict=True)]
    metrics, by_group, examples = average_scores(sources, each), {}, []
    for pictures, part in zip(sources.pictures, captions, strict=True):
        groups = _groups(pictures)
        for name, chosen in groups.items():
            found = by_group[name] = CaptionJudge(_only(pictures, chosen)).scores([part[row] for row in chosen])
            metrics |= {f"{metric}_{name}": value for metric, value in found.items() if metric in ("bleu_4", "exact")}
        alone = pictures.name if len(sources.pictures) > 1 else ""
        examples += _examples(pictures, part, groups or {alone: list(range(len(pictures)))})
    if len(sources.pictures) > 1:
        by_group |= {pictures.name: dict(found) for pictures, found in zip(sources.pictures, each, strict=True)}
    return Evaluation(
        data=", ".join(f"{pictures.name} ({split})" for pictures in sources.pictures),
        count=len(sources),
        metrics=metrics,
        groups=by_group,
        examples=examples,
        **_best_and_worst(sources, judges, captions),
        baseline=_baseline(sources, judges),
        samples=judges[0].samples(captions[0]) if len(sources.pictures) == 1 else {},
    )


def _best_and_worst(
    sources: Sources, judges: Sequence[CaptionJudge], captions: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Select the best and worst captions by their own CIDEr, over all sources."""
    places = [(source, row) for source, part in enumerate(captions) for row in range(len(part))]
    good = [value for judge, part in zip(judges, captions, strict=True) for value in judge.each(part)]

    def example(at: int) -> Example:
        source, row = places[at]
        found = _examples(sources.pictures[source], captions[source], {"": [row]})[0]
        return replace(found, note=f"CIDEr {good[at]:.2f}")

    best, worst = extremes(good)
    return {"best": [example(at) for at in best], "worst": [example(at) for at in worst]}


def _baseline(sources: Sources, judges: Sequence[CaptionJudge]) -> Baseline:
    """Score a baseline that gives every picture the most frequent caption."""
    counts = Counter(text for pictures in sources.pictures for references in pictures.references for text in references)
    always = min(counts, key=lambda text: (-counts[text], text))
    each = [judge.scores([always] * len(part), EVERY) for judge, part in zip(judges, sources.pictures, strict=True)]
    return Baseline(
        words=f"gives every picture the most frequent caption, “{always}”", metrics=average_scores(sources, each)
    )


def choose_search(
    model: Captioner, cfg: Config, data: Data, *, split: str = "val", cache: Cache | None = None
) -> tuple[Config, dict[str, float]]:
    """Return the config with the beam and length penalty that score best on `split`, and their scores."""
    sources = _encode(model, cfg, load(cfg, data, split, cache=cache), cache)
    feed = EvaluationFeed(sources, both_sides=cfg.both_sides)
    with torch.inference_mode():  # encode the pictures once for all searches
        encoded = [(batch.rows, model.see(batch.pictures).half()) for batch in _all(feed)]
    judges = [CaptionJudge(pictures) for pictures in sources.pictures]
    found: list[tuple[Config, dict[str, float]]] = []
    for beam, penalty in SEARCHES:
        tried = replace(cfg, beam=beam, length_penalty=penalty)
        rows = generate_captions(model, tried, len(sources), (Batch(*batch) for batch in encoded), beam=beam)
        captions = _parts(sources, [model.vocabulary.decode(row) for row in rows.tolist()])
        each = [judge.scores(part, EVERY) for judge, part in zip(judges, captions, strict=True)]
        found.append((tried, average_scores(sources, each)))
    return max(found, key=lambda one: one[1][cfg.best])


def _encode(model: Captioner, cfg: Config, pictures: list[Pictures], cache: Cache | None) -> Sources:
    """Return the model inputs, with the cached features from training if its encoder was frozen."""
    from headway.recipes.captioning.data import encoded_views  # not needed by a server

    return encoded_views(model.encoder, pictures, cache, learns=cfg.finetune_from is not None, mirrored=cfg.both_sides)


def _all(feed: EvaluationFeed) -> Iterator[Batch]:
    return with_progress((feed.batch(0, step, 0, 1) for step in range(len(feed))), "captioning", len(feed))


def _parts(sources: Sources, captions: Sequence[str]) -> list[list[str]]:
    return [list(captions[start:stop]) for start, stop in pairwise(sources.starts.tolist())]


def _groups(pictures: Pictures) -> dict[str, list[int]]:
    """Split rows into held-out and seen attribute combinations; empty if there are no held-out ones."""
    if pictures.held_out is None or not pictures.held_out.any():
        return {}
    return {
        HELD_OUT: np.flatnonzero(pictures.held_out).tolist(),
        SEEN: np.flatnonzero(~pictures.held_out).tolist(),
    }


def _only(pictures: Pictures, rows: Sequence[int]) -> Pictures:
    return Pictures(
        name=pictures.name,
        pixels=pictures.pixels,
        references=[pictures.references[row] for row in rows],
        valid=None if pictures.valid is None else [pictures.valid[row] for row in rows],
    )


def is_correct(pictures: Pictures, captions: Sequence[str]) -> NDArray[np.bool_]:
    """Return which captions the grammar allows for their picture."""
    assert pictures.valid is not None
    return np.array([text in valid for text, valid in zip(captions, pictures.valid, strict=True)])


def _examples(pictures: Pictures, captions: Sequence[str], groups: dict[str, list[int]]) -> list[Example]:
    judged = None if pictures.valid is None else is_correct(pictures, captions)
    return [
        Example(
            picture=_png(pictures.pixels.read(np.array([row]))[0]),
            answer=captions[row],
            expected=pictures.references[row],
            right=None if judged is None else bool(judged[row]),
            group=name,
        )
        for name, rows in groups.items()
        for row in rows[:SHOWN]
    ]


def _png(pixels: Tensor) -> bytes:
    from PIL import Image

    body = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(body, "PNG", optimize=True)
    return body.getvalue()
