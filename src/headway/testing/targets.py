"""The promises of a target: a target's tests inherit `TargetContract` and say how to reach it."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headway.core.errors import BadInput, HeadwayError, RunBusy, UnknownRun
from headway.core.types import Handle, State, Target
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.rundir import lease, submission
from headway.rundir.index import MAX_NAME_LENGTH
from headway.rundir.layout import RECEIPT, STOP, SUBMISSION
from headway.rundir.lease import spent_s
from headway.rundir.submission import owner
from headway.spec import Accelerator, Budget, Resources, Secret
from headway.storage import Store, open_store, subfolders
from headway.targets.fake import FakeBehaviour
from headway.targets.local import processes as local_processes
from headway.testing.counting import COUNT, WRITE, count_to, counted, write_counting, write_writing
from headway.testing.plays import plan_play, write_project
from headway.testing.waiting import wait_until

Test = TypeVar("Test", bound=Callable[..., None])


def in_short_runs(test: Test) -> Test:
    """Mark a test as one of those that cover the contract where there is no time for all."""
    test.in_short_runs = True  # type: ignore[attr-defined]
    return test


# Not one text: this file is in the wheel that a run sends, where it must not be found.
CANARY = "-".join(("canary", "5f3a", "never", "to", "be", "seen"))
WAITS = FakeBehaviour(lines=("rank {rank} of {world} waits",), until_stopped=True)
COUNTS_DOWN = FakeBehaviour(lines=("rank {rank} waits, {HEADWAY_DEADLINE_S} s are left",), until_stopped=True)


def held_for(store: Store, seconds: float) -> None:
    """Give a lease the beats of one that has been held for so long. Its holder must not write it any more."""
    record, version = lease.read(store)
    assert record is not None
    assert record.holder is not None
    each_s = float(getattr(record, "renew_s", lease.RENEW_S))
    aged = asdict(replace(record, beat=round(seconds / each_s)))
    store.write(lease.KEY, json.dumps(aged).encode(), when=version)


def skew(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """This process believes that it is another time of day. Durations are as they were."""
    right = time.time

    class Skewed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(right() + seconds, tz)

    monkeypatch.setattr(time, "time", lambda: right() + seconds)
    monkeypatch.setattr(submission, "datetime", Skewed)


def copied(url: str, name: str) -> str:
    """What `cp -r` makes of a run folder, or a bucket's copy of it: all that is in it, beside it under another name."""
    other = f"{url.rpartition('/')[0]}/{name}"
    if "://" not in url:
        shutil.copytree(url, other, symlinks=True)
        return other
    there, here = open_store(url), open_store(other)
    for entry in there.list():
        here.write(entry.key, there.read(entry.key))
    return other


class TargetContract(ABC):
    """Subclasses give `kind`, a fixture `target`, `half_gone`, `lost_host` and `failing_submit`."""

    kind: str

    @abstractmethod
    def half_gone(self, hold: RunHandle) -> None:
        """Remove part of a live run from the target behind Headway's back, without a farewell."""

    @abstractmethod
    def lost_host(self, hold: RunHandle) -> AbstractContextManager[None]:
        """Lose the machine of a live run: inside it nothing there moves any more, after it everything there is gone.

        The run has no last word, and nothing but Headway starts it again.
        """

    @abstractmethod
    def failing_submit(self, monkeypatch: pytest.MonkeyPatch, target: Target) -> AbstractContextManager[None]:
        """Inside it, a submit of two ranks fails after it has begun to make things."""

    # What the tests below share.

    @pytest.fixture(autouse=True)
    def _own_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))

    @pytest.fixture
    def outputs(self, tmp_path: Path) -> str:
        return str(tmp_path / "runs")

    @pytest.fixture
    def plan_of(self, tmp_path: Path, outputs: str) -> Callable[..., Plan]:
        project = write_project(tmp_path / "project")
        return lambda play, **more: plan_play(project, play, **{"on": self.kind, "outputs": outputs, **more})

    @pytest.fixture
    def start(self, target: Target, plan_of: Callable[..., Plan]) -> Iterator[Callable[..., RunHandle]]:
        """Launch a play, detached. Whatever is still there at the end of the test is taken down."""
        holds: list[RunHandle] = []

        def begin(play: FakeBehaviour, *, run: str | None = None, **more: object) -> RunHandle:
            hold = lifecycle.launch(plan_of(play, **more), name=run, detach=True, target=target)
            holds.append(hold)
            return hold

        yield begin
        for hold in holds:
            hold.target.down(hold.target_handle)

    def running(self, hold: RunHandle) -> RunHandle:
        def prints() -> bool:
            status = hold.target.status(hold.target_handle)
            assert not status.state.ended, status
            return any("waits" in line.text for line in hold.logs())

        wait_until(prints, f"{hold.run} prints")
        return hold

    def texts(self, hold: RunHandle, rank: int | None = 0) -> list[str]:
        return [line.text for line in hold.logs(rank=rank)]

    # The promises.

    @in_short_runs
    def test_a_job_runs_to_success_and_nothing_is_left(self, start: Callable[..., RunHandle], target: Target) -> None:
        hold = start(FakeBehaviour(lines=("hello from {rank} of {world}",)))
        outcome = hold.wait()
        assert (outcome.status.state, outcome.exit_code) == (State.FINISHED, 0)
        assert self.texts(hold) == ["hello from 0 of 1"]
        assert outcome.receipt is not None
        assert outcome.receipt.created
        assert outcome.receipt.left == ()
        assert hold.folder.read_json(RECEIPT)
        assert target.list_runs() == []

    @in_short_runs
    def test_a_failing_script_is_reported_with_its_exit_code_and_last_lines(
        self, start: Callable[..., RunHandle]
    ) -> None:
        hold = start(FakeBehaviour(lines=("all is well", "the disk is on fire"), exit_code=7))
        outcome = hold.wait()
        assert (outcome.status.state, outcome.exit_code) == (State.FAILED, 1)
        assert "7" in outcome.status.reason
        (exit_,) = [event for event in hold.folder.events() if event["kind"] == "rank_exit"]
        assert exit_["code"] == 7
        assert exit_["lines"][-1] == "the disk is on fire"

    def test_logs_are_complete_and_in_order_from_before_the_start(self, start: Callable[..., RunHandle]) -> None:
        lines = tuple(f"line {i}" for i in range(3000))
        hold = start(FakeBehaviour(lines=lines))
        followed = [line.text for line in hold.logs(follow=True, rank=0)]
        assert followed == list(lines)
        assert self.texts(hold) == list(lines)

    @in_short_runs
    def test_a_follower_sees_lines_while_the_run_is_live_and_ends_with_it(
        self, start: Callable[..., RunHandle]
    ) -> None:
        hold = start(WAITS)
        seen: list[str] = []
        follower = threading.Thread(
            target=lambda: seen.extend(line.text for line in hold.logs(follow=True, rank=0)), daemon=True
        )
        follower.start()
        self.running(hold)
        assert follower.is_alive()
        hold.down()
        follower.join(60)
        assert not follower.is_alive()
        assert "rank 0 of 1 waits" in seen

    @in_short_runs
    def test_stop_ends_it_and_it_can_be_resumed(self, start: Callable[..., RunHandle], target: Target) -> None:
        hold = self.running(start(WAITS))
        outcome = hold.stop("enough for today")
        assert (outcome.status.state, outcome.exit_code) == (State.STOPPED, 4)
        assert target.list_runs() == []
        assert hold.folder.read_json(STOP)
        again = lifecycle.resume(hold.url, target=target)
        wait_until(lambda: len(self.texts(again)) == 2, "the second attempt prints")
        assert hold.folder.read_json(STOP) is None
        assert again.target.status(again.target_handle).state is State.RUNNING
        assert again.stop().status.state is State.STOPPED
        assert [line.text for line in again.logs(rank=0)] == ["rank 0 of 1 waits"] * 2

    def test_a_second_start_on_a_live_run_is_refused(self, start: Callable[..., RunHandle], target: Target) -> None:
        hold = self.running(start(WAITS, run="mine"))
        with pytest.raises(RunBusy):
            lifecycle.resume(hold.url, target=target)
        with pytest.raises(BadInput, match="headway resume mine"):
            start(WAITS, run="mine")
        assert hold.target.status(hold.target_handle).state is State.RUNNING

    def test_a_finished_run_is_not_started_again(self, start: Callable[..., RunHandle], target: Target) -> None:
        hold = start(FakeBehaviour())
        hold.wait()
        said: list[str] = []
        again = lifecycle.resume(hold.url, target=target, say=said.append)
        assert "already finished" in said[0]
        assert again.outcome().exit_code == 0
        assert [event["kind"] for event in hold.folder.events()].count("attempt") == 1

    @in_short_runs
    def test_down_twice_is_the_same_as_once(self, start: Callable[..., RunHandle], target: Target) -> None:
        hold = self.running(start(WAITS))
        first = hold.down()
        second = hold.down()
        assert first.removed
        assert first.left == second.left == ()
        assert set(first.removed) <= set(second.removed)
        assert target.list_runs() == []

    def test_down_of_something_half_gone_removes_the_other_half(
        self, start: Callable[..., RunHandle], target: Target
    ) -> None:
        hold = self.running(start(WAITS, ranks=2))
        self.half_gone(hold)
        assert hold.down().left == ()
        assert target.list_runs() == []
        assert hold.target.status(hold.target_handle).state.resumable

    @in_short_runs
    def test_a_submit_that_fails_half_way_leaves_nothing(
        self, plan_of: Callable[..., Plan], target: Target, outputs: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = plan_of(WAITS, ranks=2)
        said: list[str] = []
        with self.failing_submit(monkeypatch, target), pytest.raises(HeadwayError):
            lifecycle.launch(plan, name="unlucky", detach=True, target=target, say=said.append)
        assert "was removed" in said[-1]
        assert target.list_runs() == []
        assert "unlucky" not in subfolders(open_store(outputs))

    @in_short_runs
    def test_what_a_lost_client_left_is_found_and_removed_without_local_state(
        self, start: Callable[..., RunHandle], target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hold = self.running(start(WAITS))
        hold.folder.store.delete(SUBMISSION)
        monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "another-home"))
        (found,) = target.list_runs()
        assert (found.run, found.url) == (hold.run, hold.url)
        assert lifecycle.open_run(found.url, target=target).down().left == ()
        assert target.list_runs() == []

    def test_a_run_that_does_not_exist_has_no_status(self, target: Target, outputs: str) -> None:
        with pytest.raises(UnknownRun):
            target.status(Handle(target=self.kind, run="nobody", url=f"{outputs}/nobody"))

    def test_a_copy_of_a_live_run_can_be_stopped_and_taken_down_and_the_original_runs_on(
        self, start: Callable[..., RunHandle], target: Target
    ) -> None:
        hold = self.running(start(WAITS, run="original"))
        url = copied(hold.url, "copy")
        said: list[str] = []
        copy = lifecycle.open_run(url, target=target, say=said.append)
        status = copy.status()
        assert status.state is State.LOST
        assert f"copy of {hold.url}" in status.reason
        for receipt in (copy.down(), copy.stop().receipt):
            assert receipt is not None
            assert receipt.removed == receipt.left == ()
        assert any(hold.url in line and "left unchanged" in line for line in said)
        assert list(copy.logs(follow=True, rank=0))
        assert hold.target.status(hold.target_handle).state is State.RUNNING
        assert [found.url for found in target.list_runs()] == [hold.url]

    def test_a_copy_of_a_live_run_goes_on_as_a_run_of_its_own(
        self, start: Callable[..., RunHandle], target: Target
    ) -> None:
        hold = self.running(start(WAITS, run="original"))
        again = lifecycle.resume(copied(hold.url, "copy"), target=target)
        try:
            wait_until(lambda: len(self.texts(again)) == 2, "the copy prints")
            assert again.target.status(again.target_handle).state is State.RUNNING
            assert hold.target.status(hold.target_handle).state is State.RUNNING
            assert {found.url for found in target.list_runs()} == {hold.url, again.url}
            assert again.stop().status.state is State.STOPPED
            assert hold.target.status(hold.target_handle).state is State.RUNNING
            assert len(self.texts(hold)) == 1
        finally:
            target.down(again.target_handle)

    def test_what_is_made_says_whose_it_is_and_whoever_resumes_it_owns_the_rest(
        self, start: Callable[..., RunHandle], target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("USER", "alice")
        hold = self.running(start(WAITS))
        mine = owner()
        (found,) = target.list_runs()
        assert mine.id
        assert found.details["owner"] == mine.id
        assert "alice" in found.details["owner_name"]
        assert mine.id not in hold.folder.plan().to_json(), "the same job is the same plan, whoever makes it"
        hold.stop()
        monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home-of-bob"))
        monkeypatch.setenv("USER", "bob")
        again = lifecycle.resume(hold.url, target=target)
        wait_until(lambda: len(self.texts(again)) == 2, "the second attempt prints")
        (found,) = target.list_runs()
        assert (found.details["owner"], "bob" in found.details["owner_name"]) == (owner().id, True)
        assert owner().id != mine.id
        again.down()

    @in_short_runs
    def test_ranks_know_each_other_and_their_logs_can_be_told_apart(self, start: Callable[..., RunHandle]) -> None:
        hold = start(FakeBehaviour(lines=("rank {rank} of {world}",)), ranks=2)
        assert hold.wait().status.state is State.FINISHED
        assert self.texts(hold, rank=0) == ["rank 0 of 2"]
        assert self.texts(hold, rank=1) == ["rank 1 of 2"]

    def test_names_at_their_limits_and_any_script_of_the_world(
        self, start: Callable[..., RunHandle], tmp_path: Path
    ) -> None:
        text = "größer 模型 обучение 🚂 \u202e"
        hold = start(
            FakeBehaviour(lines=(text,)), run="n" * MAX_NAME_LENGTH, name="j" * 40, outputs=str(tmp_path / "läufe 跑")
        )
        assert hold.wait().status.state is State.FINISHED
        assert self.texts(hold) == [text]

    def test_names_that_cannot_be_are_refused_before_anything_is_made(
        self, start: Callable[..., RunHandle], outputs: str
    ) -> None:
        for name in (
            "n" * (MAX_NAME_LENGTH + 1),
            "Upper",
            "-dash",
            "dash-",
            "with space",
            "../up",
            "a/b",
            "läufe",
            "code",
            "last",
        ):
            with pytest.raises(BadInput):
                start(FakeBehaviour(), run=name)
        assert set(subfolders(open_store(outputs))) <= {"code"}

    @in_short_runs
    def test_a_secret_reaches_the_script_and_is_written_nowhere(
        self,
        start: Callable[..., RunHandle],
        plan_of: Callable[..., Plan],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("TOKEN_HERE", CANARY)
        play = FakeBehaviour(lines=self.lines_about_a_secret())
        more = {"secrets": {"TOKEN": Secret(ref="env:TOKEN_HERE")}}
        assert CANARY not in plan_of(play, **more).to_json()
        hold = start(play, **more)
        assert hold.wait().status.state is State.FINISHED
        assert self.texts(hold) == [line.replace("{TOKEN}", "***") for line in play.lines]
        for entry in hold.folder.store.list():
            assert CANARY.encode() not in hold.folder.store.read(entry.key), entry.key
        for path in tmp_path.rglob("*"):  # our own home and caches too
            assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path

    def test_a_secret_is_in_no_request_and_no_process_listing_while_the_run_lives(
        self, start: Callable[..., RunHandle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOKEN_HERE", CANARY)
        hold = self.running(
            start(
                WAITS, secrets={"TOKEN": Secret(ref="env:TOKEN_HERE"), "KEY": Secret(ref="env:TOKEN_HERE", as_="file")}
            )
        )
        assert CANARY not in hold.folder.plan().to_json()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert CANARY.encode() not in path.read_bytes(), path
            except OSError:  # gone while we looked
                continue
        for entry in hold.folder.store.list():
            assert CANARY.encode() not in hold.folder.store.read(entry.key), entry.key

    def lines_about_a_secret(self) -> tuple[str, ...]:
        """Where ranks are real, they print the value itself: {TOKEN}."""
        return ()

    def test_four_accelerators_are_four_ranks_on_one_machine_without_a_change_of_code(
        self, start: Callable[..., RunHandle]
    ) -> None:
        four = Resources(accelerator=Accelerator(kind="T4", count=4))
        hold = start(FakeBehaviour(lines=("rank {rank} of {world}",)), resources=four)
        assert hold.wait().status.state is State.FINISHED
        assert [self.texts(hold, rank=rank) for rank in range(4)] == [[f"rank {rank} of 4"] for rank in range(4)]

    @in_short_runs
    def test_a_preempted_run_goes_on_exactly_where_it_was(
        self, target: Target, tmp_path: Path, plan_of: Callable[..., Plan]
    ) -> None:
        if not self.runs_scripts:
            pytest.skip(f"{self.kind}: it runs no script")
        project = write_counting(tmp_path / "counting")
        straight = count_to(12)

        made = plan_of(FakeBehaviour(), script=COUNT, root=str(project), args=("12", "0.01", "5"))
        hold = lifecycle.launch(made, name="broken", detach=True, target=target)
        try:
            wait_until(lambda: len(counted(hold)) == 5, "it counts")
            self.preempt(hold)
            wait_until(lambda: target.status(hold.target_handle).state.ended, "it has ended")
            assert target.status(hold.target_handle).state is State.STOPPED
            assert len(counted(hold)) == 5
            again = lifecycle.resume(hold.url, target=target)
            assert again.wait().status.state is State.FINISHED
            assert counted(again) == straight
        finally:
            hold.target.down(hold.target_handle)

    @in_short_runs
    def test_what_a_script_writes_below_its_working_folder_is_kept_and_there_again_after_a_resume(
        self, target: Target, tmp_path: Path, plan_of: Callable[..., Plan]
    ) -> None:
        if not self.runs_scripts:
            pytest.skip(f"{self.kind}: it runs no script")
        made = plan_of(FakeBehaviour(), script=WRITE, root=str(write_writing(tmp_path / "writing")), args=())
        hold = lifecycle.launch(made, name="writer", detach=True, target=target)
        try:
            self.running(hold)
            assert hold.stop().status.state is State.STOPPED
            assert self.kept(hold) == {"log.csv": b"0\n", "models/deep/model.pt": b"5", "settings.txt": b"changed"}
            again = lifecycle.resume(hold.url, target=target)
            assert again.wait().status.state is State.FINISHED
            assert [text for text in self.texts(again) if text.startswith("from")] == ["from 0", "from 5"]
            assert self.kept(again) == {
                "log.csv": b"0\n5\n",
                "models/deep/model.pt": b"10",
                "settings.txt": b"changed",
            }
            assert any("kept 3 files" in text for text in self.texts(again, rank=-1))
        finally:
            hold.target.down(hold.target_handle)

    def kept(self, hold: RunHandle) -> dict[str, bytes]:
        """What is kept of the working folder, by its name there."""
        store, prefix = hold.folder.store, "files/workdir/"
        return {entry.key.removeprefix(prefix): store.read(entry.key) for entry in store.list(prefix)}

    runs_scripts = True

    def preempt(self, hold: RunHandle) -> None:
        """Take the machine away with a warning, as a cloud would. By default, as anybody who stops it."""
        hold.target.down(hold.target_handle)

    @pytest.mark.parametrize("hours", [-30, 30])
    def test_a_client_whose_clock_is_wrong_by_a_day_sees_the_same(
        self, start: Callable[..., RunHandle], target: Target, monkeypatch: pytest.MonkeyPatch, hours: int
    ) -> None:
        skew(monkeypatch, hours * 3600.0)
        hold = self.running(start(WAITS))
        assert hold.status().state is State.RUNNING
        (found,) = target.list_runs()
        assert found.url == hold.url
        assert hold.stop().status.state is State.STOPPED
        assert target.list_runs() == []

    def test_what_a_lost_host_had_spent_is_taken_off_the_budget_when_the_run_goes_on(
        self, start: Callable[..., RunHandle], target: Target
    ) -> None:
        """Nobody waits for 3,000 s here: the lease of the lost host is given as many beats as would have passed."""
        play = COUNTS_DOWN if self.runs_scripts else WAITS
        hold = self.running(start(play, budget=Budget(hours=1)))
        first_limit = self.own_limit_s(hold)
        with self.lost_host(hold):
            held_for(self.lease_store(hold), 3000.0)
        wait_until(lambda: target.status(hold.target_handle).state is State.LOST, "it is seen to be lost")
        assert hold.down().left == ()
        assert 3000.0 <= spent_s(hold.folder) < 3100.0
        assert hold.down().left == ()
        assert 3000.0 <= spent_s(hold.folder) < 3100.0, "counted once"

        again = lifecycle.resume(hold.url, target=target)
        wait_until(lambda: len(self.texts(again)) == 2, "it goes on")
        assert 3000.0 <= spent_s(hold.folder) < 3200.0
        if self.runs_scripts:
            left = [float(text.split()[3]) for text in self.texts(again)]
            assert 3500.0 < left[0] <= 3600.0
            assert 400.0 < left[1] <= 600.0
        limit = self.own_limit_s(again)
        assert (limit is None) == (first_limit is None)
        if limit is not None and first_limit is not None:
            assert 2900.0 <= first_limit - limit <= 3160.0, "the target's own limit is what is left, too"
        assert again.stop().status.state is State.STOPPED

    def lease_store(self, hold: RunHandle) -> Store:
        """Where the supervisor writes its lease."""
        return hold.folder.store

    def own_limit_s(self, hold: RunHandle) -> float | None:
        """The limit that the target itself holds for the newest submission; None where it has none."""
        return None

    def test_long_words_and_many_arguments_come_through_whole(self, start: Callable[..., RunHandle]) -> None:
        lines = ("x" * 30_000, *(f"line {number} " + "ü" * 100 for number in range(200)))
        hold = start(FakeBehaviour(lines=lines))
        assert hold.wait().status.state is State.FINISHED
        assert self.texts(hold) == list(lines)


class LocalTargetContract(TargetContract):
    """The contract of a target whose processes run on this machine: one derived from `LocalTarget`.

    Subclasses give `kind` and a fixture `target`.
    """

    def supervisor(self, hold: RunHandle) -> local_processes.Process:
        found = local_processes.read_supervisor(Path(hold.target_handle.details["dir"]))
        assert found is not None
        return found

    def processes(self, hold: RunHandle) -> list[local_processes.Process]:
        """Return the live processes of the run: its supervisor and its ranks."""
        return local_processes.processes_of(hold.url, target=self.kind, leader=self.supervisor(hold))

    def ranks(self, hold: RunHandle) -> list[local_processes.Process]:
        """Return those that run the script."""
        found = self.processes(hold)
        return [each for each in found if b"play.py" in Path(f"/proc/{each.pid}/cmdline").read_bytes()]

    def half_gone(self, hold: RunHandle) -> None:
        self.ranks(hold)[0].send(signal.SIGSTOP)  # a SIGTERM cannot end it any more
        self.supervisor(hold).send(signal.SIGKILL)

    @contextmanager
    def lost_host(self, hold: RunHandle) -> Iterator[None]:
        found = self.processes(hold)
        for process in found:
            process.send(signal.SIGSTOP)
        yield
        for process in found:
            process.send(signal.SIGKILL)
        wait_until(lambda: self.processes(hold) == [], "they die")

    @contextmanager
    def failing_submit(self, monkeypatch: pytest.MonkeyPatch, target: Target) -> Iterator[None]:
        """Inside it the supervisor starts, and its pid file cannot be written."""

        def no_space(place: Path, pid: int) -> local_processes.Process:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(local_processes, "_write_pid_file", no_space)
            yield

    def lines_about_a_secret(self) -> tuple[str, ...]:
        return ("the token is {TOKEN}",)
