"""Each plug-in keeps the promises of its kind: the tests are those of `headway.testing`."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from headway import targets
from headway.storage import open_store
from headway.testing import (
    LocalTargetContract,
    ProviderContract,
    ReaderContract,
    RecipeContract,
    StoreContract,
    TrackerContract,
)
from headway.testing.targets import WAITS


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def reopen(self, tmp_path):
        return lambda: open_store(f"sqlite://{tmp_path}/runs.db/folder")


class TestCsvFile(TrackerContract):
    name = "csv"

    def read(self, run_info):
        series = {}
        with open(Path(run_info.folder, "metrics.csv"), newline="") as file:
            for step, name, value in csv.reader(file):
                series.setdefault(name, []).append((int(step), float(value)))
        return series


class TestJsonLines(ReaderContract):
    name = "jsonlines"

    def write_sample(self, folder):
        pairs = [{"source": f"{n} dogs", "target": f"{n} Hunde"} for n in range(40)]
        (folder / "train.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        return len(pairs)


class TestLine(RecipeContract):
    name = "line"

    def config(self):
        return {"epochs": 4, "points": 256}

    def inputs(self):
        return ["0.5", "0"]


class TestGarage(ProviderContract):
    name = "garage"

    def machine(self):
        return {"type": "big"}


class TestNice(LocalTargetContract):
    kind = "nice"

    @pytest.fixture
    def target(self):
        return targets.build("nice", {})

    def test_its_ranks_run_at_the_niceness_of_its_option(self, start):
        hold = self.running(start(WAITS))
        assert {os.getpriority(os.PRIO_PROCESS, each.pid) for each in self.processes(hold)} == {10}
