from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import BadInput
from headway.data.loading.sampler import SampleGroup, SampleOrder, balanced, quotas


def epoch_of(order: SampleOrder, epoch: int, seed: int = 1) -> list[int]:
    return order.rows_at(seed, epoch, np.arange(len(order))).tolist()


@given(shares=st.lists(st.floats(0.01, 100), min_size=1, max_size=9), length=st.integers(1, 10_000))
def test_quotas_add_up_and_none_is_off_by_one(shares: list[float], length: int) -> None:
    given_out = quotas(shares, length)
    wanted = np.array(shares) / sum(shares) * length
    assert given_out.sum() == length
    assert np.abs(given_out - wanted).max() < 1 + 1e-6


def test_one_source_is_each_row_once_in_another_order_each_epoch() -> None:
    order = SampleOrder([SampleGroup(range(100), 1.0)], 100)
    first, second = epoch_of(order, 0), epoch_of(order, 1)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second


def test_weights_are_exact_in_every_epoch() -> None:
    order = SampleOrder([SampleGroup(range(100), 1.0), SampleGroup(range(100, 130), 2.0)], 130)
    for epoch in range(5):
        rows = np.array(epoch_of(order, epoch))
        assert (rows >= 100).sum() == 87  # two thirds of 130
        assert (rows < 100).sum() == 43


def test_no_row_comes_a_third_time_before_each_has_come_twice() -> None:
    order = SampleOrder([SampleGroup(range(100), 1.0), SampleGroup(range(100, 130), 2.0)], 130)
    drawn: list[int] = []
    for epoch in range(7):
        drawn += epoch_of(order, epoch)
    for first, last in ((0, 100), (100, 130)):
        counts = np.bincount([row - first for row in drawn if first <= row < last], minlength=last - first)
        assert counts.max() - counts.min() <= 1


def test_a_place_holds_the_same_row_whenever_it_is_asked_for() -> None:
    order = SampleOrder(
        [SampleGroup(range(50), 1.0), SampleGroup(range(50, 90), 3.0), SampleGroup(range(90, 91), 0.5)], 91
    )
    whole = order.rows_at(9, 4, np.arange(91))
    for start in (0, 13, 60):
        assert np.array_equal(order.rows_at(9, 4, np.arange(start, start + 20)), whole[start : start + 20])


def test_sources_are_mixed_all_along_the_epoch() -> None:
    order = SampleOrder([SampleGroup(range(1000), 1.0), SampleGroup(range(1000, 2000), 1.0)], 2000)
    rows = np.array(epoch_of(order, 0))
    shares = [(rows[start : start + 200] < 1000).mean() for start in range(0, 2000, 200)]
    assert min(shares) > 0.35
    assert max(shares) < 0.65


def test_rare_classes_are_drawn_by_the_root_of_their_frequency() -> None:
    labels = np.array([0] * 900 + [1] * 90 + [2] * 10)
    order = SampleOrder(balanced(np.arange(1000), labels), 1000)
    total = np.zeros(3)
    for epoch in range(20):
        total += np.bincount(labels[epoch_of(order, epoch)], minlength=3)
    per_row = total / np.array([900, 90, 10])
    assert per_row[1] / per_row[0] == pytest.approx((900 / 90) ** 0.5, rel=0.02)
    assert per_row[2] / per_row[0] == pytest.approx((900 / 10) ** 0.5, rel=0.03)


def test_power_0_draws_rows_alike_and_1_classes_alike() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    alike = SampleOrder(balanced(np.arange(100), labels, power=0.0), 100)
    assert sorted(epoch_of(alike, 0)) == list(range(100))
    classes = SampleOrder(balanced(np.arange(100), labels, power=1.0), 100)
    assert (labels[epoch_of(classes, 0)] == 1).sum() == 50


def test_empty_sources_and_zero_weights_take_no_part() -> None:
    order = SampleOrder([SampleGroup(range(0), 1.0), SampleGroup(range(10), 1.0), SampleGroup(range(10, 20), 0.0)], 10)
    assert sorted(epoch_of(order, 0)) == list(range(10))
    with pytest.raises(BadInput, match="no rows to sample from"):
        SampleOrder([SampleGroup(range(10), 0.0)], 10)


def test_in_order_means_in_order() -> None:
    assert epoch_of(SampleOrder([SampleGroup(range(5, 15), 1.0)], 10, shuffle=False), 3) == list(range(5, 15))
