"""What a commit's message starts: what it asks for in plain words, and never anything that it merely contains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.ci.trigger import LONGEST, asked
from headway.packaging.code import build_wheel, wheel_path

MESSAGES = (Path(__file__).parent / "messages.txt").read_text().rstrip("\n").split("\n---\n")
WANTED: list[list[str]] = [
    [""], ["captions"], ["a", "b-2"],  # asked for
    [], [], [],  # quoted: spoken of
    [], [], [],  # no names
    [""], [""], [""],  # what stands beside it is nothing to us
    [], [], [], [], [],  # almost
    [""], [],
]  # fmt: skip
CASES = list(zip(MESSAGES, WANTED, strict=True))


@pytest.mark.parametrize(("message", "wanted"), CASES, ids=range(len(CASES)))
def test_a_message_asks_for_what_it_says_in_plain_words(message: str, wanted: list[str]) -> None:
    assert asked(message) == wanted


def test_a_name_has_at_most_forty_characters() -> None:
    assert asked(f"!train-{'n' * LONGEST}!") == ["n" * LONGEST]
    assert asked(f"!train-{'n' * (LONGEST + 1)}!") == []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    for name in ("headway.yaml", "jobs/captions.yaml", "a.yaml", "jobs/b-2.yaml"):
        (tmp_path / name).write_text("name: x\n")
    return tmp_path


def triggered(repository: Path, message: str, *, pythonpath: str) -> subprocess.CompletedProcess[str]:
    """As the pipeline's step does it: through a shell, by a variable, from the wheel alone."""
    step = 'python3 -m headway.ci.trigger >> "$GITHUB_OUTPUT"'.replace("python3", sys.executable)
    env = {"HEADWAY_MESSAGE": message, "PYTHONPATH": pythonpath, "GITHUB_OUTPUT": "out", "PATH": os.environ["PATH"]}
    return subprocess.run(
        ["bash", "-e", "-c", step], cwd=repository, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("message", "wanted"), CASES, ids=range(len(CASES)))
def test_no_message_can_run_a_command_or_write_another_output(
    repository: Path, message: str, wanted: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = {path.name for path in repository.rglob("*")}
    source = str(Path(__file__).parents[2] / "src")
    done = triggered(repository, message, pythonpath=source)
    assert done.returncode == 0, done.stderr
    (line,) = (repository / "out").read_text().splitlines()
    files = {"": "headway.yaml", "captions": "jobs/captions.yaml", "a": "a.yaml", "b-2": "jobs/b-2.yaml"}
    assert line == f"jobs={json.dumps([files[name] for name in wanted])}"
    assert {path.name for path in repository.rglob("*")} - before <= {"out", "__pycache__"}


def test_it_runs_from_the_wheel_without_being_installed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    name, _ = build_wheel()
    step = [sys.executable, "-S", "-m", "headway.ci.trigger"]
    env = {"HEADWAY_MESSAGE": "!train!", "PYTHONPATH": str(wheel_path(name)), "PATH": os.environ["PATH"]}
    done = subprocess.run(step, cwd=repository, env=env, capture_output=True, text=True, check=False)
    assert done.stdout == 'jobs=["headway.yaml"]\n', done.stderr


def test_a_name_without_a_job_file_fails_and_says_so(repository: Path) -> None:
    done = triggered(repository, "!train-nobody!", pythonpath=str(Path(__file__).parents[2] / "src"))
    assert done.returncode == 1
    assert "there is no nobody.yaml" in done.stderr


def test_a_link_out_of_the_repository_is_no_job_file(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "x.yaml"
    outside.write_text("name: x\n")
    (repository / "sly.yaml").symlink_to(outside)
    done = triggered(repository, "!train-sly!", pythonpath=str(Path(__file__).parents[2] / "src"))
    assert done.returncode == 1
