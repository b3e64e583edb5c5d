"""Classes: scores from sums of counts, checked against scikit-learn, by class and by group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import BadInput
from headway.metrics.classification import ClassificationScores, score

LEAVES = ["apple healthy", "apple scab", "maize healthy", "maize rust"]
GROUPS = {name: "healthy" if "healthy" in name else "sick" for name in LEAVES}
pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=50)


@given(pairs)
def test_accuracy_and_f1_are_those_of_scikit_learn(given: list[tuple[int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    truth, guess = [a for a, _ in given], [b for _, b in given]
    ours = score(truth, guess, classes=5)
    assert ours["accuracy"] == pytest.approx(metrics.accuracy_score(truth, guess))
    assert ours["macro_f1"] == pytest.approx(metrics.f1_score(truth, guess, average="macro", zero_division=0))
    assert np.array_equal(ours["confusion"]["counts"], metrics.confusion_matrix(truth, guess, labels=range(5)))


@given(st.integers(0, 2**32 - 1))
def test_top_k_is_that_of_scikit_learn(seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    random = np.random.default_rng(seed)
    rows, truth = random.dirichlet(np.ones(6), size=20), random.integers(6, size=20)
    ours = score(truth, probabilities=rows, classes=6, top=(2, 3))
    for k in (2, 3):
        assert ours[f"top_{k}"] == pytest.approx(metrics.top_k_accuracy_score(truth, rows, k=k, labels=range(6)))


def test_the_likeliest_class_is_the_prediction() -> None:
    report = score([0, 1], probabilities=[[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]], classes=3, top=(2,))
    assert (report["accuracy"], report["top_2"]) == (0.5, 1.0)


def test_a_model_that_finds_all_classes_equally_likely_gets_no_credit_for_it() -> None:
    flat = np.full((10, 10), 0.1)
    report = score(np.arange(10), probabilities=flat, classes=10)
    assert report["accuracy"] == pytest.approx(0.1)
    assert report["top_5"] == pytest.approx(0.5)


def test_top_k_of_no_more_classes_than_k_is_left_out() -> None:
    assert "top_5" not in score([0], [0], [[1.0, 0.0]], classes=2)


def test_classes_fall_into_groups() -> None:
    report = score([0, 1, 2, 3], [2, 1, 3, 1], classes=LEAVES, groups=GROUPS)
    assert report["accuracy"] == 0.25
    assert report["grouped_accuracy"] == 0.75
    assert report["grouped_confusion"] == {"classes": ["healthy", "sick"], "counts": [[1, 1], [0, 2]]}


def test_every_class_has_a_row() -> None:
    report = score([0, 0, 1], [0, 1, 1], classes=["a", "b", "never"])
    assert report["per_class"][0] == {
        "class": "a", "samples": 2, "accuracy": 0.5, "precision": 1.0, "f1": pytest.approx(2 / 3), "predicted": 1,
    }  # fmt: skip
    assert report["per_class"][2] == {
        "class": "never", "samples": 0, "accuracy": None, "precision": None, "f1": None, "predicted": 0,
    }  # fmt: skip
    assert report["macro_f1"] == pytest.approx(2 / 3)


@given(st.integers(0, 2**32 - 1), st.integers(0, 30))
def test_batches_add_up_to_the_whole(seed: int, cut: int) -> None:
    random = np.random.default_rng(seed)
    rows, truth = random.dirichlet(np.ones(7), size=30), random.integers(7, size=30)
    whole, first, second = (ClassificationScores(7, top=(2, 5)) for _ in range(3))
    whole.add(truth, probabilities=rows)
    first.add(truth[:cut], probabilities=rows[:cut])
    second.add(truth[cut:], probabilities=rows[cut:])
    assert (first + second).metrics() == pytest.approx(whole.metrics())


def test_a_short_last_batch_weighs_as_much_as_it_has_samples() -> None:
    scores = ClassificationScores(2)
    scores.add([0, 0, 0], [0, 0, 0])
    scores.add([0], [1])
    assert scores.metrics()["accuracy"] == 0.75  # not the mean of 1 and 0


def test_a_perfectly_calibrated_model_has_no_error_and_a_boastful_one_has() -> None:
    honest = score([0, 0, 0, 1], probabilities=[[0.75, 0.25]] * 4, classes=2)
    boastful = score([0, 0, 0, 1], probabilities=[[1.0, 0.0]] * 4, classes=2)
    assert honest["ece"] == pytest.approx(0)
    assert boastful["ece"] == pytest.approx(0.25)
    assert boastful["calibration"][0]["high"] == 1.0


@pytest.mark.parametrize(
    ("labels", "predictions", "probabilities", "problem"),
    [
        ([4], [0], None, "labels must be between 0 and 3, but 4 is among them"),
        ([-1], [0], None, "but -1 is among them"),
        ([0], None, None, "either predictions or probabilities"),
        ([0], None, [[0.5, 0.5]], "2 probabilities a sample for 4 classes"),
        ([0, 1], None, [[1.0, 0.0, 0.0, 0.0]], "1 rows of probabilities for 2 labels"),
        ([0], None, [[float("nan")] * 4], "must be finite"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    labels: object, predictions: object, probabilities: object, problem: str
) -> None:
    with pytest.raises(BadInput, match=problem):
        ClassificationScores(LEAVES).add(labels, predictions, probabilities)  # type: ignore[arg-type]


def test_names_and_groups_must_fit() -> None:
    with pytest.raises(BadInput, match="same name"):
        ClassificationScores(["a", "a"])
    with pytest.raises(BadInput, match="1 classes belong to no group, b among them"):
        ClassificationScores(["a", "b"], groups={"a": "x"})
    with pytest.raises(BadInput, match="different classes"):
        ClassificationScores(2) + ClassificationScores(3)
    with pytest.raises(BadInput, match="at least one class"):
        ClassificationScores([])
    with pytest.raises(BadInput, match="no samples were added"):
        ClassificationScores(2).metrics()
