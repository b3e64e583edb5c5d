"""Old runs in containers: the recorded wheel is mounted into a ready image, or built into an image of its own."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tests.compat.old_headway import TRAINS, OldRuns, Project
from tests.testbed.docker import BASE, TORCH_IS_MOUNTED, docker_host

__all__ = ["docker_host"]
pytestmark = [*TRAINS, *TORCH_IS_MOUNTED]


class TestDocker(OldRuns):
    on = "docker"

    @pytest.fixture
    def project(self, tmp_path: Path, old_src: Path, docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Project:
        monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("DOCKER_HOST", docker_host)
        job = {
            "image": {"uri": BASE},
            "mounts": [{"path": sysconfig.get_path("purelib"), "at": "/mnt/site", "read_only": True}],
            "env": {"OMP_NUM_THREADS": "1", "PYTHONPATH": "/mnt/site"},
        }
        return Project(folder=tmp_path / "project", old_src=old_src, job=job).write()
