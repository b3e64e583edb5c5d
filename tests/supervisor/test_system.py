"""The machine and the speed beside the loss: measured, recorded, and said in words."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.rundir.layout import read_lines, segments
from headway.rundir.overview import describe_speed, describe_system
from headway.supervisor.system_stats import SystemMeter
from headway.training.step_times import DATA, StepTimes, rows
from tests.supervisor.supervised import Case, cases

Make = Callable[..., Case]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    yield from cases(tmp_path)


def test_a_machine_that_computes_shows_its_cores_and_memory() -> None:
    meter = SystemMeter()
    assert meter.sample() is None
    end = time.process_time() + 0.2
    while time.process_time() < end:
        sum(range(1000))
    found = meter.sample()
    assert found is not None
    assert found["cores"] > 0
    assert 0 < found["memory"] <= found["memory_total"]
    assert found["cpus"] >= 1


@pytest.mark.slow
def test_the_machine_is_recorded_in_the_run_folder_and_with_the_progress(make: Make) -> None:
    case = make("time.sleep(25)")
    assert case.run() == 0, case.explain()
    (sample, *_) = [
        json.loads(line)
        for each in segments(case.folder.store, "system")
        for line in read_lines(case.folder.store, each)
    ]
    assert sample["node"] == 0
    assert sample["memory_total"] > 0
    assert (case.folder.progress() or {})["system"]["0"]["cpus"] >= 1


def test_the_time_that_training_waits_for_its_data_is_counted() -> None:
    times = StepTimes()

    def slow() -> Iterator[list[int]]:
        for _ in range(3):
            time.sleep(0.02)
            yield [1, 2]

    for _ in times.timed(slow()):
        pass
    assert times.waited_s[DATA] >= 0.06
    assert rows([[1, 2, 3], [4]]) == 0
    with times.during("checkpoint", "checkpoint"):
        assert times.phase == "checkpoint"
    assert times.phase == "step"


@pytest.mark.torch
def test_the_rows_of_a_batch_are_counted_whatever_it_is_made_of() -> None:
    import torch

    batch = torch.ones(5, 2)
    assert [rows(each) for each in (batch, (batch, 1), {"x": [batch]}, "text", torch.tensor(1.0))] == [5, 5, 5, 0, 0]


def test_speed_its_price_and_what_holds_it_up_are_said_in_words() -> None:
    progress = {"rate": 12.34, "samples_s": 400.0, "waits": {"data": 0.62, "ranks": 0.1, "checkpoint": 0.0}}
    told = describe_speed(progress, 2.88)
    assert told.startswith("12.3 steps/s, 400 samples/s, $0.002 per thousand samples")
    assert told.endswith("62% of the time waits for data: more loader workers, or a faster store")
    assert describe_speed({}) == ""
    node = {"cores": 3.84, "cpus": 4, "memory": 5 * 10**9, "memory_total": 16 * 10**9, "disk_read": 2e8, "received": 10}
    assert describe_system({"system": {"0": node}}).startswith("3.8 of 4 CPUs, ")
    assert "node 1: " in describe_system({"system": {"0": node, "1": node}})
