"""Durations, sizes, cadences, accelerators: what people type, and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.spec import Accelerator, Cadence, units

SECONDS = st.integers(0, 10**12).map(lambda ms: round(ms / 1000, 3))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("90s", 90), ("10m", 600), ("8h", 28800), ("2d", 172800), ("1h30m", 5400), ("1w", 604800), ("1.5h", 5400)],
        *[("0s", 0), ("0.25s", 0.25), ("1h 30m", 5400), (" 10m ", 600), ("2d12h", 216000)],
    ],
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("60", "write 60s, 60m or 60h"),
        ("1.5", "write 1.5s, 1.5m or 1.5h"),
        ("10min", "write 10m"),
        ("8 hours", "write 8h"),
        ("2 Days", "write 2d"),
        ("100ms", "write 90s, 10m, 8h, 2d or 1h30m"),
        ("3 months", "write 90s, 10m, 8h, 2d or 1h30m"),
        ("30m1h", "write 90s, 10m, 8h, 2d or 1h30m"),
        ("1h1h", "write 90s, 10m, 8h, 2d or 1h30m"),
        ("-5m", "write 90s, 10m, 8h, 2d or 1h30m"),
        ("", "write 90s, 10m, 8h, 2d or 1h30m"),
        ("soon", "write 90s, 10m, 8h, 2d or 1h30m"),
        ("１０m", "write 90s, 10m, 8h, 2d or 1h30m"),
    ],
)
def test_what_is_no_duration_says_what_to_write(text: str, fix: str) -> None:
    with pytest.raises(units.BadUnit) as bad:
        units.parse_duration(text)
    assert bad.value.fix == fix


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *[("512MB", 512 * 10**6), ("30GB", 30 * 10**9), ("1TB", 10**12), ("30GiB", 30 * 2**30), ("2PB", 2 * 10**15)],
        *[("1B", 1), ("4 KiB", 4096), ("1.5TB", 1500 * 10**9)],
    ],
)
def test_sizes_are_bytes(text: str, count: int) -> None:
    assert units.parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("30", "write 30MB, 30GB or 30GiB"),
        ("30G", "write 30GB"),
        ("30Gi", "write 30GiB"),
        ("30gb", "write 30GB"),
        ("1.5 tib", "write 1.5TiB"),
        ("lots", "write 512MB, 30GB, 1TB or 30GiB"),
        ("-1GB", "write 512MB, 30GB, 1TB or 30GiB"),
        ("0GB", "write 512MB, 30GB, 1TB or 30GiB, or leave the key out"),
    ],
)
def test_what_is_no_size_says_what_to_write(text: str, fix: str) -> None:
    with pytest.raises(units.BadUnit) as bad:
        units.parse_size(text)
    assert bad.value.fix == fix


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("10m", Cadence(seconds=600)),
        ("500 steps", Cadence(steps=500)),
        ("1 step", Cadence(steps=1)),
        ("5 epochs", Cadence(epochs=5)),
        ("1epoch", Cadence(epochs=1)),
    ],
)
def test_cadences_are_time_steps_or_epochs(text: str, every: Cadence) -> None:
    assert units.parse_cadence(text) == every


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("10", "write 10m, 10 steps or 10 epochs"),
        ("10 minutes", "write 10m"),
        ("0 steps", "write 10m, 500 steps or 5 epochs"),
        ("0s", "write 10m, 500 steps or 5 epochs"),
        ("often", "write 10m, 500 steps or 5 epochs"),
        ("1.5 epochs", "write 10m, 500 steps or 5 epochs"),
    ],
)
def test_what_is_no_cadence_says_what_to_write(text: str, fix: str) -> None:
    with pytest.raises(units.BadUnit) as bad:
        units.parse_cadence(text)
    assert bad.value.fix == fix


def test_an_accelerator_is_a_kind_and_a_count() -> None:
    assert units.parse_accelerator("A100-80GB:8") == Accelerator(kind="A100-80GB", count=8)
    assert units.parse_accelerator("T4") == Accelerator(kind="T4", count=1)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("t4:1", "did you mean T4:1?"),
        ("a100:2", "did you mean A100:2?"),
        ("A100-80G:1", "did you mean A100-80GB:1?"),
        ("V-100", "did you mean V100:1?"),
        ("H10O:4", "did you mean H100:4?"),
        ("T4:0", "write T4:1"),
        ("T4:", "write T4:1"),
        ("T4:two", "write T4:1"),
        ("T4:1:1", "write T4:1"),
    ],
)
def test_a_mistyped_accelerator_is_guessed(text: str, fix: str) -> None:
    with pytest.raises(units.BadUnit) as bad:
        units.parse_accelerator(text)
    assert bad.value.fix == fix


def test_an_accelerator_nobody_knows_gets_the_list() -> None:
    with pytest.raises(units.BadUnit) as bad:
        units.parse_accelerator("abacus")
    assert all(kind in bad.value.fix for kind in units.ACCELERATORS)


@given(SECONDS)
def test_a_duration_survives_being_written(seconds: float) -> None:
    assert units.parse_duration(units.format_duration(seconds)) == seconds


@given(st.integers(1, 10**19))
def test_a_size_survives_being_written(count: int) -> None:
    assert units.parse_size(units.format_size(count)) == count


@given(
    st.builds(lambda s: Cadence(seconds=s), SECONDS.filter(bool))
    | st.builds(lambda n: Cadence(steps=n), st.integers(1, 10**12 - 1))
    | st.builds(lambda n: Cadence(epochs=n), st.integers(1, 10**12 - 1))
)
def test_a_cadence_survives_being_written(every: Cadence) -> None:
    assert units.parse_cadence(units.format_cadence(every)) == every


@given(st.builds(Accelerator, kind=st.sampled_from(units.ACCELERATORS), count=st.integers(1, 9999)))
def test_an_accelerator_survives_being_written(wanted: Accelerator) -> None:
    assert units.parse_accelerator(units.format_accelerator(wanted)) == wanted


@pytest.mark.parametrize(
    ("seconds", "text"), [(5400, "1h30m"), (90, "1m30s"), (0, "0s"), (600, "10m"), (0.5, "0.5s"), (86400, "1d")]
)
def test_durations_are_written_as_people_would(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(30 * 10**9, "30GB"), (30 * 2**30, "30GiB"), (1234567, "1234567B"), (1500 * 10**6, "1500MB")]
)
def test_sizes_are_written_as_people_would(count: int, text: str) -> None:
    assert units.format_size(count) == text


@pytest.mark.parametrize(
    ("pattern", "read"),
    [
        (units.DURATION_PATTERN, units.parse_duration),
        (units.SIZE_PATTERN, units.parse_size),
        (units.CADENCE_PATTERN, units.parse_cadence),
        (units.ACCELERATOR_PATTERN, units.parse_accelerator),
    ],
)
@given(text=st.text(alphabet="0123456789.: TABGKMiPhmsdwteposch4", max_size=9))
def test_the_schema_allows_all_that_is_read(pattern: str, read: Callable[[str], Any], text: str) -> None:
    try:
        read(text)
    except units.BadUnit:
        return
    assert re.search(pattern, text.strip())
