"""Killed and resumed is the same as never killed, to the bit: weights, statistics, optimizer state, metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.runtime.live import Case

from headway.spec import Cadence, Checkpoint

STEPS = 18  # 3 epochs of 6


@pytest.fixture(scope="module", name="straight")
def _straight(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Case]:
    """The unbroken run, for 1, 2 and 3 ranks."""
    cases = {}
    for ranks in (1, 2, 3):
        cases[ranks] = Case(tmp_path_factory.mktemp(f"straight-{ranks}"), ranks=ranks)
        assert cases[ranks].train() == [0] * ranks, cases[ranks].log()
    return cases


def options(**values: object) -> str:
    return json.dumps(values)


def assert_same(case: Case, straight: Case) -> None:
    assert case.digest() == straight.digest()
    assert case.history() == straight.history()


def test_every_step_has_one_record(straight: dict[int, Case]) -> None:
    for case in straight.values():
        assert sorted(case.history()) == list(range(1, STEPS + 1))


def test_all_ranks_hold_the_same_model(straight: dict[int, Case]) -> None:
    for ranks, case in straight.items():
        assert len({case.digest(rank) for rank in range(ranks)}) == 1


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("step", [1, 5, 13])
def test_a_rank_killed_in_a_step_changes_nothing(
    tmp_path: Path, straight: dict[int, Case], ranks: int, step: int
) -> None:
    case = Case(tmp_path, ranks=ranks)
    assert -9 in case.train(TEST_OPTIONS=options(die_at=step, die_rank=ranks - 1))
    assert case.train() == [0] * ranks, case.log()
    assert_same(case, straight[ranks])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_ranks_stop_together_and_go_on_where_they_stopped(
    tmp_path: Path, straight: dict[int, Case], ranks: int
) -> None:
    case = Case(tmp_path, ranks=ranks)
    assert case.train(TEST_OPTIONS=options(term_at=7, term_rank=ranks - 1)) == [143] * ranks, case.log()
    assert "stopped at step 8" in case.log()
    assert case.train() == [0] * ranks, case.log()
    assert "going on from step 8" in case.log()
    assert_same(case, straight[ranks])


def test_an_evaluation_that_is_interrupted_is_done_again(tmp_path: Path, straight: dict[int, Case]) -> None:
    case = Case(tmp_path, checkpoint=Checkpoint(every=Cadence(steps=1000)))
    assert case.train(TEST_OPTIONS=options(term_in_evaluation=12)) == [143], case.log()
    assert case.train() == [0], case.log()
    assert "going on from step 12" in case.log()
    assert_same(case, straight[1])
