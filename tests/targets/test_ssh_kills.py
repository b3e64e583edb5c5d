"""kill -9 of the client at each request it makes, to a real sshd: what it leaves there ends by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.planning import Plan
from headway.rundir.layout import RunFolder
from headway.spec import Budget, TargetEntry
from headway.storage import join, open_store
from headway.targets.fake import FakeBehaviour
from headway.targets.local import processes
from headway.targets.ssh.options import Options
from headway.targets.ssh.rental import Records
from headway.targets.ssh.target import SshTarget
from tests.contract.client_kills import kill_at_each_request, nothing_stays
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import WAITS
from tests.targets.test_ssh_rented import Cloud, guardians
from tests.testbed.sshd import Server, lacking, running_below
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason=f"no sshd here: {lacking()}"),
]


@pytest.fixture
def plan_of(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    project = write_project(tmp_path / "project")
    box = {"host": "box", "config": str(server.config), "dir": str(tmp_path / "there"), "python": sys.executable}

    def made(play: FakeBehaviour, options: dict[str, Any] | None = None, **more: Any) -> Plan:
        entries = {"box": TargetEntry(kind="ssh", options=options or box)}
        return plan_play(project, play, on="box", outputs=str(tmp_path / "runs"), targets=entries, **more)

    return made


def running(plan: Plan) -> Callable[[], set[str]]:
    """Runs that live on the machine behind the connection, which is this one, and those that a process here guards."""
    outputs = str(plan.job["outputs"])
    below = Path(outputs).parent

    def names() -> set[str]:
        there = (
            {label[processes.RUN_VARIABLE] for label in processes.labels(target="ssh")}
            if running_below(below)
            else set()
        )
        return there | {path.name for path in Path(outputs).iterdir() if guardians(join(outputs, path.name))}

    return names


def states(plan: Plan, name: str) -> list[str]:
    folder = RunFolder(open_store(join(str(plan.job["outputs"]), name)))
    return [str(event["state"]) for event in folder.events() if event["kind"] == "ended"]


def target_of(plan: Plan) -> SshTarget:
    return SshTarget(Options(**plan.options), log=lambda text: None)


def test_a_client_killed_at_any_request_leaves_what_its_budget_ends_there(
    plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = plan_of(WAITS, budget=Budget(hours=3 / 3600))
    names = kill_at_each_request(plan, tmp_path, f"b{os.getpid()}", every=3)
    assert len(names) > 15
    nothing_stays(target_of(plan), plan, names, wait_until, live=running(plan))
    started = [name for name in names if states(plan, name)]
    assert started
    assert all(states(plan, name) == ["budget"] for name in started)


def test_a_watcher_killed_at_any_request_leaves_what_ends_as_it_would(
    plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = plan_of(FakeBehaviour(lines=("hello",)))
    names = kill_at_each_request(plan, tmp_path, f"w{os.getpid()}", attached=True, first=60, every=12)
    nothing_stays(target_of(plan), plan, names, wait_until, live=running(plan))
    assert states(plan, names[-1]) == ["finished"]
    assert all(states(plan, name) in ([], ["finished"]) for name in names)


def test_a_client_killed_at_any_request_leaves_no_machine_rented(
    plan_of: Callable[..., Plan], tmp_path: Path, server: Server
) -> None:
    cloud = Cloud(tmp_path / "cloud", server)
    plan = plan_of(FakeBehaviour(lines=("hello",)), cloud.entry())
    names = kill_at_each_request(plan, tmp_path, f"r{os.getpid()}", attached=True, first=5, every=8)
    nothing_stays(target_of(plan), plan, names, wait_until, live=running(plan))
    assert cloud.machines == []
    assert Records().all() == []
    assert states(plan, names[-1]) == ["finished"]
