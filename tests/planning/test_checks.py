"""What reading alone finds: arguments the script would refuse, placeholders, an image for another processor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headway.core.errors import BadJob
from headway.planning import plan
from headway.planning.build import problems
from headway.spec import Data, Job, Resources, Source

SCRIPT = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("-b", "--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float)
parser.add_argument("--model", choices=["small", "large"], default="small")
parser.add_argument("--amp", action="store_true")
parser.add_argument("--compile", action=argparse.BooleanOptionalAction)
parser.parse_args()
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def job_with(tmp_path: Path, *args: str, script: str = SCRIPT, **more: object) -> Job:
    (tmp_path / "train.py").write_text(script)
    return Job(name="j", script="train.py", root=str(tmp_path), args=args, **more)  # type: ignore[arg-type]


ACCEPTED = [
    ("--data", "x"),
    ("--data=x", "--batch-size", "64", "--lr", "1e-3"),
    ("--data", "x", "-b", "8", "--model", "large", "--amp"),
    ("--data", "x", "-b8", "--lr=-0.5"),
    ("--dat", "x", "--no-compile"),
    ("--data", "x", "--compile"),
]
REFUSED = [
    (("--data", "x", "--batchsize", "64"), "takes no argument --batchsize", "--batch-size"),
    ((), "needs the argument --data", "--data"),
    (("--data", "x", "--model", "medium"), "cannot be medium", "small, large"),
    (("--data", "x", "--batch-size", "many"), "whole number", "--batch-size"),
    (("--data", "x", "--lr", "fast"), "a number", "--lr"),
    (("--data", "--amp"), "--data of train.py needs a value", "--data VALUE"),
]


@pytest.mark.parametrize("args", ACCEPTED)
def test_arguments_that_the_script_takes_are_no_problem(tmp_path: Path, args: tuple[str, ...]) -> None:
    job = job_with(tmp_path, *args)
    assert problems(job, {}) == []
    done = subprocess.run([sys.executable, tmp_path / "train.py", *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("args", "what", "fix"), REFUSED)
def test_arguments_that_the_script_would_refuse_are_found_without_running_it(
    tmp_path: Path, args: tuple[str, ...], what: str, fix: str
) -> None:
    (found,) = problems(job_with(tmp_path, *args), {})
    assert what in found.what
    assert fix in found.fix
    done = subprocess.run([sys.executable, tmp_path / "train.py", *args], capture_output=True, text=True)
    assert done.returncode == 2


@pytest.mark.parametrize(
    "script",
    [
        SCRIPT.replace("parser.parse_args()", "parser.parse_known_args()"),
        SCRIPT + "\nfor name in NAMES:\n    parser.add_argument(f'--{name}')\n",
        SCRIPT.replace("argparse.ArgumentParser()", "argparse.ArgumentParser(parents=[other])"),
        SCRIPT + "\ndef broken(:\n",
        "print('no parser')\n",
        "import click\n@click.option('--x')\ndef main(): ...\n",
    ],
)
def test_where_the_source_does_not_tell_nothing_is_said(tmp_path: Path, script: str) -> None:
    assert problems(job_with(tmp_path, "--anything", "goes", script=script), {}) == []


@pytest.mark.parametrize(
    ("more", "options", "where"),
    [
        ({"outputs": "gs://<bucket>/runs"}, {}, "outputs"),
        ({"outputs": "gs://your-bucket/runs"}, {}, "outputs"),
        ({"data": Data(train=(Source(source="path/to/data"),))}, {}, "data.train"),
        ({"env": {"HOST": "CHANGE_ME"}}, {}, "env.HOST"),
        ({}, {"project": "YOUR_PROJECT"}, "targets.project"),
    ],
)
def test_values_that_were_never_filled_in_are_found(
    tmp_path: Path, more: dict[str, object], options: dict[str, str], where: str
) -> None:
    (found,) = problems(job_with(tmp_path, script="pass", **more), options)
    assert found.where == where
    assert "placeholder" in found.what


def test_ordinary_names_are_no_placeholders(tmp_path: Path) -> None:
    job = job_with(tmp_path, "--tag", "a<b", script="pass", outputs="gs://my-bucket/runs", env={"A": "todo-list-v2"})
    assert problems(job, {"project": "my-project", "region": "us-east1"}) == []


def test_an_image_for_another_processor_than_the_machines_is_found(tmp_path: Path) -> None:
    job = job_with(tmp_path, script="pass", resources=Resources(machine="t2a-standard-8"))
    (found,) = problems(job, {})
    assert "linux/arm64" in found.what
    assert problems(job, {"platform": "linux/arm64"}) == []
    intel = job_with(tmp_path, script="pass", resources=Resources(machine="n1-standard-8"))
    assert problems(intel, {"platform": "gke"}) == []
    assert problems(intel, {"platform": "linux/arm64"})


def test_a_plan_is_refused_for_all_of_it_at_once(tmp_path: Path) -> None:
    job = job_with(tmp_path, "--batchsize", "1", outputs="your-bucket")
    with pytest.raises(BadJob) as caught:
        plan(job)
    assert len(caught.value.problems) == 3
