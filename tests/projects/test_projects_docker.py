"""The same projects, unchanged, in containers of a real daemon, in an image that has no Headway.

Neither torch nor a framework can be built into an image where these tests run: they are mounted from this machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.projects.unchanged import SITE, Folder, Project, each_project, kill, ranks_of_run
from tests.testbed.docker import BASE, TORCH_IS_MOUNTED, docker, docker_host

__all__ = ["docker_host"]
pytestmark = [pytest.mark.docker, *TORCH_IS_MOUNTED]


@each_project(ci=["captioner"])
def test_a_project_runs_unchanged_in_a_container_and_continues_after_a_kill(
    project: Project, docker_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    here = Folder.copy(project, tmp_path, {"kind": "docker"}, image={"uri": BASE}, mount_packages=True)
    here.start("--set", f"env.PYTHONPATH={SITE}")
    kill(ranks_of_run(here.run))
    here.ends_with_its_model()
    assert docker("ps", "--all", "--quiet", "--filter", f"name={here.run}") == ""
