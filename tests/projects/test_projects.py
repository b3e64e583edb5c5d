"""Projects as their authors wrote them run unchanged, are killed, resume, and end with their model in `pull`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.projects.unchanged import Folder, Project, each_project, kill, ranks_below

pytestmark = [pytest.mark.slow, pytest.mark.torch]


@each_project()
@pytest.mark.parametrize("interruption", ["kill", "stop"])
def test_a_project_runs_unchanged_and_continues_after(project: Project, interruption: str, tmp_path: Path) -> None:
    here = Folder.copy(project, tmp_path)
    here.start()
    if interruption == "kill":
        kill(ranks_below(here.path))
    else:
        here.type("stop", here.run, check=False)
        assert here.state() == "stopped"
        here.type("resume", here.run, "--detach")
    here.ends_with_its_model()
