from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headway.core.errors import BadInput, NotThere, StoreError
from headway.data.dataset.manifest import Manifest, ShardFile, read_manifest
from headway.data.dataset.open import is_network_mount, open_rows, open_sources
from headway.data.dataset.rows import Rows
from headway.data.dataset.shards import ShardCache
from headway.data.prepare.pipeline import prepare
from headway.spec.model import Cache, Source
from headway.storage import Store, open_store
from headway.storage.base import ObjectInfo
from tests.data import layouts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headway.data.prepare.shard_task._PICTURE_ROWS", 16)
        source = layouts.class_folders(root / "in", splits=("train",), classes=3, each=40)
        prepare(str(source), str(root / "out"), size=32, encoding="raw", workers=1)
    return root / "out"


class Counting:
    """A store that counts what is read of it, and can be made to answer wrongly."""

    def __init__(self, store: Store) -> None:
        self._store, self.url, self.reads, self.broken = store, store.url, [], 0

    reads: list[str]

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        self.reads.append(key)
        body = self._store.read(key, span)
        if self.broken:
            self.broken -= 1
            return bytes(len(body))
        return body

    def stat(self, key: str) -> ObjectInfo:
        return self._store.stat(key)

    def write(self, *_: object, **__: object) -> str:
        raise AssertionError("a cache only reads")

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        raise AssertionError("a cache only reads")


def shards_of(made: Path) -> tuple[Manifest, tuple[ShardFile, ...], Counting]:
    manifest = read_manifest(str(made))
    return manifest, manifest.splits["train"], Counting(open_store(str(made)))


def test_a_shard_is_fetched_once_and_then_read_here(made: Path, tmp_path: Path) -> None:
    _, shards, store = shards_of(made)
    cache = ShardCache(tmp_path)
    for _ in range(3):
        for shard in shards:
            assert cache.fetch(shard, store).read_bytes() == (made / shard.key).read_bytes()
    assert sorted(store.reads) == sorted(shard.key for shard in shards)


def test_many_threads_that_want_one_shard_fetch_it_once(made: Path, tmp_path: Path) -> None:
    _, shards, store = shards_of(made)
    caches = [ShardCache(tmp_path) for _ in range(6)]
    threads = [threading.Thread(target=cache.fetch, args=(shards[0], store)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.reads) == 1


def test_the_cache_stays_within_its_size_and_drops_what_was_used_longest_ago(made: Path, tmp_path: Path) -> None:
    _, shards, store = shards_of(made)
    cache = ShardCache(tmp_path, size=3 * max(shard.bytes for shard in shards))
    for number, shard in enumerate(shards[:3]):
        os.utime(cache.fetch(shard, store), (number, number))
    cache.fetch(shards[0], store)  # used again: the second is the oldest now
    cache.fetch(shards[3], store)
    here = {path.name for path in tmp_path.glob("*.arrow")}
    assert here == {cache.path(shards[number]).name for number in (0, 2, 3)}
    assert sum(path.stat().st_size for path in tmp_path.glob("*.arrow")) <= (cache.size or 0)


def test_a_shard_larger_than_the_cache_is_refused(made: Path, tmp_path: Path) -> None:
    _, shards, store = shards_of(made)
    with pytest.raises(BadInput, match=r"raise cache\.size"):
        ShardCache(tmp_path, size=10).fetch(shards[0], store)


def test_what_arrives_damaged_is_fetched_again_and_twice_is_an_error(made: Path, tmp_path: Path) -> None:
    _, shards, store = shards_of(made)
    store.broken = 1
    assert ShardCache(tmp_path).fetch(shards[0], store).read_bytes() == (made / shards[0].key).read_bytes()
    store.broken = 2
    with pytest.raises(StoreError, match="headway data verify"):
        ShardCache(tmp_path).fetch(shards[1], store)
    assert {path.suffix for path in tmp_path.iterdir()} == {".arrow", ".lock"}


SLOW = """
import sys, time
from headway.data.dataset import shards as module
from headway.data.dataset.manifest import read_manifest
from headway.storage import open_store
fetch = module.fetch_file
def slow(store, key, path, **options):
    path.write_bytes(b"half of it")
    print("begun", flush=True)
    time.sleep(float(sys.argv[3]))
    return fetch(store, key, path, **options)
module.fetch_file = slow
shard = read_manifest(sys.argv[1]).splits["train"][0]
module.ShardCache(module.Path(sys.argv[2])).fetch(shard, open_store(sys.argv[1]))
"""


def test_a_process_killed_while_fetching_leaves_nothing_that_misleads(made: Path, tmp_path: Path) -> None:
    _, shards, store = shards_of(made)
    command = [sys.executable, "-c", SLOW, str(made), str(tmp_path), "60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    assert list(tmp_path.glob("*.part"))
    process.kill()
    process.communicate()
    cache = ShardCache(tmp_path)
    assert cache.fetch(shards[0], store).read_bytes() == (made / shards[0].key).read_bytes()
    assert not list(tmp_path.glob("*.part"))


def test_ranks_wait_for_the_one_that_fetches(made: Path, tmp_path: Path) -> None:
    _, shards, store = shards_of(made)
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(made), str(tmp_path), "0.3"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    ShardCache(tmp_path).fetch(shards[0], store)
    assert store.reads == []
    process.communicate()
    assert process.returncode == 0


def test_rows_are_read_through_a_cache_that_is_too_small_for_them(made: Path, tmp_path: Path) -> None:
    local = Rows(str(made), "train")
    largest = max(shard.bytes for shard in shards_of(made)[1])
    store = open_store("memory://test-cache/data")
    for path in made.rglob("*"):
        if path.is_file():
            store.write(str(path.relative_to(made)), path.read_bytes())
    rows = open_rows("memory://test-cache/data", "train", cache=Cache(dir=str(tmp_path), size=2 * largest))
    for row in np.random.default_rng(0).permutation(len(local))[:60].tolist():
        assert np.array_equal(rows.cell("picture", row), local.cell("picture", row))
        assert len(rows._shards) <= 2
    assert sum(path.stat().st_size for path in (tmp_path / "shards").glob("*.arrow")) <= 2 * largest


def test_filling_tells_how_fast_it_goes(made: Path, tmp_path: Path) -> None:
    _, shards, store = shards_of(made)
    told: list[tuple[int, int, float]] = []
    ShardCache(tmp_path).fill(shards, store, lambda *numbers: told.append(numbers))
    total = sum(shard.bytes for shard in shards)
    assert told[-1][:2] == (total, total)
    assert told[-1][2] > 0


def test_a_shard_that_is_evicted_before_it_is_opened_is_fetched_again(made: Path, tmp_path: Path) -> None:
    manifest, _, store = shards_of(made)
    cache, evictions = ShardCache(tmp_path), [2]

    def locate(shard: ShardFile) -> Path:
        path = cache.fetch(shard, store)
        if evictions[0]:
            evictions[0] -= 1
            path.unlink()
        return path

    rows = Rows(str(made), "train", locate=locate)
    assert rows.cell("id", 0) == Rows(str(made), "train").cell("id", 0)
    evictions[0] = 100
    with pytest.raises(NotThere, match="as fast as it is fetched"):
        Rows(str(made), "train", locate=locate).cell("id", 100)
    assert manifest.task == "classes"


def test_sources_of_a_job_are_opened_with_weight_split_limit_and_filter(made: Path) -> None:
    source = Source(source=str(made), weight=2.5, split="train", limit=7, where={"label": "class_1"})
    (opened,) = open_sources([source], "val")
    assert opened.weight == 2.5
    assert len(opened.rows) == 7
    assert {opened.rows.cell("label", row) for row in range(7)} == {1}
    with pytest.raises(BadInput, match="no split 'val'"):
        open_sources([replace(source, split=None)], "val")
    with pytest.raises(BadInput, match="weight"):
        open_sources([replace(source, weight=-1)], "val")


def test_this_disk_is_no_share(tmp_path: Path) -> None:
    assert not is_network_mount(tmp_path)
