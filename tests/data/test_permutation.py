from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.loading.sampler import permute, rng, uniforms

PINNED = [9, 2, 6, 3, 5, 0, 7, 4, 1, 8]
PINNED_UNIFORMS = [0.20723450871329996, 0.04740728161868091]


@given(n=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 10**6))
def test_every_epoch_holds_every_item_once(n: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permute(n, seed, epoch, np.arange(n))), np.arange(n))


@given(n=st.integers(1, 10**15), seed=st.integers(0, 2**63), data=st.data())
def test_a_position_gives_the_same_item_however_it_is_asked_for(n: int, seed: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8))
    together = permute(n, seed, 3, np.array(positions))
    alone = [int(permute(n, seed, 3, np.array([p]))[0]) for p in positions]
    assert together.tolist() == alone


def test_epochs_and_seeds_differ() -> None:
    orders = [permute(500, seed, epoch, np.arange(500)).tolist() for seed in range(3) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 9


@pytest.mark.parametrize("n", [3, 7, 33])
def test_every_item_is_as_likely_at_every_position(n: int) -> None:
    trials = 1500
    counts = np.zeros((n, n))
    for epoch in range(trials):
        counts[np.arange(n), permute(n, 5, epoch, np.arange(n))] += 1
    chi_squared = ((counts - trials / n) ** 2 / (trials / n)).sum()
    degrees = (n - 1) ** 2
    assert chi_squared < degrees + 5 * np.sqrt(2 * degrees)


def test_neighbours_do_not_stay_neighbours() -> None:
    n = 20_000
    order = permute(n, 1, 0, np.arange(n))
    assert np.mean(np.abs(np.diff(order)) < n // 100) == pytest.approx(0.02, abs=0.005)
    assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 0.03


def test_a_far_position_costs_no_memory_for_those_before_it() -> None:
    tracemalloc.start()
    permute(10**12, 0, 0, np.arange(10**12 - 64, 10**12))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_the_order_is_pinned_for_good() -> None:
    """A change here would reorder the data of every run that resumes with a newer Headway."""
    assert permute(10, 7, 0, np.arange(10)).tolist() == PINNED
    assert uniforms(7, 0, np.array([5]), 2)[0].tolist() == pytest.approx(PINNED_UNIFORMS, abs=0)


def test_positions_outside_the_set_are_refused() -> None:
    with pytest.raises(IndexError):
        permute(10, 0, 0, np.array([10]))
    with pytest.raises(IndexError):
        permute(0, 0, 0, np.array([0]))


def test_each_item_has_a_generator_of_its_own() -> None:
    again = [rng(7, 2, 5).random(3).tolist() for _ in range(2)]
    assert again[0] == again[1]
    others = {tuple(rng(s, e, i).random(3)) for s in (7, 8) for e in (2, 3) for i in (5, 6)}
    assert len(others) == 8


def test_batch_draws_do_not_depend_on_the_batch() -> None:
    whole = uniforms(3, 1, np.arange(20_000), 8)
    assert np.array_equal(whole[100:103], uniforms(3, 1, np.array([100, 101, 102]), 8))
    assert whole.min() >= 0
    assert whole.max() < 1
    assert abs(whole.mean() - 0.5) < 0.01
    assert np.abs(np.corrcoef(whole.T) - np.eye(8)).max() < 0.04
    assert not np.array_equal(whole, uniforms(3, 1, np.arange(20_000), 8, stream=1))
