"""Confidence intervals: seeded, right on average, and equal to drawing the samples themselves again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headway.core.errors import BadInput
from headway.metrics import samples
from headway.metrics.captions import CaptionScorer
from headway.metrics.classification import Confusion
from headway.metrics.ordinal import quadratic_weighted_kappa
from headway.metrics.samples import difference, interval, kappa_interval, of_bleu, of_kappa, of_mean
from headway.metrics.translation import translation_counts

MADE = json.loads((Path(__file__).parent / "fixtures" / "coco_scores.json").read_text(encoding="utf-8"))
SCORES = CaptionScorer(MADE["references"], tokenized=True).measure(MADE["hypotheses"])


def test_the_same_seed_draws_the_same_interval() -> None:
    first, again, other = (interval(of_mean(SCORES.cider), 16, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first.low < first.value < first.high


def test_the_value_is_the_corpus_score() -> None:
    for order in (1, 4):
        found = interval(of_bleu(SCORES.bleu, order), 16, resamples=50)
        assert found.value == pytest.approx(SCORES.corpus()[f"bleu_{order}"])


def test_a_resample_of_bleu_is_the_bleu_of_the_drawn_captions() -> None:
    weights = next(iter(samples._draws(16, 1, seed=3)))
    drawn = np.repeat(np.arange(16), weights[0].astype(int)).tolist()
    again = CaptionScorer([MADE["references"][i] for i in drawn], tokenized=True)
    expected = again.score([MADE["hypotheses"][i] for i in drawn])["bleu_4"]
    assert of_bleu(SCORES.bleu)(weights)[0] == pytest.approx(expected)


def test_the_interval_of_a_mean_is_that_of_statistics() -> None:
    values = np.random.default_rng(5).normal(10, 2, size=400)
    found = interval(of_mean(values), 400, resamples=4000)
    error = 1.96 * values.std() / 20
    assert found.low == pytest.approx(values.mean() - error, abs=0.1 * error)
    assert found.high == pytest.approx(values.mean() + error, abs=0.1 * error)


def test_blocks_that_fit_in_memory_draw_what_one_block_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = interval(of_mean(SCORES.rouge_l), 16, resamples=100)
    monkeypatch.setattr(samples, "_CELLS", 16 * 7)
    blocks = interval(of_mean(SCORES.rouge_l), 16, resamples=100)
    assert (blocks.low, blocks.high) == (pytest.approx(whole.low), pytest.approx(whole.high))


def test_kappa_drawn_from_the_matrix_agrees_with_kappa_drawn_from_samples() -> None:
    random = np.random.default_rng(9)
    truth = random.integers(5, size=500)
    guess = np.clip(truth + random.integers(-1, 2, size=500), 0, 4)
    confusion = Confusion(5)
    confusion.add(truth, guess)
    by_matrix = kappa_interval(confusion, resamples=4000)
    by_sample = interval(of_kappa(truth, guess, 5), 500, resamples=4000)
    assert by_matrix.value == pytest.approx(by_sample.value) == quadratic_weighted_kappa(confusion)
    assert by_matrix.low == pytest.approx(by_sample.low, abs=0.01)
    assert by_matrix.high == pytest.approx(by_sample.high, abs=0.01)


def test_resamples_without_a_kappa_are_left_out_and_counted() -> None:
    found = kappa_interval(Confusion(2, [[5, 0], [0, 1]]), resamples=500)
    assert 0 < found.resamples < 500
    with pytest.raises(BadInput, match="qwk is undefined"):
        kappa_interval(Confusion(2, [[5, 0], [0, 0]]))


def test_a_paired_difference_of_equal_systems_is_nothing() -> None:
    same = difference(of_mean(SCORES.cider), of_mean(SCORES.cider), 16)
    assert (same.value, same.low, same.high) == (0, 0, 0)


def test_a_paired_comparison_sees_what_two_intervals_hide() -> None:
    values = np.random.default_rng(1).normal(0, 5, size=200)
    better = values + 0.5
    one, other = interval(of_mean(values), 200), interval(of_mean(better), 200)
    assert one.high > other.low  # they overlap
    gap = difference(of_mean(values), of_mean(better), 200)
    assert gap.low == pytest.approx(0.5) == gap.high


def test_bleu_of_translations_has_an_interval_too() -> None:
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed (the extra `translation`)")
    hypotheses = [f"the {colour} house stands on a hill" for colour in ("red", "blue", "green", "white")]
    references = [*hypotheses[:3], "a white house is on top of the hill"]
    counts = translation_counts(hypotheses, references)
    found = interval(counts.summed, 4, resamples=100)
    assert found.low < found.value <= found.high <= 100 + 1e-9


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(BadInput, match="no samples"):
        interval(of_mean(np.zeros(0)), 0)
    with pytest.raises(BadInput, match="between 0 and 1"):
        interval(of_mean(np.ones(3)), 3, level=95)
