"""Old runs in containers: the recorded wheel is mounted into a ready image, or built into an image of its own."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.compat.old_headway import TRAINS, OldRuns, Project, stopped
from tests.testbed.docker import BASE, TORCH_IS_MOUNTED, docker, docker_host
from tests.testbed.kubernetes.workload import SCRIPT

__all__ = ["docker_host"]
pytestmark = [pytest.mark.docker, *TRAINS, *TORCH_IS_MOUNTED]
MOUNTED: dict[str, Any] = {
    "mounts": [{"path": sysconfig.get_path("purelib"), "at": "/mnt/site", "read_only": True}],
    "env": {"OMP_NUM_THREADS": "1", "PYTHONPATH": "/mnt/site"},
}


@pytest.fixture(autouse=True)
def _daemon(tmp_path: Path, docker_host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", docker_host)


class TestDocker(OldRuns):
    on = "docker"

    @pytest.fixture
    def project(self, tmp_path: Path, old_src: Path) -> Project:
        job = {"image": {"uri": BASE}, **MOUNTED}
        return Project(folder=tmp_path / "project", old_src=old_src, job=job).write()


def test_a_script_goes_on_in_the_image_that_the_old_version_built(tmp_path: Path, old_src: Path) -> None:
    job = {
        "name": "points",
        "recipe": None,
        "script": "train.py",
        "requirements": "requirements.txt",
        "config": {"pause_s": 0.0},
        "data": {},
        "image": {"base": BASE},
        **MOUNTED,
    }
    project = Project(folder=tmp_path / "project", old_src=old_src, job=job).write()
    (project.folder / "train.py").write_text(SCRIPT)
    (project.folder / "requirements.txt").write_text("")
    project.old("run", "--name", "straight")
    project.begin("broken", on="docker", more=("--set", "config.pause_s=0.3"))
    stopped(project, "broken", by=project.new)
    images = docker("images", "--quiet", "headway/points")
    project.new("resume", "broken")
    assert project.status("broken")["state"] == "finished"
    assert docker("images", "--quiet", "headway/points") == images, "it was found by its name, not built again"
    assert _digest(project, "broken") == _digest(project, "straight")


def _digest(project: Project, run: str) -> str:
    (line,) = [line for line in project.new("logs", run, "--rank", "0").splitlines() if "digest " in line]
    return line.rpartition(" ")[2]
