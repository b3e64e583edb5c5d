"""A run in a container on a machine reached by ssh: its image built there, its secrets told over stdin."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.spec import Image, Secret, TargetEntry
from headway.targets.fake import FakeBehaviour
from headway.targets.ssh.options import Options
from headway.targets.ssh.target import SshTarget
from tests.contract.counting import COUNT, count_to, counted, write_counting
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import WAITS
from tests.testbed.docker import BASE, docker, docker_host
from tests.testbed.images import image
from tests.testbed.sshd import Server, lacking
from tests.waiting import wait_until

__all__ = ["docker_host"]
pytestmark = [
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason=f"no sshd here: {lacking()}"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, docker_host: str) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("sshd"), variables=f"DOCKER_HOST={docker_host}")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def plan_of(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    project = write_project(tmp_path / "project")
    (project / "requirements.txt").write_text("")
    options: dict[str, Any] = {
        "host": "box",
        "config": str(server.config),
        "dir": str(tmp_path / "there"),
        "engine": "docker",
        "shm": 64_000_000,
    }
    known = {
        "on": "box",
        "outputs": str(tmp_path / "runs"),
        "targets": {"box": TargetEntry(kind="ssh", options=options)},
        "image": Image(uri=BASE),
    }
    return lambda play, **more: plan_play(project, play, **{**known, **more})


def target_of(plan: Plan) -> SshTarget:
    return SshTarget(Options(**plan.options), log=lambda text: None)


def containers(hold: RunHandle) -> str:
    return docker("ps", "--all", "--quiet", "--filter", f"label=headway.run={hold.run}").strip()


def test_a_container_there_runs_to_success_told_its_secret_and_leaves_nothing(
    plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_HERE", "canary-in-a-container")
    play = FakeBehaviour(lines=("the token is {TOKEN}",))
    keys = {"image": Image(base=BASE), "requirements": "requirements.txt"}  # an image that is built there
    made = plan_of(play, secrets={"TOKEN": Secret(ref="env:TOKEN_HERE")}, **keys)
    hold = lifecycle.launch(made, name="boxed", target=target_of(made))
    assert hold.outcome().status.state is State.FINISHED, hold.outcome().status
    assert [line.text for line in hold.logs(rank=0)] == ["the token is ***"]
    assert containers(hold) == ""


def test_a_ready_image_is_used_as_it_is_with_code_and_headway_brought(plan_of: Callable[..., Plan]) -> None:
    made = plan_of(FakeBehaviour(lines=("in {HEADWAY_CODE_DIR}",)))
    hold = lifecycle.launch(made, name="ready", target=target_of(made))
    assert hold.outcome().status.state is State.FINISHED, hold.outcome().status
    assert [line.text.rpartition("/")[2] for line in hold.logs(rank=0)] == ["code"]
    assert containers(hold) == ""


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("bionic", {"command": ("python3", "-c", "import sys; print('python %d.%d' % sys.version_info[:2])")}),
        ("musl", {"command": ("sh", "-c", "command -v python3 || echo no python")}),
    ],
)
def test_an_old_python_or_none_in_the_image_will_do(plan_of: Callable[..., Plan], name: str, program: Any) -> None:
    made = plan_of(FakeBehaviour(), script=None, args=(), image=Image(uri=image(name)), **program)
    hold = lifecycle.launch(made, name=f"any-{name}", target=target_of(made))
    assert hold.outcome().status.state is State.FINISHED, hold.outcome().status
    assert [line.text for line in hold.logs(rank=0)] == [{"bionic": "python 3.6", "musl": "no python"}[name]]


def test_a_stopped_container_goes_on_where_it_was(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    project = write_counting(tmp_path / "counting")
    made = plan_of(FakeBehaviour(), script=COUNT, root=str(project), args=("10", "0.01", "3"))
    hold = lifecycle.launch(made, name="counts", detach=True, target=target_of(made))
    wait_until(lambda: len(counted(hold)) == 3, "it counts")
    outcome = hold.stop()
    assert outcome.status.state is State.STOPPED, outcome
    assert containers(hold) == ""
    again = lifecycle.resume(hold.url)
    assert again.wait().status.state is State.FINISHED
    assert counted(again) == count_to(10)


def test_a_container_whose_client_there_was_killed_is_found_and_ended(plan_of: Callable[..., Plan]) -> None:
    made = plan_of(WAITS)
    target = target_of(made)
    hold = lifecycle.launch(made, name="orphan", detach=True, target=target)
    wait_until(lambda: any("waits" in line.text for line in hold.logs()), "it waits")
    found = subprocess.run(["pgrep", "-f", "docker run --rm.*headway-orphan-0"], capture_output=True, text=True)
    for pid in found.stdout.split():
        subprocess.run(["kill", "-9", pid])
    assert hold.down().left == ()
    wait_until(lambda: containers(hold) == "", "and its container with it")
    assert target.list_runs() == []
