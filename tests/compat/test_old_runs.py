"""Old runs on this machine: today's Headway sees, stops, resumes, evaluates and exports them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.compat.old_headway import TRAINS, Project, resumed, stopped
from tests.contract.counting import COUNT, count_to, write_counting
from tests.waiting import wait_until

pytestmark = TRAINS


def test_a_run_that_the_old_version_stopped_goes_on_to_the_bit(project: Project, straight: dict[str, str]) -> None:
    project.begin("a")
    stopped(project, "a", by=project.old)
    resumed(project, "a", straight)
    assert "resuming from step" in project.new("logs", "a")
    assert "bleu" in project.new("eval", "a")
    project.new("export", "a", "--to", str(project.folder / "bundle"))
    assert (project.folder / "bundle" / "bundle.json").exists()
    project.new("down", "a")


def test_a_live_run_is_seen_and_stopped(project: Project, straight: dict[str, str]) -> None:
    project.begin("b")
    assert project.status("b")["state"] == "running"
    assert "running" in project.new("ps")
    stopped(project, "b", by=project.new)
    resumed(project, "b", straight)


def test_a_live_run_is_taken_down(project: Project, straight: dict[str, str]) -> None:
    project.begin("c")
    assert "nothing is left" in project.new("down", "c")
    assert project.status("c")["state"] == "stopped"
    resumed(project, "c", straight)


def test_a_run_whose_supervisor_was_killed_goes_on_to_the_bit(project: Project, straight: dict[str, str]) -> None:
    project.begin("d")
    os.kill((project.run_folder("d").read_json("intent.json") or {})["details"]["pid"], signal.SIGKILL)
    assert project.status("d")["state"] == "lost"
    resumed(project, "d", straight)


def test_a_script_of_an_older_plan_is_judged_by_its_recorded_code(
    tmp_path: Path, old_src: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    job = {"recipe": None, "script": COUNT, "args": ["8", "0.01", "4"], "config": None, "data": None}
    project = Project(folder=write_counting(tmp_path / "project"), old_src=old_src, job=job).write()
    project.old("run", "--name", "e", "--detach")
    wait_until(lambda: "counted 4" in project.new("logs", "e"), "it counts")
    project.old("stop", "e")
    said = project.new("resume", "e")
    words = "its files are restored; whether it continues from them is up to the program"
    assert said.count(words) == 2, said  # by the client, and by the supervisor
    printed = [line.partition("counted ")[2] for line in project.new("logs", "e").splitlines() if "counted " in line]
    assert printed == [line.removeprefix("counted ") for line in count_to(8)[:-1]]
