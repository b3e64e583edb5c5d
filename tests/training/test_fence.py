"""An attempt that is held still, and overtaken, at each moment of a commit: what its successor wrote stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headway.core.errors import NotThere
from headway.rundir.lease import Lease, LeaseLost
from headway.spec import Checkpoint
from headway.storage import open_store
from headway.storage.base import Store
from headway.training.checkpoint.index import INDEX_KEY, CheckpointIndex, read_index
from headway.training.checkpoint.reader import CheckpointReader
from headway.training.checkpoint.serialization import flatten, read_record
from headway.training.checkpoint.writer import AsyncCheckpointWriter, CheckpointRequest, RankSlot, lease_is_ours
from tests.servers import processes
from tests.training.stores import Faulty, Heard

BEST, MANIFEST = "checkpoints/best.json", "checkpoints/00000005/manifest.json"


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "folder":
        return open_store(str(tmp_path))
    boto3 = pytest.importorskip("boto3")
    url = request.getfixturevalue("moto_url")
    for name, value in {**processes.MOTO_SETTINGS, "AWS_ENDPOINT_URL": url}.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="bucket")
    return open_store(f"s3://bucket/{tmp_path.name}")


def saver_on(store: Store, attempt: int) -> AsyncCheckpointWriter:
    """Of a rank 0 that goes on from what is there."""
    catalogue = CheckpointIndex(store, Checkpoint(keep_last=1), holds_lease=lambda: lease_is_ours(store, attempt))
    catalogue.add_existing(CheckpointReader(store, stale_for_s=0.0).list_commits())
    return AsyncCheckpointWriter(store, RankSlot(rank=0, ranks=1, attempt=attempt), catalogue, Heard(), environment={})


def take(saver: AsyncCheckpointWriter, step: int, value: float) -> bool:
    """Whether it was committed; in time, whatever the store does."""
    tree, tensors = flatten({"model": {"w": torch.full((8,), value)}})
    saver.save(CheckpointRequest(step=step, epoch=0, tree=tree, names=("best",)), tensors, [])
    return saver.drain(120)


def commit(store: Store, attempt: int, step: int, value: float) -> None:
    saver = saver_on(store, attempt)
    assert take(saver, step, value)
    saver.close()


def held_still(store: Store, verb: str, key: str, meanwhile: Callable[[], None], nth: int = 1) -> Store:
    """Whoever uses it is held still before its `nth` such call, until `meanwhile` has happened."""
    left = [nth]

    def fault(called: str, on: str, number: int) -> None:
        if (called, on) == (verb, key):
            left[0] -= 1
            if left[0] == 0:
                meanwhile()

    return Faulty(store, fault)


def weights(store: Store, step: int) -> float:
    return float(CheckpointReader(store, stale_for_s=0.0).load(step).state["model"]["w"][0])


@pytest.mark.parametrize(
    ("verb", "key", "nth"),
    [("stat", BEST, 1), ("stat", INDEX_KEY, 1), ("write", BEST, 1), ("write", INDEX_KEY, 1), ("write", INDEX_KEY, 2)],
)
def test_an_attempt_held_still_after_its_manifest_leaves_its_successors_pointers(
    store: Store, verb: str, key: str, nth: int
) -> None:
    """Also between its last look at the lease and the write. The second of last.json strikes out what is to go."""
    lease = Lease.acquire(store)
    commit(store, 1, 3, 1.0)

    def overtaken() -> None:
        commit(store, lease.advance(), 7, 2.0)

    saver = saver_on(held_still(store, verb, key, overtaken, nth), 1)
    assert not take(saver, 5, 1.0)
    assert isinstance(saver.failure, LeaseLost)
    assert read_record(store, BEST)["step"] == 7
    assert [kept.step for kept in read_index(store) or ()] == [7]
    assert weights(store, 7) == 2.0


@pytest.mark.parametrize("again", [False, True])
def test_an_attempt_held_still_before_its_manifest_replaces_none_of_its_successor(store: Store, again: bool) -> None:
    """Also where an earlier attempt had committed that very step."""
    lease = Lease.acquire(store)
    if again:
        commit(store, lease.attempt, 5, 0.5)
    mine = lease.advance()

    def overtaken() -> None:
        commit(store, lease.advance(), 5, 2.0)

    saver = saver_on(held_still(store, "write", MANIFEST, overtaken), mine)
    assert not take(saver, 5, 1.0)
    assert isinstance(saver.failure, LeaseLost)
    assert weights(store, 5) == 2.0


@pytest.mark.parametrize("key", [MANIFEST, BEST, INDEX_KEY])
def test_a_successor_is_not_ended_by_the_last_write_of_one_that_was_held_still(store: Store, key: str) -> None:
    lease = Lease.acquire(store)
    commit(store, 1, 3, 1.0)

    def awake() -> None:
        try:
            before = store.stat(key).version
        except NotThere:
            before = ""
        store.write(key, b'{"of": "the one before"}\n', when=before)

    commit(held_still(store, "write", key, awake), lease.advance(), 5, 2.0)
    assert weights(store, 5) == 2.0
    assert read_record(store, BEST)["step"] == 5
    assert [kept.step for kept in read_index(store) or ()] == [5]
