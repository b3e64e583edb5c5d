"""The promises of a tracker: a tracker's tests inherit `TrackerContract` and say how to open and read it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from headway.storage import open_store
from headway.training.metrics.logger import MetricsBuffer
from headway.training.metrics.trackers.base import TrackerRunInfo
from headway.training.metrics.trackers.worker import TrackerWorker, open_tracker

Series = dict[str, list[tuple[int, float]]]  # name -> (step, value), by step


class TrackerContract(ABC):
    """Subclasses give `name`, as in the job file's `log_to`, and `read`."""

    name: str

    @abstractmethod
    def read(self, run_info: TrackerRunInfo) -> Series:
        """Return what the tracker has recorded of a run, as its own tools read it."""

    @pytest.fixture
    def run_info(self, tmp_path: Path) -> TrackerRunInfo:
        return TrackerRunInfo(
            run="night",
            id="night-abcdef12",
            project="line",
            url=str(tmp_path / "run"),
            folder=str(tmp_path / "files"),
            attempt=1,
            resume_step=0,
            config={"lr": 0.1, "model": {"width": 8}},
            facts={"code_sha256": "c0de", "image": None, "seed": 7},
            pid=os.getpid(),
        )

    def write(self, run_info: TrackerRunInfo, values: Mapping[int, Mapping[str, float]], *, finished: bool) -> None:
        """Send the values of some steps as the tracker's process does: what it knows already is left out."""
        worker = TrackerWorker(open_tracker(self.name, run_info), lambda: None)
        worker.send({"step": step, "time": float(step), **each} for step, each in sorted(values.items()))
        worker.close(finished=finished)

    def test_every_value_arrives_at_its_step(self, run_info: TrackerRunInfo) -> None:
        self.write(run_info, {step: {"loss": 1.0 / step, "lr": 0.5} for step in range(1, 6)}, finished=True)
        assert _rounded(self.read(run_info)) == {
            "loss": [(step, round(1 / step, 5)) for step in range(1, 6)],
            "lr": [(step, 0.5) for step in range(1, 6)],
        }

    def test_a_name_that_only_some_steps_have_is_recorded_at_those(self, run_info: TrackerRunInfo) -> None:
        self.write(run_info, {1: {"loss": 3.0}, 2: {"loss": 2.0, "accuracy": 0.5}, 3: {"loss": 1.0}}, finished=True)
        assert _rounded(self.read(run_info))["accuracy"] == [(2, 0.5)]

    def test_it_says_where_its_record_is(self, run_info: TrackerRunInfo) -> None:
        tracker = open_tracker(self.name, run_info)
        tracker.close(finished=False)
        assert isinstance(tracker.where, str)
        assert tracker.where

    def test_a_resumed_attempt_adds_its_steps_and_repeats_none(self, run_info: TrackerRunInfo) -> None:
        history: dict[int, Mapping[str, float]] = {step: {"loss": 1.0 / step} for step in range(1, 4)}
        # The last step of an attempt that does not finish may be incomplete: it is kept back.
        self.write(run_info, {**history, 4: {"loss": 9.0}}, finished=False)
        more: dict[int, Mapping[str, float]] = {step: {"loss": 1.0 / step} for step in range(4, 7)}
        second = replace(run_info, attempt=2, resume_step=3, pid=os.getpid())
        self.write(second, {**history, **more}, finished=True)
        assert _rounded(self.read(second)) == {"loss": [(step, round(1 / step, 5)) for step in range(1, 7)]}

    def test_an_attempt_that_was_killed_without_a_close_is_continued(self, run_info: TrackerRunInfo) -> None:
        """The process is killed after a flush: whatever that leaves behind, the next attempt records each step once."""
        store = open_store(run_info.url)
        metrics = MetricsBuffer(store, 1, 0, on_flushed=lambda records: None)
        for step in range(1, 6):
            metrics.log(step, 0, {"loss": 1.0 / step})
        metrics.flush()
        script = (
            "import json, os, sys\n"
            "from headway.training.metrics.trackers.base import TrackerRunInfo\n"
            "from headway.training.metrics.trackers.worker import TrackerWorker, open_tracker, unsent_records\n"
            "info = TrackerRunInfo(**json.loads(sys.argv[2]))\n"
            "worker = TrackerWorker(open_tracker(sys.argv[1], info), lambda: None)\n"
            "worker.send(unsent_records(info))\n"
            "os.kill(os.getpid(), 9)\n"
        )
        subprocess.run([sys.executable, "-c", script, self.name, json.dumps(asdict(run_info))], check=False)
        history: dict[int, Mapping[str, float]] = {step: {"loss": 1.0 / step} for step in range(1, 6)}
        second = replace(run_info, attempt=2, resume_step=5)
        self.write(second, history, finished=True)
        assert _rounded(self.read(second))["loss"] == [(step, round(1 / step, 5)) for step in range(1, 6)]

    def test_values_that_are_no_numbers_and_odd_names_do_not_stop_it(self, run_info: TrackerRunInfo) -> None:
        odd = {"loss": math.nan, "peak": math.inf, "val/top 5": 0.25, "größe": 2.0}
        self.write(run_info, {1: odd, 2: {"loss": 0.5}}, finished=True)
        assert (2, 0.5) in self.read(run_info)["loss"]

    def test_knows_is_true_of_nothing_in_a_new_run(self, run_info: TrackerRunInfo) -> None:
        tracker = open_tracker(self.name, run_info)
        assert not tracker.knows("loss", 1)
        tracker.close(finished=False)


def _rounded(series: Series) -> Series:
    return {name: [(step, round(value, 5)) for step, value in points] for name, points in series.items()}
