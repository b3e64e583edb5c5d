"""A run's lines: each once, in order, wherever they lie at the moment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.rundir.layout import SUPERVISOR, RunFolder, SegmentWriter
from headway.rundir.logs import tail
from headway.storage import open_store


class Printer:
    """Writes lines as a supervisor does: at once to the spool, later to a segment."""

    def __init__(self, folder: RunFolder, spool: Path, writer: str = "r0", attempt: int = 1) -> None:
        self.path = spool / f"a{attempt:04d}-{writer}.log"
        self.segments = SegmentWriter(folder.store, "logs", attempt, writer, "log")

    def say(self, text: str, at: int) -> None:
        line = f"2026-01-01T00:00:{at:09d}Z {text}"
        with self.path.open("a") as file:
            file.write(line + "\n")
        self.segments.add(line)


@pytest.fixture
def folder() -> RunFolder:
    return RunFolder(open_store(f"memory://{os.urandom(6).hex()}/run"))


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    return tmp_path / "spool"


def script(*acts: Callable[[], None]) -> tuple[Callable[[], bool], Callable[[float], None]]:
    """`over` and `sleep` for a follower: between two looks one act happens, and after the last the run has ended."""
    left = list(acts)

    def sleep(_: float) -> None:
        left.pop(0)()

    return (lambda: not left), sleep


def texts(lines: Iterator[object]) -> list[str]:
    return [line.text for line in lines]  # type: ignore[attr-defined]


def test_ranks_are_merged_by_time_and_attempts_follow_each_other(folder: RunFolder, spool: Path) -> None:
    zero, one, later = Printer(folder, spool), Printer(folder, spool, "r1"), Printer(folder, spool, attempt=2)
    zero.say("a", 1)
    one.say("b", 2)
    zero.say("c", 3)
    later.say("d", 0)  # a clock that was set back between attempts does not mix them
    assert texts(tail(folder, spool=spool, ended=None)) == ["a", "b", "c", "d"]
    assert texts(tail(folder, spool=spool, ended=None, rank=1)) == ["b"]


def test_the_supervisors_own_words_have_a_rank_of_their_own(folder: RunFolder, spool: Path) -> None:
    Printer(folder, spool, "s").say("restarting", 1)
    (line,) = tail(folder, spool=spool, ended=None)
    assert (line.rank, line.text) == (SUPERVISOR, "restarting")


def test_half_a_line_waits_for_its_other_half(folder: RunFolder, spool: Path) -> None:
    path = spool / "a0001-r0.log"
    path.write_bytes(b"T1 first\nT2 sec")
    seen: list[list[str]] = []
    lines: list[str] = []

    def rest() -> None:
        seen.append(list(lines))
        with path.open("ab") as file:
            file.write(b"ond\n")

    over, sleep = script(rest)
    for line in tail(folder, spool=spool, ended=over, sleep=sleep):
        lines.append(line.text)
    assert seen == [["first"]]
    assert lines == ["first", "second"]


def test_a_last_line_without_a_newline_is_not_lost(folder: RunFolder, spool: Path) -> None:
    (spool / "a0001-r0.log").write_bytes(b"T1 first\nT2 cut off")
    assert texts(tail(folder, spool=spool, ended=None)) == ["first", "cut off"]


def test_a_follower_that_came_before_the_first_line_sees_all(folder: RunFolder, spool: Path) -> None:
    printer = Printer(folder, spool)
    over, sleep = script(lambda: None, lambda: printer.say("a", 1), lambda: printer.say("b", 2))
    assert texts(tail(folder, spool=spool, ended=over, sleep=sleep)) == ["a", "b"]


def test_without_a_spool_the_segments_tell_it(folder: RunFolder, spool: Path) -> None:
    printer = Printer(folder, spool)
    over, sleep = script(
        lambda: printer.say("a", 1), printer.segments.flush, lambda: printer.say("b", 2), printer.segments.flush
    )
    assert texts(tail(folder, spool=None, ended=over, sleep=sleep)) == ["a", "b"]


@given(st.lists(st.sampled_from(["say", "flush", "look"]), max_size=30), st.integers(0, 30))
def test_no_line_is_lost_or_repeated_when_the_spool_goes(acts: list[str], gone_at: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        spool = Path(place)
        folder = RunFolder(open_store(f"memory://{os.urandom(6).hex()}/run"))
        printer, numbers, said = Printer(folder, spool), count(), []

        def say() -> None:
            number = next(numbers)
            said.append(str(number))
            printer.say(str(number), number)

        def go() -> None:
            printer.segments.flush()  # a spool is removed only when all of it is in the store
            printer.path.unlink(missing_ok=True)
            printer.path = Path(os.devnull)

        steps = {"say": say, "flush": printer.segments.flush, "look": lambda: None}
        played = [steps[act] for act in acts]
        played.insert(min(gone_at, len(played)), go)
        over, sleep = script(*played, printer.segments.flush)
        assert texts(tail(folder, spool=spool, ended=over, sleep=sleep)) == said


def test_a_bucket_is_not_listed_for_every_look_at_a_live_spool(folder: RunFolder, spool: Path) -> None:
    printer = Printer(folder, spool)
    printer.say("a", 1)
    listings = 0
    listing = folder.store.list

    def counted(prefix: str = "") -> object:
        nonlocal listings
        listings += 1
        return listing(prefix)

    folder.store.list = counted  # type: ignore[method-assign,assignment]
    over, sleep = script(*[lambda: printer.say("b", 2)] * 50)
    assert len(texts(tail(folder, spool=spool, ended=over, sleep=sleep))) == 51
    assert listings <= 2
