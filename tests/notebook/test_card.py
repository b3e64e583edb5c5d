"""A run in a notebook: an object that shows itself, whatever state its run is in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import headway
from headway.core.errors import UnknownRun
from headway.dashboard.notebook.run import OPEN_RUNS
from headway.rundir.layout import RunFolder, SegmentWriter
from headway.storage import open_store
from tests.cli.conftest import Headway


@pytest.fixture
def url(typed: Headway) -> str:
    """A run that printed and ended; its curves are written as a rank writes them."""
    Path("train.py").write_text("print('first words')\nprint('last words')\n")
    Path("headway.yaml").write_text("name: job\nscript: train.py\nbudget: {hours: 1}\n")
    assert typed("run", "--name", "night", "--json").code == 0
    folder = RunFolder(open_store("runs/night"))
    writer = SegmentWriter(folder.store, "metrics", 1)
    for step in range(1, 31):
        writer.add(json.dumps({"step": step, "epoch": 0, "time": 0.0, "loss": 3.0 / step, "<i>odd</i>": float("nan")}))
    writer.flush()
    folder.write_json("progress.json", {"step": 30, "steps": 40, "epoch": 9, "epochs": 9, "rate": 2.5})
    folder.write_json("report.json", {"metrics": {"accuracy": 0.875}})
    return folder.url


def test_a_run_is_read_without_its_target(url: str) -> None:
    run = headway.open_run("last")
    assert (run.name, run.url, run.target, run.state) == ("night", url, "local", "finished")
    assert run.progress["steps"] == 40
    assert run.curves()["loss"][-1] == (30, 0.1)
    assert run.metrics()[0]["loss"] == 3.0
    assert run.logs(rank=0) == ["first words", "last words"]
    assert run.logs(last=1, rank=0) == ["last words"]
    assert run.spent["budget_s"] == 3600
    assert repr(run) == f"<night: finished, step 30/40, {url}>"


def test_the_card_is_whole_and_needs_nothing_else(url: str) -> None:
    card = headway.open_run(url)._repr_html_()
    root = ElementTree.fromstring(card)
    assert [svg.get("aria-label") for svg in root.iter("svg")] == ["loss"], "a curve without numbers is not drawn"
    text = "".join(root.itertext())
    for said in ("night", "finished", "30 of 40", "9 of 9", "2.5", "of 1h00m", "accuracy", "0.875"):
        assert said in text
    for foreign in ("http", "<script", "src=", "@import", "url("):
        assert foreign not in card
    assert "<i>" not in card, "names are text, not markup"


def test_a_curve_grows_with_its_run(url: str) -> None:
    run = headway.open_run(url)
    before = run.curves()["loss"]
    writer = SegmentWriter(open_store(url), "metrics", 2)
    writer.add(json.dumps({"resume_step": 20}))
    writer.add(json.dumps({"step": 21, "loss": 0.5}))
    writer.flush()
    assert run.curves()["loss"] == [*before[:20], (21, 0.5)]


def test_by_default_it_is_the_run_that_the_notebook_was_opened_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPEN_RUNS, "nobody")
    with pytest.raises(UnknownRun, match="nobody"):
        headway.open_run()
    monkeypatch.setenv(OPEN_RUNS, url)
    assert headway.open_run().name == "night"


def test_opening_a_run_needs_neither_torch_nor_numpy(url: str) -> None:
    code = (
        f"import headway, sys; headway.open_run({url!r})._repr_html_();"
        "print(sorted({'torch', 'numpy'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
