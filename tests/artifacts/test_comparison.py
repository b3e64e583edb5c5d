"""Comparisons: intervals that hold, differences on the same inputs, and what was set differently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headway.artifacts.compare import RunSummary, compare, flat, is_significant, metric_text, page
from headway.core.errors import BadInput
from headway.metrics.bleu import BleuCounts
from headway.metrics.captions import CaptionScorer
from headway.metrics.ordinal import score
from headway.metrics.samples import interval, of_counts, of_grades, of_values, size, statistic

LABELS = np.arange(200) % 10


def contender(name: str, guesses: np.ndarray[Any, Any], **more: Any) -> RunSummary:
    found = score(LABELS, guesses, grades=range(10))
    given: dict[str, Any] = {
        "url": f"/runs/{name}",
        "recipe": "grading",
        "measured": "test of cards, 200 inputs",
        "metrics": {"qwk": found["qwk"], "mae": found["mae"]},
        "samples": {"qwk": of_grades(LABELS, guesses, 10), "mae": of_values(np.abs(LABELS - guesses))},
        "settings": {"config.lr": 0.001, "seed": 7},
        "curves": {"loss": [(step, 1 / (step + 1)) for step in range(100)]},
        "steps": 100,
        "seconds": 60.0,
    }
    return RunSummary(name=name, **{**given, **more})


GOOD = contender("good", np.clip(LABELS + (np.arange(200) % 7 == 0), 0, 9))
POOR = contender("poor", np.clip(LABELS + 2 * (np.arange(200) % 3 == 0), 0, 9), settings={"config.lr": 0.1, "seed": 7})


def test_a_metric_comes_with_its_interval_and_its_difference_to_the_first_run() -> None:
    good, poor = compare([GOOD, POOR])["metrics"]["qwk"]
    assert good["low"] < good["value"] < good["high"]
    assert "difference" not in good
    gap = poor["difference"]
    assert gap["value"] == pytest.approx(poor["value"] - good["value"])
    assert gap["high"] < 0
    assert is_significant(poor)


def test_a_run_does_not_differ_from_itself() -> None:
    entry = compare([GOOD, contender("again", np.asarray(GOOD.samples["qwk"]["predictions"]))])["metrics"]["mae"][1]
    assert entry["difference"]["value"] == entry["difference"]["low"] == 0
    assert not is_significant(entry)


def test_only_what_was_set_differently_is_shown() -> None:
    assert compare([GOOD, POOR])["settings"] == {"config.lr": [0.001, 0.1]}
    assert flat({"config": {"lr": 1, "sizes": [1, 2]}, "data": {}}) == {
        "config.lr": 1,
        "config.sizes": [1, 2],
        "data": {},
    }


def test_runs_measured_on_other_inputs_are_not_paired_and_that_is_said() -> None:
    other = contender("other", LABELS, measured="test of eyes, 200 inputs")
    found = compare([GOOD, other])
    assert "difference" not in found["metrics"]["qwk"][1]
    assert "not paired" in found["notes"][0]


def test_a_run_that_was_not_evaluated_has_values_without_intervals() -> None:
    bare = contender("bare", LABELS, samples={}, measured="its validation data")
    found = compare([GOOD, bare])
    assert found["metrics"]["qwk"][1] == {"value": 1.0}
    assert "headway eval bare" in found["notes"][0]


def test_one_run_is_no_comparison() -> None:
    with pytest.raises(BadInput, match="at least two runs"):
        compare([GOOD])


def test_curves_are_thinned_and_keep_their_end() -> None:
    (curve, _) = compare([GOOD, POOR])["curves"]["loss"]
    assert len(curve) <= 60
    assert curve[-1][0] == 99


def test_the_page_shows_metrics_settings_and_a_line_for_each_run() -> None:
    text = page(compare([GOOD, POOR]))
    assert "config.lr" in text
    assert text.count("<polyline") >= 2
    assert "good" in text
    assert "<script" not in text


def test_a_value_is_shown_with_interval_and_difference() -> None:
    gap = {"value": -0.1, "low": -0.2, "high": -0.05}
    entry = {"value": 0.5, "low": 0.4, "high": 0.6, "difference": gap}
    assert metric_text(entry) == "0.5000 [0.4000, 0.6000]  -0.1000 [-0.2000, -0.0500] *"
    assert metric_text({"value": None}) == ""


def test_an_interval_of_bleu_is_that_of_the_counts_it_was_kept_as() -> None:
    said, references = ["a dog runs fast", "the cat sat down"] * 20, [["a dog runs"], ["a cat sat down here"]] * 20
    counts: BleuCounts = CaptionScorer(references).measure(said).bleu
    record = of_counts(counts)
    assert size(record) == 40
    kept = interval(statistic(record), 40, resamples=50)
    assert kept.value == pytest.approx(float(counts.corpus()[3]))
    assert interval(statistic(of_counts(counts, scale=100.0)), 40, resamples=50).high == pytest.approx(100 * kept.high)


def test_metrics_of_an_unknown_kind_are_named() -> None:
    with pytest.raises(BadInput, match="'other'"):
        statistic({"kind": "other"})
