"""kill -9 of the client at each request it makes, on a real Slurm: what it leaves in the queue ends by itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.planning import Plan
from headway.rundir.layout import RunFolder
from headway.spec import Budget
from headway.storage import join, open_store
from headway.targets.fake import FakeBehaviour
from headway.targets.slurm.target import SlurmTarget
from tests.contract.client_kills import kill_at_each_request, nothing_stays
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import WAITS
from tests.targets.test_slurm import cluster
from tests.testbed.slurm.cluster import Cluster, lacking
from tests.waiting import wait_until

__all__ = ["cluster"]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason=f"no Slurm here: {lacking()}"),
]


@pytest.fixture
def plan_of(tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    project = write_project(tmp_path / "project")
    return lambda play, **more: plan_play(project, play, on="slurm", outputs=str(tmp_path / "runs"), **more)


def states(plan: Plan, name: str) -> list[str]:
    folder = RunFolder(open_store(join(str(plan.job["outputs"]), name)))
    return [str(event["state"]) for event in folder.events() if event["kind"] == "ended"]


def test_a_client_killed_at_any_request_leaves_jobs_that_their_budget_ends(
    plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = plan_of(WAITS, budget=Budget(hours=3 / 3600))
    names = kill_at_each_request(plan, tmp_path, f"b{os.getpid()}", every=2)
    assert len(names) > 15
    nothing_stays(SlurmTarget(), plan, names, wait_until)
    started = [name for name in names if states(plan, name)]
    assert started
    assert all(states(plan, name) == ["budget"] for name in started)


def test_a_watcher_killed_at_any_request_leaves_jobs_that_end_as_they_would(
    plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = plan_of(FakeBehaviour(lines=("hello",)))
    names = kill_at_each_request(plan, tmp_path, f"w{os.getpid()}", attached=True, first=50, every=5)
    nothing_stays(SlurmTarget(), plan, names, wait_until)
    assert states(plan, names[-1]) == ["finished"]
    assert all(states(plan, name) in ([], ["finished"]) for name in names)
