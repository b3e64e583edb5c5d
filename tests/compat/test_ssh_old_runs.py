"""Old runs on a machine behind a real sshd, which has the wheel that the run has recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.old_headway import TRAINS, OldRuns, Project
from tests.testbed.sshd import Server, lacking, running_below
from tests.waiting import wait_until

pytestmark = [pytest.mark.ssh, *TRAINS, pytest.mark.skipif(bool(lacking()), reason=f"ssh: {lacking()}")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("sshd"))
    server.start()
    yield server
    server.stop()


class TestSsh(OldRuns):
    on = "box"

    @pytest.fixture
    def project(
        self, tmp_path: Path, old_src: Path, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Project]:
        monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
        there = {"config": str(server.config), "dir": str(tmp_path / "there"), "python": sys.executable}
        job = {"targets": {"box": {"kind": "ssh", "host": "box", **there}}}
        yield Project(folder=tmp_path / "project", old_src=old_src, job=job).write()
        wait_until(lambda: running_below(tmp_path) == [], "nothing of ours runs there")
