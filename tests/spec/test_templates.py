"""What `headway init` writes works as it is, and works with its commented-out parts put in."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.run import SCRIPT, SCRIPT_TEMPLATES, templates
from headway.plugins import RECIPES
from headway.spec import Job, load
from tests.cli.conftest import Headway
from tests.cli.conftest import headway as headway

TEMPLATES = templates()


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    shutil.copy(SCRIPT_TEMPLATES / "train.py", tmp_path)
    return tmp_path


def test_there_is_a_template_for_every_recipe_and_for_a_script() -> None:
    assert set(TEMPLATES) == {*RECIPES, SCRIPT}
    assert all(load(TEMPLATES[name]).recipe == name for name in RECIPES)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_template_is_a_job(begun: Path, kind: str) -> None:
    shutil.copy(TEMPLATES[kind], begun / "headway.yaml")
    assert isinstance(Job.load(begun / "headway.yaml"), Job)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_what_a_template_has_commented_out_works_when_it_is_put_in(begun: Path, kind: str) -> None:
    text = (TEMPLATES[kind]).read_text()
    whole = re.sub(r"^# ( *[A-Za-z_]+:)", r"\1", text, flags=re.MULTILINE)
    assert whole.count("\n") == text.count("\n")
    (begun / "headway.yaml").write_text(whole)
    job = load(begun / "headway.yaml")
    assert job.budget.hours == 1
    assert job.resources.accelerator is not None


def test_every_setting_of_the_script_template_is_explained_or_plain() -> None:
    code = (SCRIPT_TEMPLATES / "train.py").read_text()
    settings = load_settings()
    assert all(f'"{name}": {value}' in code for name, value in settings.items()), "by hand and by headway: the same"


def load_settings() -> dict[str, object]:
    return dict(load(TEMPLATES[SCRIPT]).config)


@pytest.mark.torch
@pytest.mark.slow
def test_the_script_template_trains(begun: Path) -> None:
    script = begun / "train.py"
    script.write_text(script.read_text().replace('"epochs": 10', '"epochs": 1'))
    done = subprocess.run([sys.executable, "train.py"], cwd=begun, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_the_model_class_fits_the_script(headway: Headway) -> None:
    assert headway("init", "script").code == 0
    assert headway("init", "model").code == 0
    job = Path("headway.yaml")
    job.write_text(f"{job.read_text()}\nmodel: serving:Spirals\n")
    assert headway("run", "--set", "config.epochs=2").code == 0
    Path("points.csv").write_text("x,y,spiral\n0.9,0.1,first\n-0.8,-0.2,second\n0.5,0.5,first\n")
    scored = headway("eval", "last", "--data", "points.csv")
    assert scored.code == 0, scored.err
    assert "accuracy" in scored.out
    assert "to" in scored.out, "an interval"
