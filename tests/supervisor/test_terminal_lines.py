"""Output as a terminal shows it: rewritten lines, escape sequences, bars that are one line of log."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.supervisor.terminal_lines import BAR_INTERVAL_S, MAX_LINE_BYTES, TerminalLines


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(data: bytes, size: int = 1 << 20) -> list[str]:
    """The lines of some output that comes in pieces of `size` bytes."""
    lines = TerminalLines()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    text = b"".join([*map(lines.feed, pieces), lines.finish()])
    assert text.endswith(b"\n") or not text
    return text.decode("utf-8", "backslashreplace").split("\n")[:-1]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"\n\nafter two empty lines", ["", "", "after two empty lines"]),
        (b"windows\r\nlines\r\n", ["windows", "lines"]),
        (b"10%\r20%\r100%\ndone\n", ["100%", "done"]),
        (b"a long line\rshort\n", ["shortg line"]),
        (b"a long line\r\x1b[Kshort\n", ["short"]),
        (b"a long line\x1b[2K\rshort\n", ["short"]),
        (b"12\b3\n", ["13"]),
        (b"\x1b[1;31mred\x1b[0m and \x1b[38;5;12mblue\x1b[0m\n", ["red and blue"]),
        (b"\x1b]0;a window title\x07text\n", ["text"]),
        (b"\x1b]8;;https://example.org\x1b\\a link\x1b]8;;\x1b\\\n", ["a link"]),
        (b"\x1b[?25lhidden cursor\x1b[?25h\n", ["hidden cursor"]),
        (b"first\nsecond\n\x1b[2A\rFIRST\n", ["first", "second", "FIRST"]),
        (b"tab\tstays\rT\n", ["Tab\tstays"]),
        (b"caf\xe9 \xff\r\xfe\n", ["\\xfeaf\\xe9 \\xff"]),
        ("bär\rBÄR\n".encode(), ["BÄR"]),
        (b"an unfinished escape\x1b[3", ["an unfinished escape"]),
        (b"\xc2\x9b31mC1 codes\n", ["31mC1 codes"]),
        (b"cleared\r       \rmessage in its place\nbar\rbar 2", ["message in its place", "bar 2"]),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_lines_are_those_that_a_terminal_shows(data: bytes, lines: list[str], size: int) -> None:
    assert shown(data, size) == lines


def test_a_bar_is_one_line_with_a_state_every_half_minute() -> None:
    clock = Clock()
    lines = TerminalLines(clock=clock)
    logged = []
    for number in range(101):
        clock.now += 1.0
        logged += lines.feed(f"\r{number:3}%|{'#' * (number // 10):10}| {number}/100 [it/s]".encode()).splitlines()
    logged += lines.feed(b"\nnext\n").splitlines()
    assert [int(line[:3]) for line in logged[:-1]] == [30, 60, 90, 100]
    assert logged[-1] == b"next"
    assert BAR_INTERVAL_S == 30.0


def test_a_bar_that_stands_still_is_logged_when_it_is_due() -> None:
    clock = Clock()
    lines = TerminalLines(clock=clock)
    assert lines.feed(b"\r10% it/s\r20% it/s") == b""
    clock.now = BAR_INTERVAL_S + 1
    assert lines.tick() == b"20% it/s\n"
    assert lines.tick() == lines.finish() == b""


def test_a_finished_bar_is_logged_within_a_second_even_if_nothing_follows() -> None:
    clock = Clock()
    lines = TerminalLines(clock=clock)
    assert lines.feed(b"\r10% it/s\r100% it/s\n") == b""
    clock.now = 1.5
    assert lines.tick() == b"100% it/s\n"


def test_bars_on_the_screen_can_be_read() -> None:
    lines = TerminalLines()
    lines.feed(b"plain\n\router 1/3\n\rinner 5/10\x1b[A")
    assert lines.live() == ["outer 1/3", "inner 5/10"]
    lines.feed(b"\x1b[2K\n\x1b[2Ka message without its en")
    assert lines.live() == []


NESTED = """
from tqdm import tqdm, trange
print("start", flush=True)
for epoch in trange(3, desc="Epoch", mininterval=0):
    for step in trange(500, desc="steps", leave=False, mininterval=0):
        if step == 250:
            tqdm.write(f"message {epoch}")
print("done")
"""
RICH = """
from rich.console import Console
from rich.progress import Progress
with Progress(console=Console(force_terminal=True, width=80), refresh_per_second=1000) as progress:
    tasks = [progress.add_task(name, total=300) for name in ("[red]first", "[green]second")]
    for number in range(300):
        for task in tasks:
            progress.update(task, advance=1, refresh=True)
print("done")
"""


def printed(program: str) -> bytes:
    return subprocess.run([sys.executable, "-c", program], capture_output=False, check=True, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout  # fmt: skip


@pytest.mark.parametrize("size", [7, 4096])
def test_nested_bars_of_tqdm_leave_their_messages_and_one_line(size: int) -> None:
    data = printed(NESTED)
    assert data.count(b"\r") > 1500
    *lines, bar, done = shown(data, size)
    assert lines == ["start", "message 0", "message 1", "message 2"]
    assert bar.startswith("Epoch: 100%|██████████| 3/3 [")
    assert done == "done"


def test_the_bars_of_rich_leave_a_line_each() -> None:
    data = printed(RICH)
    assert data.count(b"\x1b[") > 2000
    first, second, done = shown(data, 1000)
    assert [line.split()[0] for line in (first, second, done)] == ["first", "second", "done"]
    assert "100%" in first
    assert "100%" in second


CONTROL = [
    *(b"\r", b"\n", b"\b", b"\x1b", b"\x1b[A", b"\x1b[9B", b"\x1b[2K", b"\x1b[H", b"\x1b[J", b"\x1b[2J", b"\x1b[50G"),
    *(b"\x1b[99999999C", b"\x1b]0;", b"\x07", b"\x9b", b"\xc2", b"\xc2\x9b", b"\x1b[31m", b"\x00"),
]


@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from(CONTROL)), max_size=60), st.integers(1, 50))
def test_any_bytes_give_lines_without_escapes_and_never_an_error(pieces: list[bytes], size: int) -> None:
    lines = TerminalLines()
    out = b""
    data = b"".join(pieces)
    for start in range(0, len(data), size):
        out += lines.feed(data[start : start + size])
        lines.live()
    out += lines.tick() + lines.finish()
    assert out.endswith(b"\n") or not out
    assert not {b"\x1b", b"\r", b"\b"} & {bytes([byte]) for byte in out}


@given(st.binary(max_size=300), st.integers(1, 40))
def test_pieces_of_any_size_give_the_same_lines(data: bytes, size: int) -> None:
    clock = itertools.repeat(0.0).__next__
    whole, parts = TerminalLines(clock=clock), TerminalLines(clock=clock)
    expected = whole.feed(data) + whole.finish()
    found = b"".join(parts.feed(data[start : start + size]) for start in range(0, len(data), size)) + parts.finish()
    assert _without_trailing_spaces(found) == _without_trailing_spaces(expected)


def _without_trailing_spaces(text: bytes) -> list[bytes]:
    lines = text.decode("utf-8", "surrogateescape").split("\n")
    return [line.rstrip().encode("utf-8", "surrogateescape") for line in lines]


HOSTILE: list[Callable[[int], bytes]] = [
    lambda size: b"x" * size,
    lambda size: b"\rx" * (size // 2),
    lambda size: b"\x1b]" + b"x" * size,
    lambda size: b"\x1b[" * (size // 2),
    lambda size: b"\r" + b"y" * size,
    lambda size: b"\x1b[A\x1b[B\x1b[99999C." * (size // 15),
]


@pytest.mark.parametrize("make", HOSTILE)
def test_memory_is_bounded_whatever_is_printed(make: Callable[[int], bytes]) -> None:
    lines = TerminalLines()
    chunk = make(1 << 16)
    for _ in range(40):
        out = lines.feed(chunk)
        assert all(len(line) <= MAX_LINE_BYTES + len(chunk) for line in out.split(b"\n"))
    held = len(lines._partial) + len(lines._escape) + sum(len(row.text) + len(row.before) for row in lines._rows)
    assert held < 40 * 4 * MAX_LINE_BYTES
