"""The watchdog by a simulated clock: it notices what hangs, and stays silent over hours of slow work."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from headway.supervisor.watchdog import Load, Stall, Watchdog

BUSY, IDLE = Load(cores=1.2), Load(cores=0.01, bytes_per_s=2_000.0)


class Simulation:
    """A watchdog with a clock that `run` advances second by second."""

    def __init__(self, **options: float | None) -> None:
        self.now = 1000.0
        self.dog = Watchdog(clock=lambda: self.now, **options)  # type: ignore[arg-type]
        self.stalls: list[tuple[float, Stall]] = []
        self.step = 0

    def run(self, seconds: float, load: Load, each_s: Callable[[], None] = lambda: None) -> Stall | None:
        """Let time pass; return the first stall, if there is one."""
        found, end, last = None, self.now + seconds, self.now
        while self.now < end:
            self.now += min(1.0, end - self.now)
            if self.now - last >= 5:
                last = self.now
                self.dog.load(0, load)
            each_s()
            stall = self.dog.check()
            if stall is not None:
                self.stalls.append((self.now, stall))
                found = found or stall
        return found

    def steps(self, count: int, seconds: float, load: Load = BUSY, phase: str = "step", epoch: int = 0) -> None:
        for _ in range(count):
            self.run(seconds, load)
            self.step += 1
            self.dog.report(self.step, phase, epoch)

    def during(self, phase: str, seconds: float, load: Load, epoch: int = 0) -> None:
        self.dog.report(self.step, phase, epoch)
        self.run(seconds, load)


def test_a_step_that_hangs_is_noticed_within_two_usual_steps_and_thirty_seconds() -> None:
    for usual_s in (0.2, 3.0, 40.0):
        play = Simulation()
        play.steps(30, usual_s)
        began = play.now
        stall = play.run(3600, IDLE)
        assert stall is not None
        assert stall.phase == "step"
        assert play.stalls[0][0] - began <= 2 * usual_s + 30 + 6  # the load is measured every five seconds
        assert not stall.act, "nothing is ended that early"
        acted = next(at for at, each in play.stalls if each.act)
        assert acted - began == pytest.approx(max(600, 10 * usual_s), abs=2)


def test_a_rank_that_spins_in_a_collective_is_noticed_after_ten_minutes() -> None:
    play = Simulation()
    play.steps(30, 0.5)
    began = play.now
    assert play.run(590, BUSY) is None
    assert play.run(60, BUSY) is not None
    assert play.stalls[0][0] - began <= 602


def test_a_stopped_rank_is_noticed_though_the_others_spin() -> None:
    play = Simulation()
    play.steps(30, 0.5)
    assert play.run(60, Load(cores=3.0, stopped=(1,))) is not None


def test_the_limit_of_the_job_counts_for_steps_whatever_the_load() -> None:
    play = Simulation(stall_s=60.0)
    play.steps(30, 0.5)
    stall = play.run(65, BUSY)
    assert stall is not None
    assert stall.act


def test_a_program_that_prints_counts_as_stalled_only_when_it_does_nothing() -> None:
    play = Simulation()
    for _ in range(20):
        play.run(10, BUSY)
        play.dog.activity()
    assert play.run(4 * 3600, BUSY) is None, "an epoch without output"
    play.dog.activity()
    fresh = Simulation()
    for _ in range(20):
        fresh.run(10, BUSY)
        fresh.dog.activity()
    assert fresh.run(301, IDLE) is not None


def test_a_supervisor_that_was_held_still_itself_does_not_blame_the_ranks() -> None:
    play = Simulation()
    play.steps(30, 0.5)
    play.now += 7200
    play.dog.load(0, IDLE)
    assert play.dog.check() is None
    play.steps(5, 0.5)
    assert play.stalls == []


def test_ten_hours_of_slow_epochs_evaluations_and_checkpoints_raise_no_alarm() -> None:
    chance = random.Random(7)
    play = Simulation()
    play.run(40 * 60, Load(cores=0.02, bytes_per_s=30e6))  # a download
    play.run(25 * 60, BUSY)  # a first compilation
    began = play.now
    for epoch in range(100):
        for number in range(40):
            slow = 60.0 if number % 17 == 3 else 1.0  # a picture from a cold bucket, a shuffled buffer
            play.steps(1, slow * chance.uniform(0.3, 1.5), BUSY if slow == 1.0 else Load(bytes_per_s=2e6), epoch=epoch)
        play.during("between epochs", chance.uniform(1, 90), BUSY, epoch)
        play.during("evaluation", chance.uniform(60, 900), BUSY, epoch)
        play.during("checkpoint", chance.uniform(1, 240), Load(cores=0.01, bytes_per_s=40e6), epoch)
        if epoch == 30:
            play.during("step", 8 * 60, BUSY, epoch)  # a recompilation for another shape
        if play.now - began > 10 * 3600:
            break
    assert play.now - began > 10 * 3600
    assert play.stalls == []


def test_hours_of_a_program_that_only_prints_now_and_then_raise_no_alarm() -> None:
    chance = random.Random(11)
    play = Simulation()
    while play.now < 1000 + 10 * 3600:
        for _ in range(chance.randrange(1, 50)):
            play.run(chance.uniform(0.2, 20), BUSY)
            play.dog.activity()
        play.run(chance.uniform(10, 5400), BUSY)  # an epoch that says nothing
        play.run(chance.uniform(10, 200), IDLE)  # an upload elsewhere, a lock
        play.dog.activity()
    assert play.stalls == []


def test_the_second_attempt_knows_how_long_steps_take_but_not_how_long_it_starts() -> None:
    play = Simulation()
    play.steps(30, 0.5)
    play.dog.begin()
    assert play.run(290, IDLE) is None
    play.dog.report(30, "step")
    assert play.run(45, IDLE) is not None
