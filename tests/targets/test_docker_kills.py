"""kill -9 of the client at each request it makes, with real containers: what it leaves ends by itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.planning import Plan
from headway.rundir.layout import RunFolder
from headway.spec import Budget, Image
from headway.storage import join, open_store
from headway.targets.docker.target import DockerTarget
from headway.targets.fake import FakeBehaviour
from tests.contract.client_kills import kill_at_each_request, nothing_stays
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import WAITS
from tests.testbed.docker import BASE, docker, docker_host
from tests.waiting import wait_until

__all__ = ["docker_host"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def plan_of(tmp_path: Path, docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    project = write_project(tmp_path / "project")
    known: dict[str, Any] = {"on": "docker", "outputs": str(tmp_path / "runs"), "image": Image(uri=BASE)}
    return lambda play, **more: plan_play(project, play, **{**known, **more})


def running() -> set[str]:
    """Runs of which a container lives. One that was made and never started takes nothing, and is left to `gc`."""
    return set(docker("ps", "--format", '{{.Label "headway.run"}}').split())


def states(plan: Plan, name: str) -> list[str]:
    folder = RunFolder(open_store(join(str(plan.job["outputs"]), name)))
    return [str(event["state"]) for event in folder.events() if event["kind"] == "ended"]


def test_a_client_killed_at_any_request_leaves_containers_that_their_budget_ends(
    plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = plan_of(WAITS, nodes=2, budget=Budget(hours=3 / 3600))
    names = kill_at_each_request(plan, tmp_path, f"b{os.getpid()}", every=3)
    assert len(names) > 15
    nothing_stays(DockerTarget(), plan, names, wait_until, live=running)
    started = [name for name in names if states(plan, name)]
    assert started
    assert all(states(plan, name) == ["budget"] for name in started)
    assert docker("ps", "--all", "--quiet") == ""
    assert docker("network", "ls", "--quiet", "--filter", "label=headway.run") == ""


def test_a_watcher_killed_at_any_request_leaves_containers_that_end_as_they_would(
    plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = plan_of(FakeBehaviour(lines=("hello",)))
    names = kill_at_each_request(plan, tmp_path, f"w{os.getpid()}", attached=True, first=50, every=5)
    nothing_stays(DockerTarget(), plan, names, wait_until, live=running)
    assert states(plan, names[-1]) == ["finished"]
    assert all(states(plan, name) in ([], ["finished"]) for name in names)
