"""The misbehaving store misbehaves as it says, and only then."""

from __future__ import annotations

import threading
import uuid

import pytest

from headway.core.errors import Denied, DiskFull, Transient
from headway.storage import Store, open_store
from tests.servers.faults import FaultyStore


@pytest.fixture
def inner() -> Store:
    return open_store(f"memory://{uuid.uuid4().hex}")


def test_the_chosen_write_fails_and_changes_nothing(inner: Store) -> None:
    store = FaultyStore(inner, fail_writes={2}, error=DiskFull)
    store.write("k", b"1")
    with pytest.raises(DiskFull):
        store.write("k", b"2")
    assert store.read("k") == b"1"
    store.write("k", b"3")


def test_only_chosen_keys_are_counted(inner: Store) -> None:
    store = FaultyStore(inner, fail_writes={1}, only=lambda key: key.startswith("checkpoints/"))
    store.write("events/1", b"")
    with pytest.raises(Transient):
        store.write("checkpoints/1", b"")


def test_a_lost_answer_is_a_write_that_happened(inner: Store) -> None:
    store = FaultyStore(inner, lose_answers={1})
    with pytest.raises(Transient):
        store.write("k", b"1")
    assert store.read("k") == b"1"


def test_a_hanging_write_waits_until_it_is_released(inner: Store) -> None:
    store = FaultyStore(inner, hang_writes={1})
    writer = threading.Thread(target=lambda: store.write("k", b"1"))
    writer.start()
    assert store.hanging.wait(10)
    assert list(inner.list()) == []
    store.released.set()
    writer.join(10)
    assert inner.read("k") == b"1"


def test_listings_are_denied_stale_or_down(inner: Store) -> None:
    store = FaultyStore(inner)
    store.write("old", b"")
    store.stale_listing = True
    store.write("new", b"")
    assert [entry.key for entry in store.list()] == ["old"]
    store.stale_listing = False
    assert [entry.key for entry in store.list("n")] == ["new"]
    store.deny_listing = True
    with pytest.raises(Denied):
        store.list()
    store.down = True
    for verb in (store.read, store.stat, store.delete, store.list):
        with pytest.raises(Transient):
            verb("old")
    assert store.calls[-1] == ("list", "old")
