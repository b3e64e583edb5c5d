"""Curves in one line: true to their shape, whatever the numbers."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headway.dashboard.terminal import BLOCKS, downsample, sparkline


def test_a_curve_that_falls_falls() -> None:
    assert sparkline([8, 7, 6, 5, 4, 3, 2, 1], 8) == "█▇▆▅▄▃▂▁"
    assert sparkline([1, 1, 1], 8) == "▁▁▁"


def test_a_long_curve_keeps_its_shape_in_a_narrow_place() -> None:
    assert sparkline([step / 1000 for step in range(1000)], 8) == BLOCKS


def test_what_is_no_number_is_a_gap() -> None:
    assert sparkline([1.0, math.nan, 2.0], 3) == "▁ █"
    assert sparkline([math.inf, math.nan], 9) == "  "
    assert downsample([math.nan, 1.0], 2) == [None, 1.0]


@given(st.lists(st.floats()), st.integers(-1, 60))
def test_any_numbers_make_a_line_that_fits(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) == max(0, min(width, len(values)))
