"""The fake keeps every promise of a target, and adds none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headway.core.errors import NotThere, UnknownRun
from headway.core.types import State, Target
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.plugins import TARGETS
from headway.targets.fake import FakeBehaviour, FakeTarget
from tests.contract.plays import FAKE, play_of
from tests.contract.suite import TargetContract


class TestFake(TargetContract):
    kind = "fake"
    runs_scripts = False

    @pytest.fixture(autouse=True)
    def _registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(TARGETS, "fake", FAKE)

    @pytest.fixture
    def target(self) -> Target:
        return FakeTarget(behaviour=play_of)

    @pytest.fixture
    def outputs(self, request: pytest.FixtureRequest) -> str:
        return f"memory://{request.node.name}/runs"

    def half_gone(self, hold: RunHandle) -> None:
        assert isinstance(hold.target, FakeTarget)
        hold.target.workers[hold.url].pop()

    @contextmanager
    def lost_host(self, hold: RunHandle) -> Iterator[None]:
        assert isinstance(hold.target, FakeTarget)
        yield
        hold.target.disappear(hold.url)

    @contextmanager
    def failing_submit(self, monkeypatch: pytest.MonkeyPatch, target: Target) -> Iterator[None]:
        assert isinstance(target, FakeTarget)
        target.capacity = 1
        yield

    def test_a_run_moves_only_when_the_test_says_so(self, plan_of: Callable[..., Plan]) -> None:
        target = FakeTarget()
        hold = lifecycle.launch(plan_of(FakeBehaviour()), detach=True, target=target)
        assert hold.status().state is State.PENDING
        target.begin(hold.url)
        target.print_line(hold.url, "a word")
        assert hold.status().state is State.RUNNING
        target.end(hold.url, State.BUDGET, reason="5 USD are spent")
        assert target.workers != {}
        assert hold.outcome().exit_code == 3
        assert target.workers == {}, "whoever sees the end takes it down"

    def test_a_machine_that_vanishes_leaves_a_lost_run_that_can_go_on(self, plan_of: Callable[..., Plan]) -> None:
        target = FakeTarget()
        hold = lifecycle.launch(plan_of(FakeBehaviour()), detach=True, target=target)
        target.begin(hold.url)
        target.disappear(hold.url)
        assert hold.outcome().exit_code == 4
        lifecycle.resume(hold.url, target=target)
        assert target.begin(hold.url) == 2

    def test_it_refuses_a_run_that_was_never_claimed_or_announced(self, plan_of: Callable[..., Plan]) -> None:
        with pytest.raises((NotThere, UnknownRun)):
            FakeTarget().submit(plan_of(FakeBehaviour()), "from-nowhere")
