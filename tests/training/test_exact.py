"""Killed and resumed is the same as never killed, to the bit: weights, statistics, optimizer state, metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.spec import Cadence, Checkpoint
from headway.training.preemption import SAME_REQUEST_S
from tests.training.live import Case

pytestmark = pytest.mark.torch

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


@pytest.mark.slow
def test_each_file_is_read_by_one_rank_however_long_it_takes(tmp_path: Path, straight: dict[int, Case]) -> None:
    """The others wait longer than a collective may take."""
    case = Case(tmp_path, ranks=3)
    assert -9 in case.train(TEST_OPTIONS=options(die_at=8))
    slow = options(slow_read_s=5.0, timeout_s=3)
    assert case.train(TEST_OPTIONS=slow) == [0, 0, 0], case.log()
    assert_same(case, straight[3])
    read = [(tmp_path / f"read-{rank}").read_text().split() for rank in range(3)]
    assert [len(keys) for keys in read] == [1, 1, 1]
    assert len({*read[0], *read[1], *read[2]}) == 3, "three parts, each read once"


@pytest.mark.parametrize("rank", [0, 2])
def test_damage_that_one_rank_finds_sends_all_to_the_checkpoint_before(
    tmp_path: Path, straight: dict[int, Case], rank: int
) -> None:
    case = Case(tmp_path, ranks=3)
    assert case.train(TEST_OPTIONS=options(term_at=8)) == [143] * 3
    newest = max((tmp_path / "run/checkpoints").glob("0*"))
    part = sorted(newest.glob("*.safetensors"))[rank]
    body = bytearray(part.read_bytes())
    body[-1] ^= 1
    part.write_bytes(body)
    assert case.train() == [0, 0, 0], case.log()
    assert f"the checksum of checkpoints/{newest.name}/{part.name} differs" in case.log()
    assert case.digest() == straight[3].digest()


@pytest.mark.parametrize("ranks", [2, 3])
def test_flags_reduced_in_host_memory_as_on_gpus_change_nothing(
    tmp_path: Path, straight: dict[int, Case], ranks: int
) -> None:
    case = Case(tmp_path, ranks=ranks)
    own = options(term_at=7, term_rank=ranks - 1, agree_on_host=True)
    assert case.train(TEST_OPTIONS=own) == [143] * ranks, case.log()
    assert case.train(TEST_OPTIONS=options(agree_on_host=True)) == [0] * ranks, case.log()
    assert case.digest() == straight[ranks].digest()
    for step, record in straight[ranks].history().items():
        assert case.history()[step] == pytest.approx(record)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_ranks_stop_together_and_go_on_where_they_stopped(
    tmp_path: Path, straight: dict[int, Case], ranks: int
) -> None:
    case = Case(tmp_path, ranks=ranks)
    assert case.train(TEST_OPTIONS=options(term_at=7, term_rank=ranks - 1)) == [143] * ranks, case.log()
    assert "stopped at step 8" in case.log()
    assert case.train() == [0] * ranks, case.log()
    assert "resuming from step 8" in case.log()
    assert_same(case, straight[ranks])


def test_an_evaluation_that_is_interrupted_is_done_again(tmp_path: Path, straight: dict[int, Case]) -> None:
    case = Case(tmp_path, checkpoint=Checkpoint(every=Cadence(steps=1000)))
    assert case.train(TEST_OPTIONS=options(term_in_evaluation=12)) == [143], case.log()
    assert case.train() == [0], case.log()
    assert "resuming from step 12" in case.log()
    assert_same(case, straight[1])


@pytest.mark.parametrize("asked", [0, 1])
def test_one_rank_that_is_asked_to_stop_in_an_evaluation_takes_the_others_along(
    tmp_path: Path, straight: dict[int, Case], asked: int
) -> None:
    case = Case(tmp_path, ranks=2, checkpoint=Checkpoint(every=Cadence(steps=1000)))
    stop = options(term_in_evaluation=12, term_rank=asked)
    assert case.train(TEST_OPTIONS=stop) == [143, 143], case.log()
    assert "stopped at step 12; its checkpoint is written" in case.log()
    assert case.train() == [0, 0], case.log()
    assert "resuming from step 12" in case.log()
    assert_same(case, straight[2])


def test_killed_with_loader_workers_it_is_still_the_same(tmp_path: Path, straight: dict[int, Case]) -> None:
    case = Case(tmp_path, ranks=2, config={"workers": 2})
    assert -9 in case.train(TEST_OPTIONS=options(die_at=8))
    assert case.train() == [0, 0], case.log()
    assert_same(case, straight[2])


@pytest.mark.parametrize("number", [4, 7, 10, 13, 20, 27])
def test_killed_in_the_middle_of_any_write_it_is_still_the_same(
    tmp_path: Path, straight: dict[int, Case], number: int
) -> None:
    """The long form tries every write; here a few: a part, a state, a manifest, a pointer, the record, metrics."""
    case = Case(tmp_path)
    assert case.train(TEST_OPTIONS=options(die_at_write=number)) == [-9], case.log()
    assert case.train() == [0], case.log()
    assert_same(case, straight[1])


def test_another_world_in_the_middle_sees_the_same_batches(tmp_path: Path) -> None:
    """From 2 ranks to 1 and back: without dropout and batch norm, losses are the same but for rounding."""
    plain = {"dropout": 0.0, "norm": False}
    straight = Case(tmp_path / "straight", ranks=2, config=plain)
    assert straight.train() == [0, 0]
    case = Case(tmp_path / "case", ranks=2, config=plain)
    assert case.train(TEST_OPTIONS=options(term_at=4)) == [143, 143]
    case.ranks = 1
    assert case.train(TEST_OPTIONS=options(term_at=11)) == [143]
    assert "ranks 2 → 1" in case.log()
    case.ranks = 2
    assert case.train() == [0, 0]
    ours, theirs = case.history(), straight.history()
    assert ours.keys() == theirs.keys()
    for step, record in theirs.items():
        assert ours[step]["loss"] == pytest.approx(record["loss"], rel=1e-4), step


def test_an_empty_part_counts_as_nothing(tmp_path: Path) -> None:
    """Batches of 2 on 3 ranks: the third has nothing to do, and must not count."""
    cases = [
        Case(tmp_path / str(n), ranks=n, config={"batch": 2, "dropout": 0.0, "norm": False, "epochs": 1})
        for n in (1, 3)
    ]
    for case in cases:
        assert case.train() == [0] * case.ranks, case.log()
    alone, together = (case.history() for case in cases)
    for step, record in alone.items():
        assert together[step]["loss"] == pytest.approx(record["loss"], rel=1e-3), step


def test_a_second_signal_ends_at_once_and_loses_no_commit(tmp_path: Path, straight: dict[int, Case]) -> None:
    case = Case(tmp_path)
    assert case.train(TEST_OPTIONS=options(term_at=7, again_after_s=SAME_REQUEST_S + 0.1)) == [143]
    assert "stopped at step" not in case.log()
    assert case.train() == [0], case.log()
    assert_same(case, straight[1])


def test_signals_that_come_together_are_one_request(tmp_path: Path, straight: dict[int, Case]) -> None:
    """A real Slurm sends SIGTERM up to three times within 20 ms, and the supervisor passes on its own besides."""
    case = Case(tmp_path)
    assert case.train(TEST_OPTIONS=options(term_at=7, at_once=True)) == [143]
    assert "stopped at step 8" in case.log()
    assert case.train() == [0], case.log()
    assert_same(case, straight[1])


@pytest.mark.slow
def test_a_stop_that_cannot_finish_its_checkpoint_still_ends_in_time(tmp_path: Path, straight: dict[int, Case]) -> None:
    case = Case(tmp_path, grace_s=6.0)
    assert case.train(TEST_OPTIONS=options(term_at=7, slow_store_from=7)) == [143]
    assert "without a checkpoint" in case.log()
    assert case.train() == [0], case.log()
    assert_same(case, straight[1])
