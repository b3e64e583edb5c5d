"""Charts: whole SVG documents, bounded in size, that show the data they were given."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.artifacts.svg_chart import Line, chart, downsample, smoothed, ticks

SVG = "{http://www.w3.org/2000/svg}"


def drawn(lines: list[Line], **how: float) -> ET.Element:
    return ET.fromstring(
        chart("a <title>", lines, **how).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    )


def coordinates(root: ET.Element) -> list[list[tuple[float, float]]]:
    found = []
    for line in root.iter(f"{SVG}polyline"):
        pairs = [pair.split(",") for pair in line.attrib["points"].split()]
        found.append([(float(x), float(y)) for x, y in pairs])
    return found


def test_a_rising_line_rises_from_left_to_right() -> None:
    (line,) = coordinates(drawn([Line("score", [(0, 0.1), (10, 0.5), (20, 0.9)])]))
    assert [x for x, _ in line] == sorted(x for x, _ in line)
    assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**7), st.floats(-1e9, 1e9, allow_nan=False)),
        min_size=1,
        max_size=50,
        unique_by=lambda p: p[0],
    )
)
def test_everything_stays_inside_the_picture(points: list[tuple[float, float]]) -> None:
    root = drawn([Line("x", sorted(points))])
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for line in coordinates(root):
        assert all(0 <= x <= width and 0 <= y <= height for x, y in line)


def test_a_long_history_is_a_small_picture() -> None:
    points = [(step, math.sin(step / 1000)) for step in range(200_000)]
    assert len(chart("loss", [Line("loss", points, noisy=True)])) < 40_000


def test_what_is_not_a_number_is_left_out() -> None:
    (line,) = coordinates(drawn([Line("loss", [(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)])]))
    assert len(line) == 2


def test_nothing_to_show_is_nothing() -> None:
    assert chart("loss", [Line("loss", [])]) == ""


def test_names_are_escaped_and_do_not_cover_each_other() -> None:
    root = drawn([Line(f"<b>{n}", [(0, 1.0), (9, 1.0)]) for n in range(4)])
    labels = [text for text in root.iter(f"{SVG}text") if "label" in text.attrib["class"]]
    assert [re.sub(r" .*", "", text.text or "") for text in labels] == [f"<b>{n}" for n in range(4)]
    heights = sorted(float(text.attrib["y"]) for text in labels)
    assert all(lower - upper >= 14 for upper, lower in pairwise(heights))


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_evenly_spaced_and_around_the_data(low: float, span: float) -> None:
    high = low + span
    found = ticks(low, high)
    size = found[1] - found[0]
    assert 2 <= len(found) <= 9
    assert found[0] <= low + size * 1e-3
    assert found[-1] >= high - size * 1e-3


def test_thinning_keeps_the_mean_and_the_end() -> None:
    points = [(float(n), float(n % 2)) for n in range(10_001)]
    few = downsample(points, 100)
    assert len(few) <= 100
    assert few[-1] == points[-1]
    assert sum(y for _, y in few) / len(few) == pytest.approx(0.5, abs=0.02)


def test_smoothing_does_not_start_from_nothing() -> None:
    assert smoothed([(n, 5.0) for n in range(100)])[0] == (0, 5.0)
    assert all(y == pytest.approx(5.0) for _, y in smoothed([(n, 5.0) for n in range(100)]))
