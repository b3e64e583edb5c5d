"""Containers as a target: a real daemon, real containers, killed in every way there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import TargetContract
from tests.testbed.docker import BASE, docker, docker_host

from headway.image.engine import ANSWER_S, Refusal, run
from headway.launcher import Launched
from headway.planning import Plan
from headway.spec import Image
from headway.targets.base import Target
from headway.targets.docker.target import DockerTarget

__all__ = ["docker_host"]


class Refusing:
    """The real engine, which refuses one word when a test says so."""

    word: str | None = None

    def __call__(self, argv: Sequence[str], *, within_s: float | None = ANSWER_S) -> str:
        if self.word in argv:
            raise Refusal(f"{self.word} was refused")
        return run(argv, within_s=within_s)


class TestDocker(TargetContract):
    kind = "docker"

    @pytest.fixture(autouse=True)
    def _daemon(self, docker_host: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DOCKER_HOST", docker_host)

    @pytest.fixture
    def target(self) -> Iterator[Target]:
        target = DockerTarget(engine=Refusing())
        yield target
        assert target.found() == []

    @pytest.fixture
    def plan_of(self, tmp_path: Path, outputs: str) -> Callable[..., Plan]:
        project = write_project(tmp_path / "project")
        (project / "requirements.txt").write_text("")  # says that it needs nothing, so that torch is not installed
        shared = {"on": self.kind, "outputs": outputs, "image": Image(base=BASE), "requirements": "requirements.txt"}
        return lambda play, **more: plan_play(project, play, **{**shared, **more})

    def half_gone(self, hold: Launched) -> None:
        docker("kill", "--signal", "KILL", hold.handle.details["containers"][0])

    @contextmanager
    def failing_submit(self, monkeypatch: pytest.MonkeyPatch, target: Target) -> Iterator[None]:
        assert isinstance(target, DockerTarget)
        assert isinstance(target.engine, Refusing)
        target.engine.word = "start"  # the containers are there, and do not start
        yield
        target.engine.word = None

    def lines_about_a_secret(self) -> tuple[str, ...]:
        return ("the token is {TOKEN}",)
