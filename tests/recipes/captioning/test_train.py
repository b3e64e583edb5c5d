"""Training for real, small: it learns, it can be resumed to the bit, and it leaves a bundle of its best weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.recipes.captioning.train import warmup_cosine
from headway.rundir.layout import RunFolder
from headway.storage import open_store
from tests.recipes.trained_run import trained_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory)


@pytest.mark.slow
def test_it_learns_to_caption(trained: Path) -> None:
    """Far beyond what saying the most common things reaches: that is a BLEU-4 of about 0.3, and hardly ever right."""
    history = RunFolder(open_store(str(trained))).metrics()
    losses = [record["loss"] for record in history if "loss" in record]
    scores = [record for record in history if "bleu_4" in record]
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])
    assert max(record["bleu_4"] for record in scores) > 0.45
    assert max(record["exact"] for record in scores) > 0.1


@pytest.mark.slow
def test_the_bundle_is_that_of_the_best_epoch(trained: Path) -> None:
    history = RunFolder(open_store(str(trained))).metrics()
    best = max((record for record in history if "bleu_4" in record), key=lambda record: record["bleu_4"])
    exported = json.loads((trained / "export" / "bundle.json").read_text())
    assert exported["metrics"] == {name: best[name] for name in ("bleu_4", "cider", "exact", "rouge_l")}
    assert {"word_to_id.json", "id_to_word.json", "vocabulary.json"} <= set(exported["files"])


def test_the_learning_rate_rises_then_falls() -> None:
    factor = warmup_cosine(100, 10)
    rates = [factor(step) for step in range(101)]
    assert rates[9] == max(rates) == 1.0
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[0] > 0
    assert rates[100] == pytest.approx(0.01)
