"""Restoring: damage is named and the one before used; a store that is slow or silent is neither damage nor absence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.core.errors import Denied, NoCheckpoint, Transient
from headway.spec import Checkpoint
from headway.storage import open_store
from headway.storage.base import Store
from headway.training.checkpoint.index import CheckpointEntry, CheckpointIndex
from headway.training.checkpoint.reader import CheckpointReader, SkippedCheckpoint
from headway.training.checkpoint.serialization import flatten
from headway.training.checkpoint.writer import AsyncCheckpointWriter, CheckpointRequest, RankSlot
from tests.training.stores import Faulty, Heard, hidden

STEPS = (10, 20, 30)


def state(step: int) -> dict[str, Any]:
    return {"model": {"w": torch.full((300,), float(step)), "b": torch.tensor(step)}, "run": {"step": step}}


def write_checkpoints(folder: Path, steps: tuple[int, ...] = STEPS) -> None:
    store = open_store(str(folder))
    saver = AsyncCheckpointWriter(
        store,
        RankSlot(rank=0, ranks=1, attempt=1),
        CheckpointIndex(store, Checkpoint(keep_last=9)),
        Heard(),
        environment={},
    )
    for step in steps:
        tree, tensors = flatten(state(step))
        saver.save(CheckpointRequest(step=step, epoch=0, tree=tree), tensors, [])
        assert saver.drain()
    saver.close()


def archive(folder: Path, **options: Any) -> CheckpointReader:
    return CheckpointReader(open_store(str(folder)), stale_for_s=0.0, sleep=lambda pause: None, **options)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    write_checkpoints(tmp_path)
    return tmp_path


def newest_files(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints" / "00000030").iterdir())


def test_the_newest_checkpoint_comes_back_to_the_bit(folder: Path) -> None:
    damaged: list[SkippedCheckpoint] = []
    loaded = archive(folder).load_newest(damaged)
    assert loaded is not None
    assert loaded.step == 30
    assert torch.equal(loaded.state["model"]["w"], state(30)["model"]["w"])
    assert loaded.state["run"] == {"step": 30}
    assert damaged == []


def test_a_checkpoint_is_three_files(folder: Path) -> None:
    assert [path.name for path in newest_files(folder)] == [
        "a0001-r0.safetensors",
        "a0001-state.json",
        "manifest.json",
    ]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(bytes(body))


def swap(path: Path) -> None:
    path.write_bytes((path.parents[1] / "00000020" / path.name).read_bytes())


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("hurt", [truncate, empty, flip, swap, remove])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_damage_to_any_file_is_named_and_the_one_before_is_used(folder: Path, hurt: Any, number: int) -> None:
    path = newest_files(folder)[number]
    hurt(path)
    damaged: list[SkippedCheckpoint] = []
    loaded = archive(folder).load_newest(damaged)
    assert loaded is not None
    assert loaded.step == 20
    assert torch.equal(loaded.state["model"]["w"], state(20)["model"]["w"])
    assert [damage.step for damage in damaged] == [30]
    assert "00000030/" in damaged[0].why


def test_files_without_a_manifest_are_no_checkpoint(folder: Path) -> None:
    """A kill before the commit: nothing was promised, so nothing is damaged."""
    (folder / "checkpoints" / "00000040").mkdir()
    (folder / "checkpoints" / "00000040" / "a0001-r0.safetensors").write_bytes(b"half")
    damaged: list[SkippedCheckpoint] = []
    loaded = archive(folder).load_newest(damaged)
    assert loaded is not None
    assert loaded.step == 30
    assert damaged == []


def test_a_commit_whose_record_was_lost_is_found_by_its_manifest(folder: Path) -> None:
    """A kill between the manifest and last.json."""
    (folder / "checkpoints" / "last.json").unlink()
    loaded = archive(folder).load_newest([])
    assert loaded is not None
    assert loaded.step == 30


def adopted(folder: Path, store: Store | None = None) -> CheckpointIndex:
    """As an attempt that goes on from what is there."""
    catalogue = CheckpointIndex(store or open_store(str(folder)), Checkpoint(keep_last=2))
    catalogue.add_existing(archive(folder).list_commits())
    catalogue.rewrite()
    return catalogue


def commit(folder: Path, step: int, *, names: tuple[str, ...] = (), fault: Any = None, turn: int = 0) -> None:
    """One more checkpoint; with `fault`, by a rank that is killed where it strikes."""

    class Killed(BaseException): ...

    def strike(verb: str, key: str, number: int) -> None:
        if fault is not None and verb == "write" and key.endswith(fault):
            raise Killed

    adopted(folder)
    store = Faulty(open_store(str(folder)), strike)
    catalogue = adopted(folder, store)  # with nothing left to settle
    saver = AsyncCheckpointWriter(store, RankSlot(rank=0, ranks=1, attempt=2), catalogue, Heard(), environment={})
    tree, tensors = flatten(state(step))
    snapshot = saver._copy(CheckpointRequest(step=step, epoch=0, tree=tree, names=names, turn=turn), tensors, [])
    try:
        saver._write_checkpoint(snapshot)
    except Killed:
        assert fault is not None
    saver.close()


def pointer(folder: Path, name: str) -> int:
    return int(json.loads((folder / f"checkpoints/{name}.json").read_text())["step"])


@pytest.mark.parametrize("killed_before", ["best.json", "last.json"])
def test_a_kill_between_the_manifest_and_its_names_leaves_them_to_the_next_attempt(
    folder: Path, killed_before: str
) -> None:
    commit(folder, 35, names=("best",))
    commit(folder, 40, names=("best",), fault=killed_before)
    catalogue = adopted(folder)
    assert catalogue.newest_best == 40
    assert (pointer(folder, "best"), pointer(folder, "last")) == (40, 40)


def test_a_name_that_a_step_got_when_it_was_committed_again_is_not_lost_by_a_kill(folder: Path) -> None:
    """The epoch's last step is committed in the loop, and again after its evaluation, which was the best."""
    commit(folder, 40)
    commit(folder, 40, names=("best",), fault="last.json", turn=1)
    assert adopted(folder).newest_best == 40
    assert pointer(folder, "best") == 40


def test_a_removal_that_a_kill_interrupted_is_finished_and_gives_no_name_back(folder: Path) -> None:
    commit(folder, 40, names=("best",))
    old = (folder / "checkpoints/00000040/manifest.json").read_bytes()
    commit(folder, 50, names=("best",))
    (folder / "checkpoints/00000045").mkdir()
    (folder / "checkpoints/00000045/manifest.json").write_bytes(old)
    assert adopted(folder).newest_best == 50
    commit(folder, 60)
    assert not list((folder / "checkpoints/00000045").glob("*"))
    assert pointer(folder, "best") == 50


def test_parts_that_others_did_not_follow_up_are_removed_but_not_what_is_damaged_or_ahead(folder: Path) -> None:
    for step in (25, 70):
        (folder / f"checkpoints/{step:08d}").mkdir()
        (folder / f"checkpoints/{step:08d}/a0001-r1.safetensors").write_bytes(b"part")
    catalogue = adopted(folder)
    catalogue.exclude(20)
    catalogue.record(CheckpointEntry(40, 0))
    catalogue.prune()
    left = {path.parent.name for path in (folder / "checkpoints").glob("*/*")}
    assert left == {"00000020", "00000030", "00000070"}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"kept": 3}', b'{"steps": [1]}'])
def test_a_damaged_record_is_said_and_the_manifests_are_read(folder: Path, body: bytes) -> None:
    (folder / "checkpoints" / "last.json").write_bytes(body)
    said: list[str] = []
    loaded = archive(folder, log=said.append).load_newest([])
    assert loaded is not None
    assert loaded.step == 30
    assert "last.json is damaged" in said[0]


def test_an_empty_folder_is_a_fresh_start(tmp_path: Path) -> None:
    assert archive(tmp_path).load_newest([]) is None


def test_when_none_can_be_read_it_stops_rather_than_start_again(folder: Path) -> None:
    for path in (folder / "checkpoints").glob("*/*.safetensors"):
        truncate(path)
    with pytest.raises(NoCheckpoint, match="3 checkpoints were recorded, but none can be read"):
        archive(folder).load_newest([])


def test_recorded_commits_that_have_vanished_are_not_a_fresh_start(folder: Path) -> None:
    for path in (folder / "checkpoints").glob("*/*"):
        path.unlink()
    with pytest.raises(NoCheckpoint):
        archive(folder).load_newest([])


@pytest.mark.parametrize("part", ["manifest.json", "safetensors", "state.json"])
def test_a_stale_view_is_looked_at_again(folder: Path, part: str) -> None:
    store = Faulty(open_store(str(folder)), hidden(f"00000030/{part}" if part == "manifest.json" else part, 2))
    damaged: list[SkippedCheckpoint] = []
    loaded = CheckpointReader(store, stale_for_s=5.0, sleep=lambda pause: None).load_newest(damaged)
    assert loaded is not None
    assert loaded.step == 30
    assert damaged == []


@pytest.mark.parametrize("verb", ["read", "list"])
def test_a_silent_store_is_asked_again(folder: Path, verb: str) -> None:
    def fault(called: str, key: str, number: int) -> Transient | None:
        return Transient("503") if called == verb and number % 2 else None

    loaded = CheckpointReader(Faulty(open_store(str(folder)), fault), sleep=lambda pause: None).load_newest([])
    assert loaded is not None
    assert loaded.step == 30


def test_a_store_that_stays_silent_is_an_error_and_no_fresh_start(folder: Path) -> None:
    store = Faulty(open_store(str(folder)), lambda verb, key, number: Transient("503"))
    with pytest.raises(Transient):
        CheckpointReader(store, try_for_s=3.0, sleep=lambda pause: None).load_newest([])


def test_a_denied_listing_is_an_error_and_no_fresh_start(folder: Path) -> None:
    store = Faulty(open_store(str(folder)), lambda verb, key, number: Denied("403") if verb == "list" else None)
    with pytest.raises(Denied):
        CheckpointReader(store, sleep=lambda pause: None).load_newest([])
