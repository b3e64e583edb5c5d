"""Things that grow are kept in numbered segments, each written once and whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.errors import StoreError, Transient
from headway.rundir.layout import SUPERVISOR, RunFolder, SegmentWriter, read_lines, segment_interval_s, segments
from headway.storage import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "run"))


class Failing:
    """A store whose next writes fail: before they happen, or after, with the answer lost."""

    def __init__(self, store: Store, *, before: int = 0, after: int = 0) -> None:
        self._store, self.before, self.after, self.url = store, before, after, store.url
        self.read, self.stat, self.list, self.delete = store.read, store.stat, store.list, store.delete

    def write(self, key, body, *, when=None):  # type: ignore[no-untyped-def]
        if self.before:
            self.before -= 1
            raise Transient("busy")
        version = self._store.write(key, body, when=when)
        if self.after:
            self.after -= 1
            raise Transient("the answer was lost")
        return version


def everything(store: Store, folder: str) -> list[str]:
    return [line for segment in segments(store, folder) for line in read_lines(store, segment)]


def test_lines_come_back_in_order_over_segments_and_attempts(store: Store) -> None:
    for attempt in (1, 2, 11):
        writer = SegmentWriter(store, "events", attempt)
        for number in range(12):
            writer.add(f"{attempt} {number}")
            writer.flush()
    assert everything(store, "events") == [f"{a} {n}" for a in (1, 2, 11) for n in range(12)]


def test_flushing_nothing_writes_nothing(store: Store) -> None:
    SegmentWriter(store, "events", 1).flush()
    assert segments(store, "events") == []


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_failed_flush_loses_and_doubles_nothing(store: Store, fault: str) -> None:
    writer = SegmentWriter(Failing(store, **{fault: 2}), "metrics", 1)
    writer.add("one")
    with pytest.raises(Transient):
        writer.flush()
    writer.add("two")
    while writer.pending:
        try:
            writer.flush()
        except Transient:
            continue
    assert everything(store, "metrics") == ["one", "two"]


def test_a_second_writer_of_the_same_attempt_is_an_error(store: Store) -> None:
    for text, outcome in (("mine", None), ("yours", StoreError)):
        writer = SegmentWriter(store, "events", 1)
        writer.add(text)
        if outcome:
            with pytest.raises(outcome, match="another process"):
                writer.flush()
        else:
            writer.flush()


def test_a_long_run_has_hundreds_of_segments_not_thousands() -> None:
    age, written = 0.0, 0
    while age < 24 * 3600:
        age += segment_interval_s(age)
        written += 1
    assert segment_interval_s(0) == 2
    assert written < 2000


def test_metrics_of_a_repeated_stretch_replace_the_earlier_ones(store: Store) -> None:
    for attempt, records in {
        1: ['{"resume_step": 0}', '{"step": 1, "loss": 5}', '{"step": 2, "loss": 4}', '{"step": 3, "loss": 99}'],
        2: ['{"resume_step": 2}', '{"step": 3, "loss": 3}'],
        3: ['{"resume_step": 3}'],
    }.items():
        writer = SegmentWriter(store, "metrics", attempt)
        for record in records:
            writer.add(record)
        writer.flush()
    history = RunFolder(store).metrics()
    assert [(record["step"], record["loss"]) for record in history] == [(1, 5), (2, 4), (3, 3)]


def test_a_checkpoint_that_came_late_brings_the_metrics_of_its_own_attempt_along(store: Store) -> None:
    """Attempt 2 did not see attempt 1's commit of step 3, and got to step 2; attempt 3 sees it and goes on from it."""
    for attempt, records in {
        1: ['{"resume_step": 0}', '{"step": 1, "loss": 5}', '{"step": 2, "loss": 4}', '{"step": 3, "loss": 3}'],
        2: ['{"resume_step": 1, "resume_attempt": 1}', '{"step": 2, "loss": 4.5}'],
        3: ['{"resume_step": 3, "resume_attempt": 1}', '{"step": 4, "loss": 2}'],
    }.items():
        writer = SegmentWriter(store, "metrics", attempt)
        for record in records:
            writer.add(record)
        writer.flush()
    assert [(one["step"], one["loss"]) for one in RunFolder(store).metrics()] == [(1, 5), (2, 4), (3, 3), (4, 2)]


def test_a_step_whose_numbers_came_in_pieces_has_one_record(store: Store) -> None:
    """The loss is written while an evaluation runs; a kill after the score has it scored again."""
    for attempt, records in {
        1: ['{"resume_step": 0}', '{"step": 1, "loss": 5}', '{"step": 1, "bleu": 0.2}', '{"step": 2, "loss": 4}'],
        2: ['{"resume_step": 1}', '{"step": 1, "bleu": 0.2}', '{"step": 2, "loss": 4}'],
    }.items():
        writer = SegmentWriter(store, "metrics", attempt)
        for record in records:
            writer.add(record)
            writer.flush()
    assert RunFolder(store).metrics() == [{"step": 1, "loss": 5, "bleu": 0.2}, {"step": 2, "loss": 4}]


def test_logs_of_all_ranks_are_merged_by_time(store: Store) -> None:
    for writer_name, stamps in {"r0": "13", "r1": "24", "s": "05"}.items():
        writer = SegmentWriter(store, "logs", 1, writer_name, "log")
        for stamp in stamps:
            writer.add(f"2026-01-01T00:00:0{stamp}.000Z line {stamp}")
        writer.flush()
    folder = RunFolder(store)
    assert [line.text for line in folder.log_lines()] == [f"line {n}" for n in range(6)]
    assert [line.text for line in folder.log_lines(rank=1)] == ["line 2", "line 4"]
    assert [line.text for line in folder.log_lines(rank=SUPERVISOR)] == ["line 0", "line 5"]


def test_the_newest_attempt_alone_says_how_a_run_ended(store: Store) -> None:
    folder = RunFolder(store)
    assert folder.ended() is None
    for attempt, records in {1: ['{"kind": "ended", "state": "stopped"}'], 2: ['{"kind": "attempt"}']}.items():
        writer = SegmentWriter(store, "events", attempt)
        writer.add(records[0])
        writer.flush()
        ended = folder.ended()
        assert (ended and ended["state"]) == ("stopped" if attempt == 1 else None)
