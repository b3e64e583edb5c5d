"""A budget is a total over attempts: what is spent is known from the folder, and a spent one starts nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headway import launcher
from headway.errors import BadInput
from headway.launcher import Launched
from headway.planning import Plan
from headway.planning.model import Limits
from headway.spec.model import Budget
from headway.spent import rate_usd, remainder, spent_s, spent_usd, with_budget
from headway.targets.base import State
from headway.targets.fake import FakeTarget, Play
from headway.targets.registry import TARGETS
from tests.contract.plays import FAKE, plan_play, play_of, write_project

WAITS = Play(lines=("waits",), until_stopped=True)


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(TARGETS, "fake", FAKE)


@pytest.fixture
def target() -> FakeTarget:
    return FakeTarget(plays=play_of)


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[..., Plan]:
    project = write_project(tmp_path / "project")
    outputs = f"memory://{os.urandom(6).hex()}/runs"
    return lambda play=WAITS, **more: plan_play(project, play, **{"on": "fake", "outputs": outputs, **more})


def ended_after(hold: Launched, target: FakeTarget, seconds: float, state: State = State.BUDGET) -> None:
    target._tell(hold.url, kind="checkpoint", step=1, spent_s=seconds)
    target.end(hold.url, state)
    hold.settle()


def billed(plan: Plan, **price: object) -> Plan:
    return replace(plan, price={"usd_per_hour": 2.0, "spot_usd_per_hour": 0.5, "billed": "on demand", **price})


def test_spent_time_is_the_supervisors_own_count(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = launcher.launch(plan_of(), detach=True, target=target)
    assert spent_s(hold.folder) == 0.0
    ended_after(hold, target, 1234.5)
    assert spent_s(hold.folder) == 1234.5


def test_a_killed_supervisor_has_spent_what_its_lease_shows(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = launcher.launch(plan_of(), detach=True, target=target)
    target._tell(hold.url, kind="attempt", number=1, held_from_s=100.0)
    record = json.loads(hold.folder.store.read("lease.json"))
    hold.folder.store.write("lease.json", json.dumps({**record, "beat": 7}).encode())
    assert spent_s(hold.folder) == 170.0


def test_a_spent_budget_is_refused_and_says_how_to_go_on(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = launcher.launch(plan_of(budget=Budget(hours=1)), detach=True, target=target)
    ended_after(hold, target, 3590.0)
    with pytest.raises(BadInput, match=r"spent: 1.00 of 1.00 hours(.|\n)*--budget-hours 2"):
        launcher.resume(hold.url, target=target)
    assert target.found() == []


def test_with_a_new_total_it_goes_on_and_the_folder_knows(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = launcher.launch(plan_of(budget=Budget(hours=1)), detach=True, target=target)
    ended_after(hold, target, 3590.0)
    again = launcher.resume(hold.url, target=target, budget_hours=3)
    assert again.folder.plan().limits.budget_s == 3 * 3600
    assert again.folder.plan().job["budget"] == {"hours": 3, "usd": None}
    again.down()


def test_some_budget_left_is_enough_to_go_on(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = launcher.launch(plan_of(budget=Budget(hours=1)), detach=True, target=target)
    ended_after(hold, target, 1800.0, State.STOPPED)
    launcher.resume(hold.url, target=target).down()


def test_the_remainder_is_the_limit_of_the_next_start(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(budget=Budget(hours=1))
    assert remainder(plan, 600.0).limits.budget_s == 3000.0
    assert remainder(plan, 3599.0).limits.budget_s == 60.0
    free = replace(plan, limits=Limits(budget_s=None, max_wait_s=None, grace_s=1, second=""))
    assert remainder(free, 600.0) == free


def test_money_is_time_by_the_price_that_was_reviewed(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of()
    assert rate_usd(plan) is None
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
    with pytest.raises(BadInput, match="dollars limit nothing"):
        with_budget(plan_of(), usd=10.0)
    with pytest.raises(BadInput, match="more than nothing"):
        with_budget(plan_of(), hours=-1)


def test_what_a_finished_run_took_is_remembered_once(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    from headway.price.experience import remembered

    hold = launcher.launch(plan_of(), detach=True, target=target)
    target._tell(hold.url, kind="checkpoint", step=1, spent_s=50.0, bytes=1000, seconds=0.5)
    target.end(hold.url, State.FINISHED)
    hold.settle()
    hold.settle()
    (one,) = remembered()
    assert (one.seconds, one.checkpoint_bytes, one.checkpoint_s, one.what) == (50.0, 1000, 0.5, "script:play.py")


def test_a_run_that_was_cut_short_teaches_nothing(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    from headway.price.experience import remembered

    hold = launcher.launch(plan_of(), detach=True, target=target)
    ended_after(hold, target, 100.0, State.STOPPED)
    assert remembered() == []
