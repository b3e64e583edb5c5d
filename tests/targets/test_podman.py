"""podman through the same commands: it keeps every promise of a target."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.core.types import State, Target
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.spec import Image, TargetEntry
from headway.targets.docker.options import Options
from headway.targets.docker.target import DockerTarget
from headway.targets.fake import FakeBehaviour
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import TargetContract
from tests.targets.test_docker import Refusing
from tests.testbed.docker import BASE
from tests.testbed.podman import podman

__all__ = ["podman"]
pytestmark = [pytest.mark.podman, pytest.mark.slow]


class TestPodman(TargetContract):
    kind = "podman"

    @pytest.fixture(autouse=True)
    def _own_storage(self, podman: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in podman.items():
            monkeypatch.setenv(name, value)

    @pytest.fixture
    def target(self) -> Iterator[Target]:
        target = DockerTarget(Options(command="podman"), engine=Refusing())
        yield target
        assert target.list_runs() == []

    @pytest.fixture
    def plan_of(self, tmp_path: Path, outputs: str) -> Callable[..., Plan]:
        project = write_project(tmp_path / "project")
        (project / "requirements.txt").write_text("")
        shared = {
            "on": self.kind,
            "outputs": outputs,
            "image": Image(base=f"localhost/{BASE}"),
            "requirements": "requirements.txt",
            "targets": {"podman": TargetEntry(kind="docker", options={"command": "podman"})},
        }
        return lambda play, **more: plan_play(project, play, **{**shared, **more})

    def half_gone(self, hold: RunHandle) -> None:
        subprocess.run(["podman", "kill", hold.target_handle.details["containers"][0]], check=True, capture_output=True)

    @contextmanager
    def lost_host(self, hold: RunHandle) -> Iterator[None]:
        (container,) = hold.target_handle.details["containers"]
        shown = ["podman", "inspect", "--format", "{{.State.Pid}}", container]
        supervisor = int(subprocess.run(shown, check=True, capture_output=True, text=True).stdout)
        os.kill(supervisor, signal.SIGSTOP)
        yield
        os.kill(supervisor, signal.SIGKILL)

    @contextmanager
    def failing_submit(self, monkeypatch: pytest.MonkeyPatch, target: Target) -> Iterator[None]:
        assert isinstance(target, DockerTarget)
        assert isinstance(target.engine, Refusing)
        target.engine.word = "start"
        yield
        target.engine.word = None

    def lines_about_a_secret(self) -> tuple[str, ...]:
        return ("the token is {TOKEN}",)

    def test_nodes_find_each_other_by_name(self, start: Callable[..., RunHandle]) -> None:
        hold = start(FakeBehaviour(lines=("{RANK} of {WORLD_SIZE}",)), nodes=2)
        assert hold.wait().status.state is State.FINISHED
        assert [self.texts(hold, rank=rank) for rank in (0, 1)] == [["0 of 2"], ["1 of 2"]]
