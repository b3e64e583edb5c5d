"""Launching: one name, one run; everything recorded first; whatever fails is taken back."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import (
    BadInput,
    BadPlan,
    Denied,
    DiskFull,
    NotThere,
    RunBusy,
    StoreError,
    TargetError,
    UnknownRun,
)
from headway.core.types import Handle, Receipt, State, Status
from headway.launcher import lifecycle
from headway.launcher.lifecycle import EXIT_CODES, Outcome, RunHandle
from headway.packaging.code import archive_path, wheel_path
from headway.planning import Plan
from headway.plugins import TARGETS
from headway.rundir import lease
from headway.rundir.index import MAX_NAME_LENGTH, RunIndex
from headway.rundir.layout import RECEIPT, SUBMISSION
from headway.storage import local as folder_store
from headway.storage import open_store, subfolders
from headway.storage.memory import MemoryStore
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


def runs_in(outputs: object) -> set[str]:
    return set(subfolders(open_store(str(outputs)))) - {"code"}


# Names.


def test_a_run_is_named_by_job_plan_and_count(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    plan = plan_of()
    names = [lifecycle.launch(plan, detach=True, target=target).run for _ in range(3)]
    assert names == [f"play-{plan.name_hash}-{number}" for number in (1, 2, 3)]


def test_the_count_goes_on_without_the_index(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    plan = plan_of()
    lifecycle.launch(plan, detach=True, target=target)
    RunIndex().path.unlink()
    assert lifecycle.launch(plan, detach=True, target=target).run.endswith("-2")


def test_the_longest_job_name_still_gives_a_name_that_fits(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    run = lifecycle.launch(plan_of(name="j" * 40), detach=True, target=target).run
    assert len(run) <= MAX_NAME_LENGTH
    assert run.endswith("-1")


def test_launches_at_once_never_share_a_name(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    plan = plan_of()
    gate = threading.Barrier(8)

    def go(_: int) -> str:
        gate.wait()
        return lifecycle.launch(plan, detach=True, target=target).run

    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(go, range(8)))
    assert len(set(names)) == 8
    assert len(target.list_runs()) == 8


def test_of_two_launches_with_one_name_one_is_refused(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    plan = plan_of()
    gate = threading.Barrier(2)

    def go(_: int) -> bool:
        gate.wait()
        try:
            lifecycle.launch(plan, name="mine", detach=True, target=target)
        except BadInput:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(go, range(2))) == [False, True]
    assert len(target.list_runs()) == 1


# Plans that no longer hold.


def test_a_saved_plan_is_launched_as_it_was_reviewed(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    plan = plan_of()
    again = Plan.from_json(plan.to_json())
    assert lifecycle.launch(again, detach=True, target=target).folder.plan() == again


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda plan: replace(plan, headway="0.0.1"), "made by Headway 0.0.1"),
        (lambda plan: replace(plan, processes=5), "requests"),
        (lambda plan: replace(plan, data={"builtin:scenes": "builtin:scenes@0.0.1"}), "data"),
        (
            lambda plan: replace(plan, code=replace(plan.code, wheel_sha256="0" * 64)),
            "differs from the one in the plan",
        ),
    ],
)
def test_a_plan_that_no_longer_holds_is_refused_before_anything_is_made(
    plan_of: Callable[..., Plan], target: FakeTarget, change: Callable[[Plan], Plan], why: str
) -> None:
    plan = change(plan_of())
    with pytest.raises(BadPlan, match=why):
        lifecycle.launch(plan, detach=True, target=target)
    assert runs_in(plan.job["outputs"]) == set()
    assert target.list_runs() == []


@pytest.mark.parametrize("damage", ["gone", "damaged", "other"])
def test_code_that_is_not_the_planned_one_is_never_sent(
    plan_of: Callable[..., Plan], target: FakeTarget, damage: str
) -> None:
    plan = plan_of()
    path = archive_path(plan.code.sha256)
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"\x1f\x8b rubbish" if damage == "damaged" else b"\x1f\x8b\x08\x00" + bytes(30))
    with pytest.raises(BadPlan, match="headway plan"):
        lifecycle.launch(plan, detach=True, target=target)
    assert list(open_store(str(plan.job["outputs"])).list()) == []


def test_code_and_wheel_are_sent_once(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    plan = plan_of()
    lifecycle.launch(plan, detach=True, target=target)
    store = open_store(f"{plan.job['outputs']}/code")
    before = [(entry.key, entry.version) for entry in store.list()]
    assert [key for key, _ in before] == [f"{plan.code.sha256}.tar.gz", plan.code.wheel]
    archive_path(plan.code.sha256).unlink()
    wheel_path(plan.code.wheel).unlink()
    lifecycle.launch(plan, detach=True, target=target)
    assert [(entry.key, entry.version) for entry in store.list()] == before


def test_variables_and_secrets_given_at_launch_are_part_of_the_runs_plan(
    plan_of: Callable[..., Plan], target: FakeTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hidden-value")
    hold = lifecycle.launch(plan_of(), env={"A": "1"}, secrets=["TOKEN"], detach=True, target=target)
    kept = hold.folder.plan()
    assert kept.job["env"] == {"A": "1"}
    assert kept.job["secrets"] == {"TOKEN": {"as": "env", "ref": "env:TOKEN"}}
    assert "hidden-value" not in kept.to_json()
    with pytest.raises(BadInput, match="export MISSING"):
        lifecycle.launch(plan_of(), secrets=["MISSING"], target=target)


# Records first.


class Watching(FakeTarget):
    """Looks at what is recorded at the moment of the first request."""

    def submit(self, plan: Plan, run: str) -> Handle:
        self.announced = open_store(f"{plan.job['outputs']}/{run}").read(SUBMISSION)
        self.indexed = [row.name for row in RunIndex().rows()]
        return super().submit(plan, run)


def test_what_is_about_to_be_created_is_recorded_before_the_first_request(plan_of: Callable[..., Plan]) -> None:
    target = Watching(behaviour=play_of)
    hold = lifecycle.launch(plan_of(), detach=True, target=target)
    assert b'"target": "fake"' in target.announced
    assert target.indexed == [hold.run]


def test_an_index_that_cannot_be_written_does_not_stop_a_launch(
    plan_of: Callable[..., Plan], target: FakeTarget, tmp_path: Path
) -> None:
    said: list[str] = []
    hold = lifecycle.launch(
        plan_of(FakeBehaviour()), target=target, run_index=RunIndex(Path("/dev/full"), log=said.append)
    )
    assert hold.outcome().status.state is State.FINISHED
    assert "not affected" in said[0]


# What fails is taken back.


def test_a_full_disk_at_any_write_of_a_launch_leaves_no_run_and_nothing_running(
    plan_of: Callable[..., Plan], target: FakeTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = folder_store._write_durably
    failures = 0
    for fails_at in count(1):
        plan, writes = plan_of(outputs=str(tmp_path / f"runs-{fails_at}")), count(1)

        def sometimes(path: Path, body: Any, writes: Any = writes, fails_at: int = fails_at) -> None:
            if next(writes) == fails_at:
                raise OSError(errno.ENOSPC, "No space left on device")
            writing(path, body)

        monkeypatch.setattr(folder_store, "_write_durably", sometimes)
        waiting = FakeTarget()  # nothing begins by itself, so that every write is the launcher's own
        try:
            lifecycle.launch(plan, name="r", detach=True, target=waiting)
            break
        except DiskFull:
            failures += 1
        assert waiting.list_runs() == []
        assert runs_in(plan.job["outputs"]) == set(), f"write {fails_at}"
        assert [row.url for row in RunIndex().rows()] == []
    assert failures >= 5  # code, wheel, plan, intent, details


def test_a_folder_that_may_not_be_written_is_said_and_nothing_is_made(
    plan_of: Callable[..., Plan], target: FakeTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, body: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    plan = plan_of(outputs=str(tmp_path / "runs"))
    monkeypatch.setattr(folder_store, "_write_durably", refused)
    with pytest.raises(Denied, match="chmod"):
        lifecycle.launch(plan, detach=True, target=target)
    assert runs_in(tmp_path / "runs") == set()


def test_a_timing_variable_that_was_replaced_is_reported(
    plan_of: Callable[..., Plan], target: FakeTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setenv("HEADWAY_RENEW_S", "0.5")
    lifecycle.launch(plan_of(), detach=True, target=target, say=said.append)
    assert "HEADWAY_RENEW_S is ignored: write HEADWAY_TIMING=renew=0.5" in said


def test_ctrl_c_in_the_middle_of_a_submit_takes_it_down(plan_of: Callable[..., Plan]) -> None:
    class Interrupted(FakeTarget):
        def submit(self, plan: Plan, run: str) -> Handle:
            super().submit(plan, run)
            raise KeyboardInterrupt

    target, plan = Interrupted(), plan_of()
    with pytest.raises(KeyboardInterrupt):
        lifecycle.launch(plan, detach=True, target=target)
    assert target.list_runs() == []
    assert runs_in(plan.job["outputs"]) == set()


def test_what_cannot_be_taken_back_is_said_and_stays_findable(plan_of: Callable[..., Plan]) -> None:
    class Sticky(FakeTarget):
        def submit(self, plan: Plan, run: str) -> Handle:
            raise TargetError("quota exceeded")

        def down(self, handle: Handle) -> Receipt:
            return Receipt(run=handle.run, created=("disk 7",), left=("disk 7",))

    said: list[str] = []
    plan = plan_of()
    with pytest.raises(TargetError, match="quota"):
        lifecycle.launch(plan, name="r", detach=True, target=Sticky(), say=said.append)
    assert "disk 7" in said[-1]
    store = open_store(f"{plan.job['outputs']}/r")
    assert b"disk 7" in store.read(RECEIPT)
    assert [row.name for row in RunIndex().rows()] == ["r"]


def test_a_resume_that_cannot_be_submitted_leaves_the_run_as_it_was(
    plan_of: Callable[..., Plan], target: FakeTarget
) -> None:
    hold = lifecycle.launch(plan_of(), detach=True, target=target)
    hold.stop()
    target.capacity = 0
    with pytest.raises(TargetError, match="no room"):
        lifecycle.resume(hold.url, target=target)
    assert hold.status().state is State.STOPPED
    target.capacity = None
    assert lifecycle.resume(hold.url, target=target).status().state is State.RUNNING


# Ends.


@pytest.mark.parametrize(
    ("state", "code"),
    [("finished", 0), ("failed", 1), ("budget", 3), ("stopped", 4), ("lost", 4), ("running", 0), ("pending", 0)],
)
def test_states_become_the_documented_exit_codes(state: str, code: int) -> None:
    status = Status(state=State(state))
    assert Outcome(run="r", status=status).exit_code == code
    assert Outcome(run="r", status=status, receipt=Receipt(run="r", left=("a pod",))).exit_code == 5
    assert set(EXIT_CODES) == set(State)


def test_an_attached_launch_hands_over_every_line_and_returns_at_the_end(
    plan_of: Callable[..., Plan], target: FakeTarget
) -> None:
    lines: list[str] = []
    hold = lifecycle.launch(
        plan_of(FakeBehaviour(lines=("a", "b"))), target=target, on_line=lambda line: lines.append(line.text)
    )
    assert lines == ["a", "b"]
    assert hold.outcome().status.state is State.FINISHED


def test_whoever_sees_the_end_first_takes_it_down_and_writes_the_receipt(
    plan_of: Callable[..., Plan], target: FakeTarget
) -> None:
    hold = lifecycle.launch(plan_of(FakeBehaviour()), detach=True, target=target)
    assert len(target.list_runs()) == 1
    assert hold.folder.read_json(RECEIPT) is None
    hold.status()
    assert target.list_runs() == []
    written = hold.folder.read_json(RECEIPT)
    hold.status()
    assert hold.folder.read_json(RECEIPT) == written, "it is written once"


def test_a_receipt_of_an_earlier_attempt_does_not_stand_for_a_later_one(
    plan_of: Callable[..., Plan], target: FakeTarget
) -> None:
    hold = lifecycle.launch(plan_of(), detach=True, target=target)
    hold.stop()
    hold = lifecycle.resume(hold.url, target=target)
    target.end(hold.url, State.FINISHED)
    assert hold.status().state is State.FINISHED
    receipt = hold.folder.read_json(RECEIPT)
    assert receipt is not None
    assert (receipt["attempt"], receipt["left"]) == (2, [])
    assert target.list_runs() == []


def test_a_full_disk_does_not_keep_a_run_from_being_stopped(
    plan_of: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = FakeTarget()
    said: list[str] = []
    hold = lifecycle.launch(plan_of(outputs=str(tmp_path / "runs")), detach=True, target=target, say=said.append)

    def full(path: Path, body: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folder_store, "_write_durably", full)
        outcome = hold.stop()
    assert outcome.receipt == Receipt(
        run=hold.run, created=(f"worker 0 of {hold.run}",), removed=(f"worker 0 of {hold.run}",)
    )
    assert target.list_runs() == []
    assert len([text for text in said if "No space" in text or "no space" in text]) == 2
    hold.status()
    assert hold.folder.read_json(RECEIPT), "the next verb writes what could not be written"


def test_a_damaged_receipt_is_replaced_by_a_whole_one(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = lifecycle.launch(plan_of(FakeBehaviour()), detach=True, target=target)
    hold.folder.store.write(RECEIPT, b"{ half")
    hold.status()
    assert (hold.folder.read_json(RECEIPT) or {})["left"] == []


def test_a_run_in_the_ledger_carries_the_state_it_was_last_seen_in(
    plan_of: Callable[..., Plan], target: FakeTarget
) -> None:
    hold = lifecycle.launch(plan_of(), detach=True, target=target)
    assert RunIndex().rows()[0].state == "pending"
    hold.status()
    assert RunIndex().rows()[0].state == "running"
    hold.stop()
    assert RunIndex().rows()[0].state == "stopped"


# Resuming what cannot be seen from here.


@pytest.fixture
def far(plan_of: Callable[..., Plan]) -> RunHandle:
    """A run that another machine holds."""
    target = FakeTarget()
    hold = lifecycle.launch(plan_of(), detach=True, target=target)
    target.begin(hold.url)
    target._attempts.clear()  # it is another machine that knows of it
    record, _ = lease.read(hold.folder.store)
    assert record is not None
    hold.folder.write_json(lease.KEY, {**asdict(record), "boot": "another machine's", "host": "far-away"})
    return hold


def test_a_lease_that_nobody_renews_is_waited_for_and_then_taken(far: RunHandle) -> None:
    assert isinstance(far.target, FakeTarget)
    said: list[str] = []
    again = lifecycle.resume(far.url, target=far.target, say=said.append, patience_s=0.2)
    assert "far-away" in said[0]
    assert again.status().state is State.PENDING
    assert far.target.begin(far.url) == 2


def test_a_lease_that_is_renewed_while_we_wait_is_a_live_run(far: RunHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    beats = count(1)

    def beat(_: float) -> None:
        known = far.folder.read_json(lease.KEY)
        far.folder.write_json(lease.KEY, {**(known or {}), "beat": next(beats)})

    monkeypatch.setattr("headway.core.retry.time.sleep", beat)
    with pytest.raises(RunBusy):
        lifecycle.resume(far.url, target=far.target, patience_s=5)


# Bad folders.


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    for verb in (lifecycle.observe, lifecycle.down, lifecycle.stop, lifecycle.resume, lifecycle.follow):
        with pytest.raises(UnknownRun, match=r"plan\.json"):
            verb(str(tmp_path))


def test_a_run_whose_plan_is_damaged_can_still_be_taken_down(plan_of: Callable[..., Plan], target: FakeTarget) -> None:
    hold = lifecycle.launch(plan_of(), detach=True, target=target)
    hold.folder.store.write("plan.json", b'{"schema": 1')
    assert lifecycle.open_run(hold.url, target=target).down().left == ()
    assert target.list_runs() == []
    with pytest.raises(BadPlan):
        lifecycle.resume(hold.url, target=target)


def test_a_store_that_ignores_conditions_is_refused(
    plan_of: Callable[..., Plan], target: FakeTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = MemoryStore.write
    plan = plan_of()
    monkeypatch.setattr(MemoryStore, "write", lambda self, key, body, *, when=None: writing(self, key, body))
    with pytest.raises(StoreError, match="ignores the conditions"):
        lifecycle.launch(plan, detach=True, target=target)
    assert runs_in(plan.job["outputs"]) == set()
    with pytest.raises(NotThere):
        open_store(f"{plan.job['outputs']}/r").stat("plan.json")
