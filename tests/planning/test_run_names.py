"""What a plan tells its reader, and where it writes it, changes neither the run's name nor the code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway import cli
from headway.planning import plan
from headway.spec import Job


def test_a_runs_name_does_not_change_with_the_notes_of_its_plan(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    made = plan(Job(name="own", script="train.py", outputs=str(tmp_path / "runs"), root=str(tmp_path)), on="local")
    assert replace(made, notes=("another note",)).name_hash == made.name_hash
    assert replace(made, nodes=2).name_hash != made.name_hash


def test_a_rendered_folder_inside_the_project_is_not_sent_as_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "headway.yaml").write_text("name: own\nscript: train.py\noutputs: runs\n")
    monkeypatch.chdir(tmp_path)
    before = plan(Job.load("headway.yaml"), on="local").code
    assert cli.main(["plan", "--render", "out"]) == 0
    assert [path for path in (tmp_path / "out").iterdir() if path.name != ".headwayignore"]
    assert plan(Job.load("headway.yaml"), on="local").code == before


def test_down_of_an_ended_run_does_not_claim_to_remove_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "headway.yaml").write_text("name: own\nscript: train.py\noutputs: runs\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "--name", "one"]) == 0
    capsys.readouterr()
    assert cli.main(["down", "runs/one"]) == 0
    assert "removed nothing (already gone)" in capsys.readouterr().out
