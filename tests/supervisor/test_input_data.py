"""Input data that a program downloads beside its code is not taken for output, and no output is taken for input."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from headway.storage import Store, open_store
from headway.supervisor.input_data import FILL_S, WINDOW_S, InputData
from headway.supervisor.keep_rules import FileStat, is_checkpoint
from headway.supervisor.workdir import Workdir

NOW_NS = time.time_ns()


def folder(name: str, count: int = 300, size: int = 100_000, modified_ns: int = NOW_NS) -> dict[str, FileStat]:
    return {f"{name}/{number}.jpg": FileStat(size, modified_ns, number) for number in range(count)}


MODEL = {"out/model.pt": FileStat(1000, NOW_NS, 99)}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.rule = InputData(self.said.append, lambda: self.now)

    def held(self, at: float, found: dict[str, FileStat], **more: bool) -> set[str]:
        self.now = at
        return {name.partition("/")[0] for name in self.rule.held_back(found, (), **more)}


@pytest.fixture(name="clock")
def _clock() -> Clock:
    return Clock()


def test_a_data_set_of_the_first_minute_is_held_back_and_named(clock: Clock) -> None:
    data = folder("data")
    assert clock.held(30, data) == {"data"}
    assert clock.held(WINDOW_S + 30, {**data, **MODEL}) == {"data"}
    assert clock.said == [
        "not kept: data/ (300 files, 30.0 MB) looks like downloaded input data; "
        "keep: ['**'] in the job file keeps everything"
    ]
    assert clock.held(9000, {**data, **MODEL}, final=True, finished=True) == {"data"}
    assert [str(each) for each in clock.rule.left_out()] == [
        "data/ (300 files, 30.0 MB) looks like downloaded input data"
    ]


def test_a_data_set_that_takes_minutes_to_download_is_held_back(clock: Clock) -> None:
    for at in range(30, 600, 30):
        assert clock.held(at, folder("data", count=at)) == {"data"}
    assert clock.held(630, folder("data", count=570)) == {"data"}
    assert clock.rule.left_out()


@pytest.mark.parametrize(
    "found",
    [
        folder("data", count=3, size=10),  # small
        folder("results"),
        folder("processed"),
        folder("samples"),
        folder("cards"),  # nothing shows that it is data
        {**folder("data"), "data/model.pt": FileStat(1, NOW_NS, 1)},
        {**folder("data"), "data/checkpoint-5/state": FileStat(1, NOW_NS, 1)},
        {"big.pt": FileStat(10**9, NOW_NS, 1)},
        {"results.zip": FileStat(10**9, NOW_NS, 1)},
        {"predictions.csv": FileStat(10**9, NOW_NS, 1)},
    ],
)
def test_in_doubt_it_is_kept(clock: Clock, found: dict[str, FileStat]) -> None:
    clock.held(30, found)
    assert clock.held(WINDOW_S + 30, {**found, **MODEL}) == set()
    assert clock.held(WINDOW_S + 60, {**found, **MODEL}, final=True, finished=True) == set()
    assert clock.rule.left_out() == []


@pytest.mark.parametrize(
    "found",
    [
        folder("cards", modified_ns=NOW_NS - 10**16),  # unpacked, with the times in the archive
        {**folder("cards"), "cards/cards.tar.gz": FileStat(10**8, NOW_NS, 1)},
        folder("cifar-10-batches-py"),
        {"images.zip": FileStat(10**8, NOW_NS, 1)},
    ],
)
def test_what_was_unpacked_or_is_an_archive_is_data(clock: Clock, found: dict[str, FileStat]) -> None:
    clock.held(30, found)
    assert clock.held(WINDOW_S + 30, {**found, **MODEL})


def test_what_appears_later_is_output(clock: Clock) -> None:
    clock.held(30, {})
    assert clock.held(WINDOW_S + 30, folder("data")) == set()


def test_what_is_still_growing_after_a_quarter_of_an_hour_is_output(clock: Clock) -> None:
    clock.held(30, folder("data"))
    assert clock.held(FILL_S + 30, folder("data", count=301)) == set()


def test_data_that_is_changed_later_is_output_after_all(clock: Clock) -> None:
    clock.held(30, folder("data"))
    assert clock.held(WINDOW_S + 30, folder("data")) == {"data"}
    assert clock.held(WINDOW_S + 60, {**folder("data"), "data/labels.json": FileStat(5, NOW_NS, 1)}) == set()
    assert "data/ has changed since" in clock.said[-1]


def test_what_a_finished_program_has_made_besides_nothing_else_is_output(clock: Clock) -> None:
    """A program that prepares data ends with the data."""
    clock.held(30, folder("data"))
    found = {**folder("data"), "prepare.log": FileStat(5, NOW_NS, 1)}
    assert clock.held(60, found, final=True, finished=True) == set()
    assert clock.rule.left_out() == []


@pytest.mark.parametrize(
    "name",
    [
        "a.pt",
        "x/b.safetensors",
        "checkpoint-500/rng",
        "ckpt-1.data-00000-of-00001",
        "model_best",
        "out/last",
        "w/weights",
    ],
)
def test_checkpoints_are_known_by_their_names(name: str) -> None:
    assert is_checkpoint(name)


def test_a_program_that_unpacks_its_data_and_trains_keeps_its_model_alone(tmp_path: Path) -> None:
    store: Store = open_store(str(tmp_path / "run"))
    root, said = tmp_path / "code", list[str]()
    root.mkdir()
    workdir = Workdir(root, store, state_dir=tmp_path, log=said.append)
    workdir.prepare(fresh=False, last_attempt=0)
    (root / "data").mkdir()
    for number in range(300):
        (root / "data" / f"{number}.png").write_bytes(b"x")
    (root / "model.pt").write_bytes(b"w")
    workdir.sync()
    workdir.sync()
    workdir.finished = True
    workdir.sync(final=True)
    assert [entry.key for entry in store.list("files/")] == ["files/workdir/model.pt"]
    named = "data/ (300 files, 300 B) looks like downloaded input data; keep: ['**'] in the job file keeps everything"
    assert [str(each) for each in workdir.left_out] == [named]
    asked = Workdir(root, store, state_dir=tmp_path, keep=("**",), log=said.append)
    asked.prepare(fresh=False, last_attempt=1)
    asked.sync(final=True)
    assert len(list(store.list("files/workdir/data/"))) == 300
    assert os.path.exists(root / "data/0.png")
