"""kill -9 of the client at each request it makes leaves nothing that does not end by itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.planning import Plan
from headway.plugins import TARGETS
from headway.rundir.index import RunIndex
from headway.rundir.layout import RunFolder
from headway.spec.model import Budget
from headway.storage import join, open_store, subfolders
from headway.targets.fake import FakeBehaviour, FakeTarget
from headway.targets.local.target import LocalTarget
from tests.contract.client_kills import kill_at_each_request, nothing_stays
from tests.contract.plays import FAKE, plan_play, write_project
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
GOES_ON = FakeBehaviour(lines=("waits",), until_stopped=True)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(TARGETS, "fake", FAKE)


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[..., Plan]:
    project = write_project(tmp_path / "project")
    outputs = str(tmp_path / "runs")
    return lambda play, **more: plan_play(project, play, **{"on": "local", "outputs": outputs, **more})


def test_a_killed_client_leaves_runs_that_their_budget_ends(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    plan = plan_of(GOES_ON, budget=Budget(hours=3 / 3600))
    names = kill_at_each_request(plan, tmp_path, f"b{os.getpid()}")
    assert len(names) > 15
    nothing_stays(LocalTarget(), plan, names, wait_until)
    started = [name for name in names if _events(plan, name)]
    assert started  # some were killed after the supervisor had been started: those ended by their budget
    assert all(_events(plan, name)[-1]["state"] == "budget" for name in started)


def test_a_killed_watcher_leaves_runs_that_end_as_they_would(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    plan = plan_of(FakeBehaviour(lines=("hello",)))
    names = kill_at_each_request(plan, tmp_path, f"w{os.getpid()}", attached=True)
    nothing_stays(LocalTarget(), plan, names, wait_until)
    assert _events(plan, names[-1])[-1]["state"] == "finished"
    for name in names:
        assert [event["state"] for event in _events(plan, name)] in ([], ["finished"])


def test_what_was_killed_half_way_can_be_listed_again(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    plan = plan_of(FakeBehaviour(), on="fake")
    names = kill_at_each_request(plan, tmp_path, f"f{os.getpid()}")
    nothing_stays(FakeTarget(), plan, names, wait_until)
    outputs = str(plan.job["outputs"])
    whole = {name for name in subfolders(open_store(outputs)) if name != "code" and _has_plan(outputs, name)}
    RunIndex().rebuild(outputs)
    assert whole <= {row.name for row in RunIndex().rows()}
    assert names[-1] in whole


def _has_plan(outputs: str, name: str) -> bool:
    return any(entry.key == "plan.json" for entry in open_store(join(outputs, name)).list("plan.json"))


def _events(plan: Plan, name: str) -> list[dict[str, str]]:
    folder = RunFolder(open_store(join(str(plan.job["outputs"]), name)))
    return [event for event in folder.events() if event["kind"] == "ended"]
