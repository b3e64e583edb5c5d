"""Feeds: the same batches whatever the world, the workers and the place where one begins."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import BadInput
from headway.data.loading.sampler import PaddingBatch, share
from headway.training.batches import Feed, Loader, WorkerPrefetcher, batches_from_feed
from tests.waiting import wait_until


class Drawn:
    """Items that show which random numbers they were given."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def item(self, index: int, rng: np.random.Generator) -> tuple[int, float]:
        return index, float(rng.random())


class Careless:
    """A dataset as people write them: every kind of global randomness."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(1).item()])


def listed(feed: Loader, epoch: int = 0, parts: int = 1) -> list[tuple[int, float]]:
    """Every item of an epoch, in order, fillers left out."""
    found: list[tuple[int, float]] = []
    for step in range(len(feed)):
        for part in range(parts):
            batch = feed.batch(epoch, step, part, parts)
            if not isinstance(batch, PaddingBatch):
                found += zip(*(column.tolist() for column in batch), strict=True)
    return found


@given(size=st.integers(0, 1000), parts=st.integers(1, 70))
def test_parts_differ_by_at_most_one_and_are_together_everything(size: int, parts: int) -> None:
    spans = [share(size, part, parts) for part in range(parts)]
    assert spans[0][0] == 0
    assert spans[-1][1] == size
    assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))
    sizes = [stop - start for start, stop in spans]
    assert max(sizes) - min(sizes) <= 1


def test_a_loader_is_a_feed() -> None:
    assert isinstance(Loader(Drawn(4), 2), Feed)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 8])
def test_any_number_of_parts_holds_the_same_items_in_the_same_order_with_the_same_noise(parts: int) -> None:
    assert listed(Loader(Drawn(23), 4, seed=1), epoch=2, parts=parts) == listed(Loader(Drawn(23), 4, seed=1), epoch=2)


def test_an_epoch_is_every_item_once_and_the_next_is_another_order() -> None:
    feed = Loader(Drawn(10_000), 64, seed=1)
    first, second = ([index for index, _ in listed(feed, epoch)] for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(10_000))
    assert first != second
    assert first != sorted(first)


def test_noise_differs_between_items_epochs_and_seeds() -> None:
    draws = [listed(Loader(Drawn(5), 5, shuffle=False, seed=seed), epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert len({noise for drawn in draws for _, noise in drawn}) == 20


def test_the_last_incomplete_batch_is_kept_or_dropped() -> None:
    assert len(Loader(Drawn(10), 4)) == 3
    assert len(Loader(Drawn(10), 4, drop_last=True)) == 2
    assert len(Loader(Drawn(3), 4, drop_last=True)) == 1


def test_an_empty_part_is_a_filler() -> None:
    feed = Loader(Drawn(3), 8)
    kinds = [type(feed.batch(0, 0, part, 4)) for part in range(4)]
    assert kinds.count(PaddingBatch) == 1
    assert kinds[-1] is PaddingBatch


def test_a_dataset_that_uses_global_randomness_is_seeded_for_every_item() -> None:
    feed = Loader(Careless(), 4, seed=3)
    straight = [feed.batch(1, step, 0, 1) for step in range(5)]
    torch.rand(7), random.random(), np.random.rand(3)
    assert torch.equal(feed.batch(1, 3, 0, 1), straight[3])
    assert torch.equal(torch.cat([feed.batch(1, 3, part, 2) for part in range(2)]), straight[3])


@pytest.mark.parametrize("dataset", [Drawn(20), Careless()])
def test_worker_processes_change_nothing(dataset: Any) -> None:
    feed = Loader(dataset, 3, seed=5)
    ahead = WorkerPrefetcher(feed, 2)
    for epoch, first in ((0, 0), (1, 4)):
        here = list(batches_from_feed(feed, epoch, first, range(1, 2), 2))
        there = list(ahead.batches(epoch, first, len(feed), range(1, 2), 2))
        assert repr(here) == repr(there)
        assert len(here) == 7 - first


class Waiting:
    """Tells who its worker is, and then never comes back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __len__(self) -> int:
        return 4

    def item(self, index: int, rng: np.random.Generator) -> int:
        if index:
            (self._folder / "worker").write_text(f"{os.getpid()}\n")
            time.sleep(600)
        return index


def test_worker_processes_ignore_signals_and_die_with_their_rank(tmp_path: Path) -> None:
    rank = os.fork()
    if rank == 0:
        list(WorkerPrefetcher(Loader(Waiting(tmp_path), 1, shuffle=False), 1).batches(0, 0, 4, range(1), 1))
        os._exit(0)
    told = tmp_path / "worker"
    wait_until(lambda: told.exists() and told.read_text().endswith("\n"), "the worker works")
    worker = int(told.read_text())
    os.kill(worker, signal.SIGTERM)
    os.kill(worker, signal.SIGINT)
    wait_until(lambda: not pending_signals(worker), "both are delivered")
    assert alive(worker)
    os.kill(rank, signal.SIGKILL)
    os.waitpid(rank, 0)
    wait_until(lambda: not alive(worker), "the worker dies")


def pending_signals(pid: int) -> int:
    """Return the signals that the kernel has yet to deliver or to drop, as a mask."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("ShdPnd:")[2].split()[0], 16)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize(
    ("dataset", "size", "what"), [([], 2, "empty"), ([1], 0, "batch size"), (iter([1]), 2, "length")]
)
def test_what_cannot_be_loaded_is_said_at_once(dataset: Any, size: int, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        Loader(dataset, size)


def test_the_fingerprint_changes_with_anything_that_changes_the_batches() -> None:
    prints = {
        Loader(Drawn(9), 2, seed=1).fingerprint,
        Loader(Drawn(8), 2, seed=1).fingerprint,
        Loader(Drawn(9), 3, seed=1).fingerprint,
        Loader(Drawn(9), 2, seed=2).fingerprint,
        Loader(Drawn(9), 2, seed=1, shuffle=False).fingerprint,
    }
    assert len(prints) == 5
