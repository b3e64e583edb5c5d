"""A budget is a total over attempts: what is spent is known from the folder, and a spent one starts nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headway.core import platform
from headway.core.errors import BadInput
from headway.core.plan import Limits
from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.launcher.migrate import Migration
from headway.planning import Plan
from headway.plugins import TARGETS
from headway.rundir import lease, status
from headway.rundir.lease import spent_s, spent_usd, usd_per_hour, with_budget, with_remaining_budget
from headway.spec.model import Budget
from headway.supervisor.restart_policy import read_history
from headway.targets.docker import resources
from headway.targets.fake import FakeBehaviour, FakeTarget
from tests.contract.plays import FAKE, plan_play, play_of, write_project

WAITS = FakeBehaviour(lines=("waits",), until_stopped=True)


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(TARGETS, "fake", FAKE)


@pytest.fixture
def target() -> FakeTarget:
    return FakeTarget(behaviour=play_of)


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[..., Plan]:
    project = write_project(tmp_path / "project")
    outputs = f"memory://{os.urandom(6).hex()}/runs"
    return lambda play=WAITS, **more: plan_play(project, play, **{"on": "fake", "outputs": outputs, **more})


def ended_after(hold: RunHandle, target: FakeTarget, seconds: float, state: State = State.BUDGET) -> None:
    target._write_event(hold.url, kind="checkpoint", step=1, spent_s=seconds)
    target.end(hold.url, state)
    hold.ensure_torn_down()


def billed(plan: Plan, **price: object) -> Plan:
    return replace(plan, price={"usd_per_hour": 2.0, "spot_usd_per_hour": 0.5, "billed": "on demand", **price})


def test_spent_time_is_the_supervisors_own_count(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = lifecycle.launch(plan_of(), detach=True, target=target)
    assert spent_s(hold.folder) == 0.0
    ended_after(hold, target, 1234.5)
    assert spent_s(hold.folder) == 1234.5


def test_a_killed_supervisor_has_spent_what_its_lease_shows(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = lifecycle.launch(plan_of(), detach=True, target=target)
    target._write_event(hold.url, kind="attempt", number=1, held_from_s=100.0)
    record = json.loads(hold.folder.store.read("lease.json"))
    hold.folder.store.write("lease.json", json.dumps({**record, "beat": 7}).encode())
    assert spent_s(hold.folder) == 170.0


def aged(hold: RunHandle, seconds: float, **more: object) -> None:
    """As if it had been held for so long by a machine that cannot be seen from here."""
    record = json.loads(hold.folder.store.read("lease.json"))
    known = {**record, "boot": "another machine's", "host": "far-away", "beat": round(seconds / 10), **more}
    hold.folder.store.write("lease.json", json.dumps(known).encode())


def lost(target: FakeTarget, hold: RunHandle, seconds: float, **more: object) -> None:
    """Its machine is gone, in the middle of a word."""
    target._attempts.pop(hold.url)
    target.workers.pop(hold.url)
    aged(hold, seconds, **more)


def free_by_target(hold: RunHandle) -> None:
    """As Kubernetes, Slurm, Vertex AI and ssh do once nothing of a run is left there."""
    status.release_dead_lease(hold.target_handle)


def free_by_docker(hold: RunHandle) -> None:
    """As docker does for the process 1 of a container that it has removed."""
    aged(
        hold,
        3000.0,
        boot=f"{platform.pid_namespace_id().partition('/')[0]}/the container's",
        host="0123456789ab",
        pid=1,
    )
    resources.release_lease(replace(hold.target_handle, details={"containers": ["0123456789abcdef"]}))


def free_by_waiting(hold: RunHandle) -> None:
    """As `resume` does for a holder of which nothing is heard any more."""
    assert lifecycle._wait_until_stale(hold, 0.05) is not None


def free_to_move(hold: RunHandle) -> None:
    """As `resume --on` does for a process that is seen to be gone."""
    gone = {"boot": platform.pid_namespace_id(), "pid": os.getpid(), "started": "long ago"}
    aged(hold, 3000.0, **gone)
    with pytest.raises(BadInput, match="no target is called"):
        lifecycle.resume(hold.url, target=hold.target, move=Migration(on="nowhere"))


FREED = [free_by_target, free_by_docker, free_by_waiting, free_to_move]


@pytest.mark.parametrize("free", FREED)
def test_whoever_frees_the_lease_of_a_lost_host_credits_what_it_had_spent(
    plan_of: Callable[..., Plan], target: FakeTarget, free: Callable[[RunHandle], None]
) -> None:
    hold = lifecycle.launch(plan_of(budget=Budget(hours=1)), detach=True, target=target)
    lost(target, hold, 3000.0)
    free(hold)
    assert hold.folder.read_json("lease.json")["holder"] is None  # type: ignore[index]
    assert spent_s(hold.folder) == 3000.0
    free_by_target(hold)
    assert spent_s(hold.folder) == 3000.0


def test_every_lost_host_is_counted_once_until_nothing_is_left(
    plan_of: Callable[..., Plan], target: FakeTarget
) -> None:
    hold = lifecycle.launch(plan_of(budget=Budget(hours=1)), detach=True, target=target)
    for number in range(1, 4):
        lost(target, hold, 1000.0)
        hold.down()
        free_by_target(hold)
        assert spent_s(hold.folder) == 1000.0 * number
        hold = lifecycle.resume(hold.url, target=target, patience_s=0.05)
        assert spent_s(hold.folder) == 1000.0 * number
    lost(target, hold, 590.0)
    with pytest.raises(BadInput, match=r"spent: 1.00 of 1.00 hours"):
        lifecycle.resume(hold.url, target=target, patience_s=0.05)


def test_what_waits_in_a_queue_spends_nothing(plan_of: Callable[..., Plan]) -> None:
    waiting = FakeTarget()
    hold = lifecycle.launch(plan_of(), detach=True, target=waiting)
    assert spent_s(hold.folder) == 0.0
    waiting.begin(hold.url)
    lost(waiting, hold, 500.0)
    free_by_target(hold)
    again = lifecycle.resume(hold.url, target=waiting)
    assert spent_s(again.folder) == 500.0


def test_the_next_supervisor_counts_as_everybody_else_does(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = lifecycle.launch(plan_of(), detach=True, target=target)
    lost(target, hold, 3000.0)
    record, _ = lease.read(hold.folder.store)
    assert read_history(hold.folder.events(), record).spent_s == spent_s(hold.folder) == 3000.0
    free_by_target(hold)
    mine = lease.Lease.acquire(hold.folder.store)
    assert read_history(hold.folder.events(), mine.record).spent_s == spent_s(hold.folder) == 3000.0


def test_a_spent_budget_is_refused_and_says_how_to_go_on(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = lifecycle.launch(plan_of(budget=Budget(hours=1)), detach=True, target=target)
    ended_after(hold, target, 3590.0)
    with pytest.raises(BadInput, match=r"spent: 1.00 of 1.00 hours(.|\n)*--budget-hours 2"):
        lifecycle.resume(hold.url, target=target)
    assert target.list_runs() == []


def test_with_a_new_total_it_goes_on_and_the_folder_knows(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = lifecycle.launch(plan_of(budget=Budget(hours=1)), detach=True, target=target)
    ended_after(hold, target, 3590.0)
    again = lifecycle.resume(hold.url, target=target, budget_hours=3)
    assert again.folder.plan().limits.budget_s == 3 * 3600
    assert again.folder.plan().job["budget"] == {"hours": 3, "usd": None}
    again.down()


def test_some_budget_left_is_enough_to_go_on(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = lifecycle.launch(plan_of(budget=Budget(hours=1)), detach=True, target=target)
    ended_after(hold, target, 1800.0, State.STOPPED)
    lifecycle.resume(hold.url, target=target).down()


def test_the_remainder_is_the_limit_of_the_next_start(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(budget=Budget(hours=1))
    assert with_remaining_budget(plan, 600.0).limits.budget_s == 3000.0
    assert with_remaining_budget(plan, 3599.0).limits.budget_s == 60.0
    free = replace(plan, limits=Limits(budget_s=None, max_wait_s=None, grace_s=1, second=""))
    assert with_remaining_budget(free, 600.0) == free


def test_money_is_time_by_the_price_that_was_reviewed(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of()
    assert usd_per_hour(plan) is None
    assert spent_usd(plan, 1800.0) is None
    assert spent_usd(billed(plan), 1800.0) == 1.0
    assert spent_usd(billed(plan, billed="spot"), 3600.0) == 0.5
    assert spent_usd(billed(plan, disk={"usd_per_hour": 0.1}), 3600.0) == pytest.approx(2.1)


def test_a_new_total_in_dollars_becomes_time(plan_of: Callable[..., Plan]) -> None:
    richer = with_budget(billed(plan_of()), usd=10.0)
    assert richer.limits.budget_s == 5 * 3600
    assert richer.price["ceiling_usd"] == 10.0
    assert richer.job["env"]["HEADWAY_BUDGET_USD"] == "10"
    both = with_budget(billed(plan_of()), usd=10.0, hours=2)
    assert both.limits.budget_s == 2 * 3600
    with pytest.raises(BadInput, match="a budget in dollars has no effect"):
        with_budget(plan_of(), usd=10.0)
    with pytest.raises(BadInput, match="greater than 0"):
        with_budget(plan_of(), hours=-1)


def test_what_a_finished_run_took_is_remembered_once(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    from headway.pricing.estimate import past_runs

    hold = lifecycle.launch(plan_of(), detach=True, target=target)
    target._write_event(hold.url, kind="checkpoint", step=1, spent_s=50.0, bytes=1000, seconds=0.5)
    target.end(hold.url, State.FINISHED)
    hold.ensure_torn_down()
    hold.ensure_torn_down()
    (one,) = past_runs()
    assert (one.seconds, one.checkpoint_bytes, one.checkpoint_s, one.what) == (
        50.0,
        1000,
        0.5,
        "script play.py of play",
    )


def test_a_run_that_was_cut_short_teaches_nothing(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    from headway.pricing.estimate import past_runs

    hold = lifecycle.launch(plan_of(), detach=True, target=target)
    ended_after(hold, target, 100.0, State.STOPPED)
    assert past_runs() == []
