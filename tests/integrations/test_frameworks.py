"""The real frameworks, killed or stopped under the real supervisor: each continues from what it had saved.

No framework is installed for these tests: name interpreters that have them in HEADWAY_TEST_PYTHONS.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import headway
from tests.projects.unchanged import PROJECTS, Folder, Project, kill, ranks_below

pytestmark = [pytest.mark.slow]
PROGRAMS = Path(__file__).parent / "programs"
OWN = {project.name: project for project in PROJECTS}
KERAS = Project(
    "keras_fit", "workdir/model.keras", ("tensorflow",), "by Keras", "Keras: continues with epoch", PROGRAMS
)
ACCELERATE = Project(
    "accelerate_loop",
    "workdir/model.pt",
    ("accelerate", "torch"),
    "by the project",
    "Accelerate: continues from accelerate-state/step-",
    PROGRAMS,
)


@pytest.fixture(autouse=True)
def _shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert ranks_below(tmp_path) == []


@pytest.mark.parametrize("project", [OWN["reviews"], OWN["digits"], KERAS, ACCELERATE], ids=lambda each: each.name)
@pytest.mark.parametrize("interruption", ["kill", "stop"])
def test_a_framework_continues_after_a(project: Project, interruption: str, tmp_path: Path) -> None:
    here = interrupted(project, interruption, tmp_path)
    assert "failed and is off" not in here.log()
    assert json.loads(here.output("status", here.run, "--json"))["progress"]["step"] > 0


def test_a_trainer_that_was_stopped_ends_with_the_same_weights(tmp_path: Path) -> None:
    straight = copy(OWN["reviews"], tmp_path / "straight")
    straight.run += "-straight"
    straight.type("run", "--name", straight.run)
    assert digest(straight) == digest(interrupted(OWN["reviews"], "stop", tmp_path))


def interrupted(project: Project, interruption: str, folder: Path) -> Folder:
    """Run a project that is killed, or stopped and resumed, after two of its four epochs."""
    here = copy(project, folder)
    here.start()
    if interruption == "kill":
        kill(ranks_below(here.path))
    else:
        said = here.type("stop", here.run, check=False)
        assert here.state() == "stopped", said
        here.type("resume", here.run, "--detach")
    here.ends_with_its_model()
    return here


def copy(project: Project, folder: Path) -> Folder:
    if project is not ACCELERATE:
        return Folder.copy(project, folder)
    return Folder.copy(
        project, folder, env={"PYTHONPATH": str(Path(headway.__file__).parents[1])}
    )  # it imports Headway


def digest(here: Folder) -> str:
    model = here.path / here.project.model.removeprefix("workdir/")
    return hashlib.sha256(model.read_bytes()).hexdigest()
