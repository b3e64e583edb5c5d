"""Writing checkpoints: nothing is promised before the manifest, nothing is lost to a store that fails, and what is
kept is what the job file says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_safetensors

from headway.core.errors import BadInput, DiskFull, Transient
from headway.rundir.lease import LeaseLost
from headway.spec import Checkpoint
from headway.storage import open_store
from headway.storage.base import Store
from headway.training.checkpoint import writer
from headway.training.checkpoint.index import CheckpointEntry, CheckpointIndex, read_index
from headway.training.checkpoint.reader import CheckpointReader
from headway.training.checkpoint.serialization import flatten, unflatten
from headway.training.checkpoint.staging import Layout, StagingBuffer, parse_safetensors, partition_tensors
from headway.training.checkpoint.writer import AsyncCheckpointWriter, CheckpointRequest, GiveUp, RankSlot
from tests.servers.faults import FaultyStore
from tests.training.stores import Faulty, Heard
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(writer, "MAX_PAUSE_S", 0.002)


def saver_on(store: Store, *, rank: int = 0, ranks: int = 1, attempt: int = 1, **options: Any) -> AsyncCheckpointWriter:
    catalogue = CheckpointIndex(
        store, options.pop("rule", Checkpoint()), holds_lease=options.pop("holds_lease", lambda: True)
    )
    outside = options.pop("outside", Heard())
    seat = RankSlot(rank=rank, ranks=ranks, attempt=attempt)
    return AsyncCheckpointWriter(store, seat, catalogue, outside, environment={}, **options)


def take(saver: AsyncCheckpointWriter, step: int, value: float = 1.0, **options: Any) -> None:
    tree, tensors = flatten({"model": {"w": torch.full((64,), value)}})
    saver.save(CheckpointRequest(step=step, epoch=0, tree=tree, **options), tensors, ["model/w"])


def load(store: Store, step: int) -> torch.Tensor:
    value = CheckpointReader(store, stale_for_s=0.0).load(step).state["model"]["w"]
    assert isinstance(value, torch.Tensor)
    return value


# -- state as plain data ----------------------------------------------------------------------------------------------


def test_any_state_comes_back_as_it_was() -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    state = {
        "model": {"w": weight, "tied": weight, "half": torch.ones(3, dtype=torch.bfloat16), "none": torch.zeros(0, 4)},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}, 7: {}}, "param_groups": [{"betas": (0.9, 0.999)}]},
        "own": {"inf": float("inf"), "third": 1 / 3, "text": "ü", "nothing": None, "raw": b"\x00\xff", "$odd": 1},
    }
    tree, tensors = flatten(state)
    image = StagingBuffer(Layout(tensors), tensors)
    image.fill(tensors)
    back = unflatten(tree, parse_safetensors(bytearray(image.bytes)))
    assert torch.equal(back["model"]["w"], weight)
    assert back["model"]["half"].dtype is torch.bfloat16
    assert back["model"]["none"].shape == (0, 4)
    assert back["optimizer"]["param_groups"] == [{"betas": (0.9, 0.999)}]
    assert list(back["optimizer"]["state"]) == [0, 7]
    assert back["own"] == state["own"]
    assert "model/tied" not in tensors


def test_what_cannot_be_kept_is_named() -> None:
    with pytest.raises(BadInput, match="the state contains a function") as error:
        flatten({"schedule": {"lambdas": [test_what_cannot_be_kept_is_named]}})
    assert error.value.problem.where == "schedule/lambdas/0"


def test_a_part_is_a_safetensors_file_that_others_can_read() -> None:
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.arange(4, dtype=torch.int8),
        "c": torch.tensor(2.5, dtype=torch.float64),
    }
    tensors["strided"] = torch.randn(4, 6).t()
    image = StagingBuffer(Layout(tensors), tensors)
    image.fill(tensors)
    read = load_safetensors(bytes(image.bytes))
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_replicated_tensors_are_dealt_out_evenly_and_all_of_them() -> None:
    tensors = {f"t{n}": torch.zeros(n * 10) for n in range(1, 9)} | {"own": torch.zeros(3)}
    shares = partition_tensors(tensors, [name for name in tensors if name != "own"], 3)
    assert sorted(name for share in shares for name in share) == sorted(tensors)
    assert "own" in shares[0]
    loads = [sum(tensors[name].nbytes for name in share) for share in shares]
    assert max(loads) - min(loads) <= 80 * 4


# -- committing -------------------------------------------------------------------------------------------------------


def test_training_may_go_on_changing_the_state_at_once(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    saver = saver_on(store)
    weight = torch.ones(1000)
    tree, tensors = flatten({"model": {"w": weight}})
    saver.save(CheckpointRequest(step=1, epoch=0, tree=tree), tensors, [])
    weight.zero_()
    saver.close()
    assert torch.equal(load(store, 1), torch.ones(1000))


def test_every_single_write_may_fail_and_nothing_is_lost(tmp_path: Path) -> None:
    number = 0
    while True:
        number += 1
        store = open_store(str(tmp_path / str(number)))
        outside = Heard()
        failing = Faulty(
            store, lambda verb, key, count, n=number: Transient("503") if verb == "write" and count == n else None
        )
        saver = saver_on(failing, outside=outside)
        take(saver, 1, names=("best",))
        saver.close()
        assert torch.equal(load(store, 1), torch.ones(64))
        if "store_down" not in outside.kinds():
            break
        assert outside.kinds() == ["store_down", "store_back", "checkpoint"]
    assert number > 5  # part, state, manifest, pointer, record


def test_training_goes_on_through_a_full_disk_and_the_newest_state_is_written_after_it(tmp_path: Path) -> None:
    store, full, outside = open_store(str(tmp_path)), threading.Event(), Heard()
    full.set()
    failing = Faulty(store, lambda verb, key, count: DiskFull("no space") if full.is_set() else None)
    saver = saver_on(failing, outside=outside)
    for step in (1, 2, 3):
        take(saver, step, float(step))
    wait_until(lambda: outside.events, "the full disk is told")
    full.clear()
    saver.close()
    assert load(store, 3)[0] == 3
    assert outside.kinds()[:2] == ["store_down", "store_back"]


def test_a_newer_snapshot_replaces_the_one_that_waits_but_not_one_with_a_name(tmp_path: Path) -> None:
    store, gate = open_store(str(tmp_path)), threading.Event()

    def slow(verb: str, key: str, number: int) -> None:
        if verb == "write":
            assert gate.wait(60)

    saver = saver_on(Faulty(store, slow))
    take(saver, 1)
    while saver._waiting is not None:
        pass
    take(saver, 2)
    take(saver, 3, names=("best",))
    assert saver.must_keep_waiting
    take(saver, 4, names=("best",))
    gate.set()
    saver.close()
    assert [kept.step for kept in read_index(store) or ()] == [1, 4]


def test_the_manifest_is_written_last_and_only_after_the_metrics(tmp_path: Path) -> None:
    store = Faulty(open_store(str(tmp_path)), lambda *call: None)
    saver = saver_on(store, flush_metrics=lambda step: store.calls.append(("metrics", str(step))))
    take(saver, 5)
    saver.close()
    order = [key.rpartition("/")[2] for verb, key in store.calls if verb in ("write", "metrics")]
    assert order == ["a0001-r0.safetensors", "a0001-state.json", "5", "manifest.json", "last.json"]


def test_an_attempt_that_was_overtaken_commits_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    saver = saver_on(store, holds_lease=lambda: False)
    take(saver, 5)
    assert not saver.drain()
    assert isinstance(saver.failure, LeaseLost)
    assert not list(tmp_path.glob("checkpoints/*/manifest.json"))


def test_a_bug_in_the_writer_is_not_reported_as_a_lost_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def broken(step: int) -> None:
        raise TypeError("a bug")

    saver = saver_on(open_store(str(tmp_path)), flush_metrics=broken)
    take(saver, 5)
    assert not saver.drain()
    assert not isinstance(saver.failure, LeaseLost)
    assert "TypeError: a bug" in str(saver.failure)
    assert isinstance(saver.failure.__cause__, TypeError)  # type: ignore[union-attr]


def commit(store: Store, steps: Sequence[int], value: float, **options: Any) -> None:
    saver = saver_on(store, **options)
    for step in steps:
        take(saver, step, value)
        assert saver.drain()
    saver.close()


def test_an_attempt_held_still_after_its_manifest_removes_nothing_of_its_successor(tmp_path: Path) -> None:
    store, looks = open_store(str(tmp_path)), iter([True, False])

    def overtaken_at_the_second_look() -> bool:
        if ours := next(looks):
            return ours
        commit(store, [3, 4, 7], 2.0, attempt=2)
        return False

    saver = saver_on(store, holds_lease=overtaken_at_the_second_look, rule=Checkpoint(keep_last=1))
    take(saver, 5, 1.0)
    assert not saver.drain()
    assert [load(store, step)[0] for step in (3, 4, 7)] == [2.0] * 3
    assert [kept.step for kept in read_index(store) or ()] == [3, 4, 7]


def test_a_manifest_whose_answer_was_lost_is_a_commit(tmp_path: Path) -> None:
    manifests = FaultyStore(open_store(str(tmp_path)), lose_answers={1}, only=lambda key: key.endswith("manifest.json"))
    commit(manifests, [5], 1.0)
    assert manifests.writes == 2
    assert load(manifests, 5)[0] == 1.0


def test_a_commit_of_many_ranks_waits_for_few_answers_in_turn(tmp_path: Path) -> None:
    store, ranks = Waiting(open_store(str(tmp_path))), 200
    seat, folder = RankSlot(rank=0, ranks=ranks, attempt=1), tmp_path / "checkpoints/00000005"
    folder.mkdir(parents=True)
    for rank in range(1, ranks):
        (folder / f"{seat.part(rank, 0)}.json").write_text('{"bytes": 1, "sha256": "x"}')
    saver = saver_on(store, ranks=ranks)
    take(saver, 5)
    assert saver.drain()
    assert len(json.loads((folder / "manifest.json").read_text())["files"]) == ranks
    assert not list(folder.glob("*-r*.json"))
    assert store.most_at_once > 8


class Waiting(FaultyStore):
    """A store far away: every answer takes a while, and it is counted how many are waited for at the same time."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.now, self.most_at_once, self._counting = 0, 0, threading.Lock()

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        with self._far_away():
            return super().read(key, span)

    def delete(self, key: str) -> None:
        with self._far_away():
            super().delete(key)

    @contextmanager
    def _far_away(self) -> Iterator[None]:
        with self._counting:
            self.now += 1
            self.most_at_once = max(self.most_at_once, self.now)
        time.sleep(0.01)
        yield
        with self._counting:
            self.now -= 1


def test_rank_0_commits_when_all_parts_are_there(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    savers = [saver_on(store, rank=rank, ranks=3) for rank in range(3)]
    tree, tensors = flatten({"model": {name: torch.full((50,), float(n)) for n, name in enumerate("abcde")}})
    for saver in (savers[0], savers[2]):
        saver.save(CheckpointRequest(step=4, epoch=0, tree=tree), tensors, list(tensors))
    assert savers[2].drain()
    assert not (tmp_path / "checkpoints/00000004/manifest.json").exists()
    savers[1].save(CheckpointRequest(step=4, epoch=0, tree=tree), tensors, list(tensors))
    for saver in savers:
        saver.close()
    state = CheckpointReader(store, stale_for_s=0.0).load(4).state
    assert [state["model"][name][0].item() for name in "abcde"] == [0, 1, 2, 3, 4]
    assert len(list(tmp_path.glob("checkpoints/00000004/*.safetensors"))) == 3


def test_a_step_that_another_rank_has_skipped_is_given_up_for_the_next(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    first, second = saver_on(store, ranks=2), saver_on(store, rank=1, ranks=2)
    take(first, 1)
    while first._waiting is not None:
        pass
    take(first, 2)
    take(second, 2)
    first.close()
    second.close()
    assert [kept.step for kept in read_index(store) or ()] == [2]


def test_the_last_checkpoint_is_abandoned_when_its_time_is_over(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    saver = saver_on(Faulty(store, lambda verb, key, count: Transient("down") if verb == "write" else None))
    take(saver, 1)
    assert not saver.drain(0.05)
    saver.close(1.0)
    assert not list(tmp_path.glob("checkpoints/*/manifest.json"))


def test_a_checkpoint_given_up_before_the_wait_for_it_is_over_is_not_called_written(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    saver = saver_on(Faulty(store, lambda verb, key, count: GiveUp("out of time") if verb == "write" else None))
    take(saver, 1)
    assert not saver.drain()
    assert saver.drain(), "nothing is under way any more"


# -- which are kept ---------------------------------------------------------------------------------------------------


def steps_left(folder: Path) -> list[int]:
    return sorted(int(path.parent.name) for path in folder.glob("checkpoints/*/manifest.json"))


def test_the_last_the_best_and_the_named_are_kept(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    saver = saver_on(store, rule=Checkpoint(keep_last=2, keep_best=1))
    for step, score in enumerate([0.1, 0.9, 0.5, 0.2, 0.3], start=1):
        best = ("best",) if score == max([0.1, 0.9, 0.5, 0.2, 0.3][:step]) else ()
        take(saver, step, names=best, score=score, forever=step == 3)
        saver.drain()
    saver.close()
    assert steps_left(tmp_path) == [2, 3, 4, 5]
    assert not (tmp_path / "checkpoints/00000001").exists() or not list((tmp_path / "checkpoints/00000001").iterdir())


def test_the_one_being_resumed_from_is_never_removed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    catalogue = CheckpointIndex(store, Checkpoint(keep_last=1), protected=1)
    saver = AsyncCheckpointWriter(store, RankSlot(rank=0, ranks=1, attempt=1), catalogue, Heard(), environment={})
    for step in (1, 2, 3):
        take(saver, step)
        saver.drain()
    saver.close()
    assert steps_left(tmp_path) == [1, 3]


def test_removal_begins_with_the_record_then_the_manifest(tmp_path: Path) -> None:
    store = Faulty(open_store(str(tmp_path)), lambda *call: None)
    saver = saver_on(store, rule=Checkpoint(keep_last=1))
    for step in (1, 2):
        take(saver, step)
        saver.drain()
    saver.close()
    calls = [(verb, key.rpartition("/")[2]) for verb, key in store.calls if verb in ("write", "delete")]
    removal = calls[calls.index(("write", "last.json"), 5) :]
    assert removal[:3] == [("write", "last.json"), ("write", "last.json"), ("delete", "manifest.json")]


def test_a_name_points_to_the_newest_that_was_given_it(tmp_path: Path) -> None:
    catalogue = CheckpointIndex(open_store(str(tmp_path)), Checkpoint(keep_last=1))
    catalogue.record(CheckpointEntry(1, 0, ("best",)))
    catalogue.record(CheckpointEntry(2, 0, ("best", "epoch_5"), None, True))
    catalogue.prune()
    assert catalogue.step_named("best") == 2
    assert catalogue.steps == [2]
    assert (tmp_path / "checkpoints/best.json").read_text() == '{"step":2}\n'
