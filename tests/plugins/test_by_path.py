"""A project names classes of its own by path, without packaging them, and later verbs find them again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.plugins.test_registry import CONFIG, TARGET, Ran, headway

RECIPE = """\
from headway.plugins import Recipe

RECIPE = Recipe(
    name="line", summary="fit a line", config="mine.config:Config", train="mine.line:train",
    rebuild="mine.line:rebuild", bundle="mine.line:bundle", evaluate="mine.line:evaluate",
    predictor="mine.line:predictor", data_default="",
)
"""
LINE = """\
import torch

def train(run, config):
    model = run.place(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 16).reshape(-1, 1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 2 * x + 1), batch_size=8)
    run.restore(model=model, optimizer=optimizer, data=data)
    for _ in run.epochs(config.epochs):
        for x, y in run.steps(data):
            loss = torch.nn.functional.mse_loss(model(x), y)
            run.step(loss, optimizer)
            run.log(loss=loss)
    run.finish()
"""
TRACKER = """\
class Lines:
    def __init__(self, run_info):
        self.where = "lines.txt"
        self._file = open(f"{run_info.folder}/lines.txt", "a")

    def knows(self, name, step):
        return False

    def log(self, step, time_s, values):
        self._file.write(f"{step} {sorted(values)}\\n")

    def flush(self):
        self._file.flush()

    def close(self, *, finished):
        self._file.close()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    modules = {"__init__": "", "recipe": RECIPE, "config": CONFIG, "line": LINE, "tracker": TRACKER, "target": TARGET}
    (folder / "mine").mkdir(parents=True)
    for name, text in modules.items():
        (folder / "mine" / f"{name}.py").write_text(text)
    (folder / "train.py").write_text("print('trained')\n")
    return folder


def write_job(project: Path, text: str) -> None:
    (project / "headway.yaml").write_text(text)


def test_a_target_by_path_runs_and_later_verbs_find_it_from_anywhere(project: Path, tmp_path: Path) -> None:
    write_job(project, "name: job\nscript: train.py\ntargets: {quiet: {kind: 'mine.target:Desk', niceness: 5}}\n")
    ran = headway(project, "run", "--on", "quiet", "--yes", "--name", "first")
    assert ran.code == 0, ran.text
    assert "trained" in ran.text
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "home").symlink_to(project / "home")
    status = headway(elsewhere, "status", "first", "--json")
    assert status.code == 0, status.text
    assert json.loads(status.out)["state"] == "finished"
    assert headway(elsewhere, "down", "first").code == 0


def test_a_run_of_somebody_else_does_not_have_its_code_imported(project: Path, tmp_path: Path) -> None:
    write_job(project, "name: job\nscript: train.py\ntargets: {quiet: {kind: 'mine.target:Desk'}}\n")
    assert headway(project, "run", "--on", "quiet", "--yes", "--name", "first").code == 0
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    asked = headway(stranger, "stop", str(project / "runs" / "first"), site=project)
    assert asked.code == 2, asked.text
    assert "mine.target:Desk is a class of a project that this machine has not used" in asked.text


@pytest.mark.torch
@pytest.mark.slow
def test_a_recipe_and_a_tracker_by_path_train_where_the_code_is_sent(project: Path) -> None:
    write_job(project, "name: fit\nrecipe: mine.recipe:RECIPE\nlog_to: ['mine.tracker:Lines']\nconfig: {epochs: 2}\n")
    planned = headway(project, "plan")
    assert "from the project" in planned.text, planned.text
    ran = headway(project, "run", "--yes", "--name", "first")
    assert ran.code == 0, ran.text
    (lines,) = (project / "runs").glob("first/files/**/lines.txt")
    assert lines.read_text().startswith("1 ['epoch', 'loss'"), ran.text


@pytest.mark.parametrize(
    ("module", "said"),
    [("mine.recipe:RECIPES", "has no attribute 'RECIPES'"), ("mine.tracker:Lines", "must be a headway.plugins.Recipe")],
)
def test_a_path_that_leads_nowhere_is_reported_at_its_place(project: Path, module: str, said: str) -> None:
    write_job(project, f"name: fit\nrecipe: {module}\n")
    ran: Ran = headway(project, "plan")
    assert ran.code == 2, ran.text
    assert "headway.yaml:2:9" in ran.text
    assert said in ran.text


def test_code_outside_the_project_cannot_be_sent(project: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(TRACKER)
    write_job(project, "name: job\nscript: train.py\nlog_to: ['outside:Lines']\ntargets: {a: {kind: ssh, host: b}}\n")
    ran = headway(project, "plan", "--on", "a", site=Path(f"{tmp_path}{os.pathsep}{project}"))
    assert ran.code == 2
    assert "only files below it are sent" in ran.text
