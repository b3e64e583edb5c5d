"""The same projects, unchanged, on a machine reached by ssh: a real sshd, which does not see this machine's runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.projects.unchanged import Folder, Project, each_project, kill, ranks_of_run
from tests.testbed.sshd import Server, lacking, running_below
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(bool(lacking()), reason=f"no sshd here: {lacking()}"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("sshd"))
    server.start()
    yield server
    server.stop()


@each_project(ci=["captioner", "leaves"])
def test_a_project_runs_unchanged_by_ssh_and_continues_after_a_kill(
    project: Project, server: Server, tmp_path: Path
) -> None:
    box = {"kind": "ssh", "host": "box", "config": str(server.config), "dir": str(tmp_path / "there")}
    here = Folder.copy(project, tmp_path, {**box, "python": sys.executable})
    here.start()
    kill(ranks_of_run(here.run))
    here.ends_with_its_model()
    wait_until(lambda: running_below(tmp_path) == [], "nothing of ours runs there")
