"""Grades: kappa equals scikit-learn's, sums not means of means, and what is undefined is said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import BadInput
from headway.metrics.classification import Confusion
from headway.metrics.ordinal import OrdinalScores, quadratic_weighted_kappa, score, squared_emd

grades = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=60)


@given(grades)
def test_kappa_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    truth, guess = [a for a, _ in pairs], [b for _, b in pairs]
    ours = score(truth, guess, grades=range(6))["qwk"]
    if len({*truth, *guess}) == 1:
        assert ours is None  # scikit-learn divides zero by zero here
        return
    theirs = metrics.cohen_kappa_score(truth, guess, weights="quadratic", labels=list(range(6)))
    assert ours == pytest.approx(theirs, abs=1e-12)


def test_kappa_of_a_small_matrix_worked_by_hand() -> None:
    # O: one sample two grades off. margins (2, 1, 1) and (1, 1, 2); E = outer / 4; ΣwO = 4; ΣwE = 24/4
    confusion = Confusion(3, [[1, 0, 1], [0, 1, 0], [0, 0, 1]])
    assert quadratic_weighted_kappa(confusion) == pytest.approx(1 - 4 / ((2 * (1 + 8) + 1 * (1 + 2) + 1 * (4 + 1)) / 4))


def test_kappa_is_undefined_where_everything_is_one_grade_and_that_is_said() -> None:
    report = score([3, 3, 3], [3, 3, 3])
    assert report["qwk"] is None
    assert report["notes"] == ["qwk is undefined: every label and every prediction is the same grade"]
    assert report["accuracy"] == 1.0


def test_a_far_miss_costs_more_than_a_near_one() -> None:
    truth = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    near, far = score(truth, [2, *truth[1:]]), score(truth, [10, *truth[1:]])
    assert near["accuracy"] == far["accuracy"] == 0.9
    assert near["qwk"] > far["qwk"]
    assert (near["within_one"], far["within_one"]) == (1.0, 0.9)
    assert (near["mae"], far["mae"]) == (pytest.approx(0.1), pytest.approx(0.9))


def test_a_grade_nobody_has_still_lies_between_its_neighbours() -> None:
    with_gap = score([1, 1, 4, 4], [1, 4, 4, 1], grades=[1, 2, 3, 4])
    assert with_gap["mae"] == pytest.approx(1.5)
    assert [row["samples"] for row in with_gap["per_grade"]] == [2, 0, 0, 2]
    assert with_gap["per_grade"][1]["accuracy"] is None


def test_the_table_has_a_row_for_each_grade() -> None:
    report = score([1, 1, 2, 3], [1, 2, 2, 1], grades=[1, 2, 3])
    assert report["per_grade"][0] == {
        "grade": 1, "samples": 2, "accuracy": 0.5, "within_one": 1.0, "mae": 0.5, "predicted": 2,
    }  # fmt: skip
    assert report["per_grade"][2]["within_one"] == 0.0
    assert report["confusion"] == {"grades": [1, 2, 3], "counts": [[1, 1, 0], [0, 1, 0], [1, 0, 0]]}


@given(grades, st.integers(1, 59))
def test_batches_add_up_to_the_whole(pairs: list[tuple[int, int]], cut: int) -> None:
    truth, guess = np.array(pairs).T
    whole, first, second = (OrdinalScores(range(6)) for _ in range(3))
    whole.add(truth, guess)
    first.add(truth[:cut], guess[:cut])
    second.add(truth[cut:], guess[cut:])
    assert (first + second).report() == whole.report()


@given(grades)
def test_scores_stay_within_their_bounds_and_ignore_the_order(pairs: list[tuple[int, int]]) -> None:
    forward = score([a for a, _ in pairs], [b for _, b in pairs], grades=range(6))
    backward = score([a for a, _ in pairs[::-1]], [b for _, b in pairs[::-1]], grades=range(6))
    assert forward == backward
    assert forward["qwk"] is None or -1 - 1e-12 <= forward["qwk"] <= 1
    assert 0 <= forward["accuracy"] <= forward["within_one"] <= 1
    assert 0 <= forward["mae"] <= 5


@pytest.mark.parametrize(
    ("probabilities", "label", "expected"),
    [([0.1, 0.2, 0.4, 0.2, 0.1], 3, 0.6), ([0.7, 0.1, 0.1, 0.05, 0.05], 0, 0.1425), ([0, 0, 1.0], 2, 0.0)],
)
def test_the_squared_distance_of_distributions(probabilities: list[float], label: int, expected: float) -> None:
    assert squared_emd([probabilities], [label])[0] == pytest.approx(expected)


def test_probabilities_add_calibration_and_distance() -> None:
    scores = OrdinalScores([1, 2, 3])
    scores.add([1, 3], [1, 2], [[0.8, 0.1, 0.1], [0.1, 0.6, 0.3]])
    metrics = scores.metrics()
    # the first is right at 0.8, the second wrong at 0.6
    assert metrics["ece"] == pytest.approx((0.2 + 0.6) / 2)
    assert metrics["emd2"] == pytest.approx((0.2**2 + 0.1**2 + 0.1**2 + 0.7**2) / 2)
    assert sum(row["samples"] for row in scores.report()["calibration"]) == 2


def test_calibration_of_a_part_of_the_samples_says_so() -> None:
    scores = OrdinalScores([0, 1])
    scores.add([0], [0], [[0.9, 0.1]])
    scores.add([1], [0])
    assert scores.report()["notes"] == ["ece and emd2 are of the 1 samples that came with probabilities"]


@pytest.mark.parametrize(
    ("labels", "predictions", "probabilities", "problem"),
    [
        ([1], [11], None, "predictions: 11 is not a grade from 1 to 10"),
        ([0], [1], None, "labels: 0 is not a grade"),
        ([1.5], [1], None, "labels: 1.5 is not a grade"),
        ([float("nan")], [1], None, "labels: nan is not a grade"),
        ([1, 2], [1], None, "1 predictions for 2 labels"),
        (["1"], [1], None, "labels must be whole numbers"),
        ([[1]], [1], None, "one class number each"),
        ([1], [1], [[1.0]], "1 probabilities a sample for 10 grades"),
        ([1], [1], [[0.5] * 10], "sum to 5.0000, not 1"),
        ([1], [1], [[-1.0, 2.0] + [0.0] * 8], "not below 0"),
    ],
)
def test_what_cannot_be_graded_is_refused(
    labels: object, predictions: object, probabilities: object, problem: str
) -> None:
    with pytest.raises(BadInput, match=problem):
        OrdinalScores(range(1, 11)).add(labels, predictions, probabilities)  # type: ignore[arg-type]


def test_grades_must_be_consecutive_few_and_there() -> None:
    with pytest.raises(BadInput, match="consecutive"):
        OrdinalScores([1, 3])
    with pytest.raises(BadInput, match="are these class numbers"):
        score([0], [10**12])
    with pytest.raises(BadInput, match="no grades to score"):
        score([], [])
    with pytest.raises(BadInput, match="no samples were added"):
        OrdinalScores([1, 2]).metrics()
    with pytest.raises(BadInput, match="different grades"):
        OrdinalScores([1, 2]) + OrdinalScores([1, 2, 3])
