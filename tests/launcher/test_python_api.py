"""Everything that the command line does with a run, from Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import headway
from headway.core.errors import BadInput, BadJob, RunBusy, UnknownRun
from headway.core.types import State
from headway.testing.counting import COUNT, count_to, counted, write_counting
from headway.testing.waiting import wait_until


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    folder = write_counting(tmp_path / "project")
    job = {"name": "count", "script": COUNT, "args": ["8", "0.01", "4"], "outputs": str(tmp_path / "runs")}
    (folder / "headway.yaml").write_text(json.dumps(job))
    return folder


def test_a_run_is_started_stopped_resumed_and_read(project: Path, tmp_path: Path) -> None:
    run = headway.run(project / "headway.yaml", name="first")
    wait_until(lambda: len(counted(run)) == 4, "it counts, and waits at the fourth step")
    assert run.status().state is State.RUNNING
    with pytest.raises(RunBusy):
        run.resume()
    stopped = run.stop("enough for today")
    assert (stopped.status.state, stopped.exit_code) == (State.STOPPED, 4)
    again = run.resume()
    lines: list[str] = []
    ended = again.wait(lambda line: lines.append(line.text))
    assert (ended.status.state, ended.exit_code) == (State.FINISHED, 0)
    assert counted(again) == count_to(8)
    assert lines[-1].startswith(("digest", "kept")) or count_to(8)[-1] in lines

    same = headway.open_run("first").handle
    assert same.status().state is State.FINISHED
    assert [line.text for line in same.logs(rank=0)] == [line.text for line in again.logs(rank=0)]
    copy = same.pull(tmp_path / "copy", only=["events"])
    assert {path.name for path in copy.iterdir()} == {"events"}
    with pytest.raises(BadInput, match="own folder"):
        same.pull(same.url)
    with pytest.raises(UnknownRun, match="no files to copy"):
        same.pull(tmp_path / "none", only=["no-such-part"])


def test_metrics_are_rows_or_a_data_frame(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "prints.py").write_text("for step in range(1, 4): print(f'step {step} loss={1 / step:.3f}')\n")
    job = headway.Job.load(project / "headway.yaml", set=["script=prints.py", "args=[]"])
    run = headway.run(job)
    assert run.wait().status.state is State.FINISHED
    monkeypatch.setattr("headway.launcher.lifecycle.find_spec", lambda name: None)
    rows = run.metrics()
    assert [row["loss"] for row in rows] == [1.0, 0.5, 0.333]
    made: list[Any] = []
    pandas = ModuleType("pandas")
    pandas.DataFrame = made.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    monkeypatch.setattr("headway.launcher.lifecycle.find_spec", lambda name: object())
    run.metrics()
    assert made == [rows]


def test_what_would_prevent_the_run_is_raised_before_anything_starts(project: Path, tmp_path: Path) -> None:
    with pytest.raises(BadJob, match="config"):
        headway.run(project / "headway.yaml", set=["confg.lr=1"])
    with pytest.raises(BadInput, match="no target is called"):
        headway.run(project / "headway.yaml", on="lcal")
    with pytest.raises(TypeError, match=r"Job\.load"):
        headway.run(headway.Job.load(project / "headway.yaml"), set=["seed=1"])
    assert not (tmp_path / "runs").exists()
