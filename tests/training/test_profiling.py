"""A profile of the steps that were asked for, and of no others."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from headway.core.errors import BadInput
from headway.storage import open_store
from headway.training import Loader
from headway.training.run import Run
from tests.training.inside import Start, runs
from tests.training.training import Points


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    yield from runs(tmp_path, monkeypatch)


def train(run: Run) -> None:
    model = run.place(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    feed = Loader(Points(32), 4)
    run.restore(model=model, optimizer=optimizer, data=feed)
    for _ in run.epochs(1):
        for x, y in run.steps(feed):
            run.step(optimizer, loss_sum=((model(x).squeeze(-1) - y) ** 2).sum(), weight=len(x))
    run.finish()


def kept(run: Run) -> list[str]:
    return sorted(entry.key for entry in open_store(run.folder).list("profile/"))


def test_the_trace_of_the_steps_asked_for_is_kept_in_the_run_folder(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(config={"profile": "3-5"})
    train(run)
    assert kept(run) == ["profile/steps-3-5-r0.json.gz", "profile/steps-3-5-r0.txt"]
    trace = json.loads(gzip.decompress(open_store(run.folder).read(kept(run)[0])))
    passes = [event for event in trace["traceEvents"] if "SGD.step" in event.get("name", "")]
    assert len(passes) == 3
    assert "aten::addmm" in capsys.readouterr().err


def test_a_run_that_ends_before_the_window_does_keeps_what_there_is(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_PROFILE", "7-100")
    run = start()
    train(run)
    run._close()
    assert kept(run)[0] == "profile/steps-7-8-r0.json.gz"


def test_nothing_is_profiled_unless_it_is_asked_for(start: Start) -> None:
    run = start()
    train(run)
    assert kept(run) == []


@pytest.mark.parametrize("asked", ["0-3", "5-3", "all", "3-"])
def test_a_window_that_is_none_is_bad_input(start: Start, asked: str) -> None:
    with pytest.raises(BadInput, match="is not a range of steps"):
        start(config={"profile": asked})
