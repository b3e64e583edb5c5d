"""A recipe and a tracker from a package of their own: an entry point each, and no module of Headway is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.packages import install

pytestmark = [pytest.mark.torch, pytest.mark.slow]

RECIPE = """\
from headway.plugins import Recipe

HOME = "added_headway.line"
RECIPE = Recipe(
    name="line", summary="fit a line", config="added_headway.config:Config", train=f"{HOME}:train",
    rebuild=f"{HOME}:rebuild", bundle=f"{HOME}:bundle", evaluate=f"{HOME}:evaluate", predictor=f"{HOME}:predictor",
    data_default="",
)
"""
CONFIG = """\
from dataclasses import dataclass
from typing import Annotated

@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    epochs: Annotated[int, ">= 1"] = 3  # passes over the data
    lr: Annotated[float, "> 0"] = 0.1
"""
LINE = """\
import torch

def train(run, config):
    model = run.place(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
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
        self.where = f"https://example.org/{run_info.project}"
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
JOB = "name: fit\nrecipe: line\nconfig: {epochs: 2}\nlog_to: [lines]\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the package as pip installs it, and a job file."""
    folder = tmp_path_factory.mktemp("added")
    modules = {"__init__": "", "config": CONFIG, "line": LINE, "tracker": TRACKER, "recipe": RECIPE}
    entry_points = {
        "recipes": {"line": "added_headway.recipe:RECIPE"},
        "trackers": {"lines": "added_headway.tracker:Lines"},
    }
    files = {f"added_headway.{name}": text for name, text in modules.items()}
    install(folder / "site", "headway-added", files, entry_points)
    (folder / "site" / "added_headway" / "template.yaml").write_text(JOB)
    (folder / "headway.yaml").write_text(JOB)
    return folder


def headway(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(project / "site"), "HEADWAY_HOME": str(project / "home")}
    command = [sys.executable, "-m", "headway", *arguments]
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=300)


def test_both_are_planned_checked_and_run(project: Path) -> None:
    planned = headway(project, "plan")
    assert "recipe line" in planned.stdout, planned.stderr
    ran = headway(project, "run", "--yes", "--name", "first")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    status = json.loads(headway(project, "status", "first", "--json").stdout)
    assert status["state"] == "finished"
    (lines,) = (project / "runs").glob("first/files/**/lines.txt")
    assert lines.read_text().startswith("1 ['epoch', 'loss'")
    assert "https://example.org/fit" in headway(project, "status", "first").stdout


def test_init_writes_its_template(project: Path) -> None:
    begun = headway(project, "init", "line", "--to", "begun")
    assert begun.returncode == 0, begun.stderr
    assert (project / "begun" / "headway.yaml").read_text() == JOB


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("config: {epochs: 0}", "config.epochs must be at least 1, not 0"),
        ("log_to: [line]", "'lines' or 'mlflow' or 'tensorboard' or 'wandb' or a class as MODULE:CLASS"),
        ("recipe: lin", "did you mean line"),
    ],
)
def test_a_job_file_is_checked_by_their_entries(project: Path, line: str, said: str) -> None:
    text = "name: fit\n" + ("" if line.startswith("recipe") else "recipe: line\n") + line + "\n"
    (project / "wrong.yaml").write_text(text)
    refused = headway(project, "plan", "-f", "wrong.yaml")
    assert refused.returncode == 2
    assert said in refused.stdout + refused.stderr
