"""This machine as a target: real processes, killed in every way there is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.core import platform
from headway.core.errors import HeadwayError, RunBusy, TargetError, UnknownRun
from headway.core.types import Handle, State, Target
from headway.launcher import lifecycle
from headway.launcher.gc import LIVE, ORPHAN, OTHER_OWNER, TargetRef, find_resources
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.rundir.layout import PLAN, SUBMISSION
from headway.spec import Accelerator, Job, Resources, Secret
from headway.storage import open_store, subfolders
from headway.targets.fake import FakeBehaviour
from headway.targets.local import processes as local_processes
from headway.targets.local.target import LocalTarget, Options
from headway.testing.plays import plan_play, write_project
from headway.testing.targets import CANARY, WAITS, LocalTargetContract
from headway.testing.waiting import wait_until


def place(hold: RunHandle) -> Path:
    return Path(hold.target_handle.details["dir"])


def supervisor(hold: RunHandle) -> local_processes.Process:
    found = local_processes.read_supervisor(place(hold))
    assert found is not None
    return found


def everything(hold: RunHandle) -> list[local_processes.Process]:
    return local_processes.processes_of(hold.url, target="local", leader=supervisor(hold))


def ranks(hold: RunHandle) -> list[local_processes.Process]:
    """Those that run the script."""
    return [found for found in everything(hold) if b"play.py" in Path(f"/proc/{found.pid}/cmdline").read_bytes()]


class TestLocal(LocalTargetContract):
    kind = "local"

    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        target = _Below(tmp_path, LocalTarget())
        yield target
        assert target.list_runs() == []

    # Killed in every way.

    def test_a_killed_supervisor_is_a_lost_run_at_once_and_it_can_go_on(self, start: Callable[..., RunHandle]) -> None:
        hold = self.running(start(WAITS, ranks=2))
        supervisor(hold).send(signal.SIGKILL)
        wait_until(lambda: not supervisor(hold).alive, "it dies")
        status = hold.target.status(hold.target_handle)
        assert status.state is State.LOST
        assert "killed" in status.reason
        wait_until(lambda: everything(hold) == [], "its ranks go with it")
        assert lifecycle.observe(hold.url).exit_code == 4
        printed = len(self.texts(hold))  # rank 0 may have been killed before its first word
        again = lifecycle.resume(hold.url)
        wait_until(lambda: len(self.texts(again)) == printed + 1, "the second attempt prints")

    def test_a_killed_rank_is_started_again_and_the_run_goes_on(
        self, start: Callable[..., RunHandle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HEADWAY_TIMING", "restart_pause=0.1")
        hold = self.running(start(WAITS, retries=1))
        ranks(hold)[0].send(signal.SIGKILL)
        wait_until(lambda: len(self.texts(hold)) == 2, "the rank prints again")
        assert hold.target.status(hold.target_handle).state is State.RUNNING
        ranks(hold)[0].send(signal.SIGKILL)
        wait_until(lambda: hold.target.status(hold.target_handle).state.ended, "its retries are spent")
        assert hold.status().state is State.FAILED
        assert "SIGKILL" in hold.status().reason

    def test_when_all_its_processes_are_killed_at_once_the_run_is_lost_and_nothing_is_left(
        self, start: Callable[..., RunHandle]
    ) -> None:
        hold = self.running(start(WAITS))
        for process in everything(hold):
            process.send(signal.SIGKILL)
        wait_until(lambda: everything(hold) == [], "they die")
        assert hold.outcome().status.state is State.LOST

    @pytest.mark.parametrize("moment", ["before", "code", "started", "recorded"])
    def test_a_launcher_killed_at_any_moment_leaves_nothing_or_a_run_that_can_be_taken_down(
        self, plan_of: Callable[..., Plan], target: Target, tmp_path: Path, moment: str
    ) -> None:
        (tmp_path / "plan.json").write_text(plan_of(WAITS).to_json())
        client = subprocess.run(
            [sys.executable, "-c", KILLED_CLIENT, str(tmp_path / "plan.json"), moment], capture_output=True, text=True
        )
        assert client.returncode == -signal.SIGKILL, client.stderr
        url = str(tmp_path / "runs" / "orphan")
        live = moment in ("started", "recorded")
        wait_until(lambda: bool(target.list_runs()) == live, "it is found by its label, if it was started")
        status = lifecycle.open_run(url).target.status(Handle(target="local", run="orphan", url=url))
        assert status.state in ((State.PENDING, State.RUNNING) if live else (State.LOST,))
        receipt = lifecycle.down(url)
        assert receipt.left == ()
        assert target.list_runs() == []
        again = lifecycle.resume(url)
        wait_until(lambda: any("waits" in line.text for line in again.logs()), "it can still be run")
        again.down()

    def test_a_run_outlives_its_terminal(self, plan_of: Callable[..., Plan], tmp_path: Path) -> None:
        (tmp_path / "plan.json").write_text(plan_of(WAITS).to_json())
        leader, follower = os.openpty()
        client = subprocess.Popen(
            [sys.executable, "-c", ATTACHED_CLIENT, str(tmp_path / "plan.json")],
            stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
        )  # fmt: skip
        os.close(follower)
        url = str(tmp_path / "runs" / "mine")
        wait_until(lambda: (Path(url) / SUBMISSION).exists(), "it is announced")
        hold = lifecycle.open_run(url)
        wait_until(lambda: any("waits" in line.text for line in hold.logs()), "it runs")
        os.close(leader)  # the terminal is gone: SIGHUP for all that belong to it
        client.kill()
        client.wait()
        hold = lifecycle.open_run(url)
        assert hold.target.status(hold.target_handle).state is State.RUNNING
        leader_process = supervisor(hold)
        assert leader_process.pid == os.getsid(leader_process.pid)
        assert hold.stop().status.state is State.STOPPED

    # What else only this target promises.

    def test_a_stubborn_rank_is_killed_after_the_grace_period(
        self,
        start: Callable[..., RunHandle],
        tmp_path: Path,
        plan_of: Callable[..., Plan],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("headway.core.types.GRACE_S", 1.0)
        hold = self.running(start(WAITS))
        (rank,) = ranks(hold)
        rank.send(signal.SIGSTOP)
        outcome = hold.stop()
        assert outcome.receipt is not None
        assert outcome.receipt.left == ()
        assert not rank.alive
        assert outcome.status.state.resumable

    def test_what_a_script_left_running_is_ended_too(self, start: Callable[..., RunHandle], tmp_path: Path) -> None:
        (tmp_path / "project" / "play.py").write_text(DAEMONIZER)
        pidfile = tmp_path / "daemon.pid"
        hold = start(FakeBehaviour(), env={"PIDFILE": str(pidfile)})
        assert hold.wait().status.state is State.FINISHED
        daemon = int(pidfile.read_text())
        wait_until(lambda: platform.process_start_time(daemon) == "", "the daemon is gone")

    def test_the_pid_file_may_be_lost(self, start: Callable[..., RunHandle]) -> None:
        hold = self.running(start(WAITS))
        os.remove(place(hold) / local_processes.PID_FILE)
        assert hold.target.status(hold.target_handle).state is State.RUNNING
        assert hold.down().left == ()
        assert hold.target.status(hold.target_handle).state is State.STOPPED

    def test_a_pid_that_now_belongs_to_somebody_else_is_left_alone(self, start: Callable[..., RunHandle]) -> None:
        hold = start(FakeBehaviour())
        hold.wait()
        bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
        try:
            known = {
                "pid": bystander.pid,
                "started": "1",
                "boot": platform.pid_namespace_id(),
                "host": os.uname().nodename,
            }
            (place(hold) / local_processes.PID_FILE).write_text(json.dumps(known))
            hold.target.down(hold.target_handle)
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()

    def test_a_run_on_another_machine_is_not_judged_from_here(self, start: Callable[..., RunHandle]) -> None:
        hold = start(FakeBehaviour())
        hold.wait()
        known = {"pid": 1, "started": "1", "boot": "another", "host": "far-away"}
        (place(hold) / local_processes.PID_FILE).write_text(json.dumps(known))
        with pytest.raises(TargetError, match="far-away"):
            hold.target.down(hold.target_handle)
        assert hold.target.status(hold.target_handle).state is State.FINISHED
        (place(hold) / local_processes.PID_FILE).unlink()

    def test_the_code_is_the_one_that_was_planned(self, start: Callable[..., RunHandle], tmp_path: Path) -> None:
        (tmp_path / "project" / "extra.txt").write_text("as planned")
        hold = self.running(start(WAITS))
        hold.stop()
        (tmp_path / "project" / "play.py").write_text("raise SystemExit('changed since')")
        (place(hold) / "code").mkdir()
        (place(hold) / "code" / "extra.txt").write_text("tampered with")
        (place(hold) / "code" / "own.txt").write_text("left by the script")
        again = lifecycle.resume(hold.url)
        wait_until(lambda: len(self.texts(again)) == 2, "it runs the recorded code again")
        assert (place(hold) / "code" / "extra.txt").read_text() == "as planned"
        assert (place(hold) / "code" / "own.txt").read_text() == "left by the script"

    def test_a_run_goes_on_where_its_folder_was_moved_to(self, start: Callable[..., RunHandle], tmp_path: Path) -> None:
        hold = self.running(start(WAITS))
        hold.stop()
        moved = tmp_path / "archive" / hold.run
        moved.parent.mkdir()
        os.rename(hold.url, moved)
        again = lifecycle.resume(str(moved))
        try:
            assert again.url == str(moved)
            wait_until(lambda: len(self.texts(again)) == 2, "it prints in its new place")
        finally:
            again.down()
        assert not Path(hold.url).exists()

    @pytest.mark.slow
    def test_a_folder_that_is_moved_while_its_run_lives_is_not_made_two_runs(
        self, start: Callable[..., RunHandle], target: Target, tmp_path: Path
    ) -> None:
        hold = self.running(start(WAITS))
        moved = f"{tmp_path}/archive"
        os.rename(hold.url, moved)
        there = lifecycle.open_run(moved, target=target)
        status = there.outcome().status
        assert status.state is State.RUNNING
        assert f"moved from {hold.url}" in status.reason
        with pytest.raises(RunBusy, match="was moved from"):
            lifecycle.resume(moved, target=target)
        for verb in (there.down, there.stop):
            with pytest.raises(TargetError, match="was moved from"):
                verb()
        wait_until(lambda: target.list_runs() == [], "without its lease the supervisor ends by itself")
        again = lifecycle.resume(moved, target=target)
        try:
            wait_until(lambda: len(self.texts(again)) == 2, "then it goes on in its new place")
        finally:
            again.down()

    def test_a_folder_that_is_moved_and_moved_back_as_the_error_says_runs_on(
        self, start: Callable[..., RunHandle], target: Target, tmp_path: Path
    ) -> None:
        hold = self.running(start(WAITS))
        moved = tmp_path / "archive"
        os.rename(hold.url, moved)
        assert not Path(hold.url).exists()
        with pytest.raises(TargetError) as refused:
            lifecycle.open_run(str(moved), target=target).down()
        command, _, _ = refused.value.problem.fix.partition(", then")
        subprocess.run(command.split(), check=True)
        assert hold.target.status(hold.target_handle).state is State.RUNNING
        assert hold.stop().status.state is State.STOPPED

    def test_the_same_folder_through_a_link_or_a_bind_mount_is_no_copy(
        self, start: Callable[..., RunHandle], target: Target, tmp_path: Path
    ) -> None:
        hold = self.running(start(WAITS))
        link, bound = tmp_path / "link", tmp_path / "bound"
        link.symlink_to(hold.url)
        bound.mkdir()
        mounted = os.geteuid() == 0 and subprocess.run(["mount", "--bind", hold.url, bound]).returncode == 0
        try:
            for path in (link, bound) if mounted else (link,):
                assert lifecycle.open_run(str(path), target=target).status().state is State.RUNNING
                with pytest.raises(RunBusy):
                    lifecycle.resume(str(path), target=target)
        finally:
            if mounted:
                subprocess.run(["umount", bound], check=True)
        assert lifecycle.open_run(str(link), target=target).stop().status.state is State.STOPPED
        assert target.list_runs() == []

    def test_root_leaves_other_peoples_processes_to_them(
        self, start: Callable[..., RunHandle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def verdict() -> str:
            everything = find_resources(TargetRef(name="local", kind="local", options={}))
            return next(each.verdict for each in everything if each.handle.url == hold.url)

        hold = self.running(start(WAITS))
        assert verdict() == LIVE
        monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "another-home"))
        assert verdict() == OTHER_OWNER
        os.rename(hold.url, tmp_path / "not-to-be-seen")
        assert verdict() == OTHER_OWNER
        monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
        assert verdict() == ORPHAN, "ours, and its folder is gone"
        shutil.rmtree(hold.url, ignore_errors=True)  # the run is live and may have written there meanwhile
        os.rename(tmp_path / "not-to-be-seen", hold.url)

    def test_the_environment_of_another_run_is_not_passed_on(
        self, start: Callable[..., RunHandle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "HEADWAY_ATTEMPT", "HEADWAY_HOSTS"):
            monkeypatch.setenv(name, "77")
        hold = start(FakeBehaviour(lines=("{rank} {world} {HEADWAY_ATTEMPT}",)))
        assert hold.wait().status.state is State.FINISHED
        assert self.texts(hold) == ["0 1 1"]

    def test_a_secret_is_in_no_process_listing(
        self, start: Callable[..., RunHandle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOKEN_HERE", CANARY)
        hold = self.running(start(WAITS, secrets={"TOKEN": Secret(ref="env:TOKEN_HERE")}))
        for found in everything(hold):
            assert CANARY.encode() not in Path(f"/proc/{found.pid}/cmdline").read_bytes()

    def test_damaged_code_is_refused_and_nothing_is_started(
        self, plan_of: Callable[..., Plan], target: Target, tmp_path: Path
    ) -> None:
        plan = plan_of(WAITS)
        archive = tmp_path / "runs" / "code" / f"{plan.code.sha256}.tar.gz"
        archive.parent.mkdir(parents=True)
        archive.write_bytes(b"not what was planned")
        with pytest.raises(HeadwayError, match="code archive"):
            lifecycle.launch(plan, name="r", detach=True, target=target)
        assert subfolders(open_store(str(tmp_path / "runs"))) == ["code"]

    def test_an_interpreter_that_cannot_run_is_a_clear_error(
        self, plan_of: Callable[..., Plan], tmp_path: Path
    ) -> None:
        target = LocalTarget(Options(python=str(tmp_path / "nowhere" / "python")))
        plan = plan_of(WAITS)
        plan = replace(plan, options={"python": target.options.python}, requests=tuple(target.render(plan)))
        with pytest.raises(TargetError, match="nowhere"):
            lifecycle.launch(plan, name="r", detach=True)
        assert not (tmp_path / "runs" / "r").exists()

    def test_a_corrupt_plan_is_said_and_does_not_keep_the_run_from_being_ended(
        self, start: Callable[..., RunHandle]
    ) -> None:
        hold = self.running(start(WAITS))
        (Path(hold.url) / PLAN).write_text('{"schema": 1, "job"')
        assert lifecycle.down(hold.url).left == ()
        with pytest.raises(HeadwayError, match="not a plan"):
            lifecycle.resume(hold.url)

    def test_a_folder_deleted_under_a_live_run_does_not_keep_it_from_being_ended(
        self, start: Callable[..., RunHandle], target: Target
    ) -> None:
        hold = self.running(start(WAITS))
        shutil.rmtree(hold.url, ignore_errors=True)
        (found,) = target.list_runs()
        assert target.down(found).left == ()
        assert target.list_runs() == []
        with pytest.raises(UnknownRun):
            target.status(found)


class _Below:
    """The target, blind to runs in other folders: tests share this machine with whatever else runs on it."""

    def __init__(self, folder: Path, target: LocalTarget) -> None:
        self._folder, self._target = folder, target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def list_runs(self) -> list[Handle]:
        return [found for found in self._target.list_runs() if found.url.startswith(str(self._folder))]


def test_check_finds_what_would_stop_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    job = Job(name="j", script="x.py", outputs=str(tmp_path / "file" / "runs"), resources=Resources(nodes=2))
    said = [str(problem) for problem in LocalTarget().check(job)]
    assert any("one machine" in text for text in said)
    assert any("is a file" in text for text in said)
    assert LocalTarget().check(Job(name="j", script="x.py", outputs=str(tmp_path / "runs"))) == []
    monkeypatch.setattr("headway.targets.local.target.find_spec", lambda name: None)
    (problem,) = LocalTarget().check(Job(name="j", recipe="captioning", outputs=str(tmp_path)))
    assert "pip install" in problem.fix
    (problem,) = LocalTarget(Options(python="/no/such/python")).check(Job(name="j", script="x", outputs=str(tmp_path)))
    assert "/no/such/python" in problem.what


def test_what_does_not_stop_a_job_is_noted(tmp_path: Path) -> None:
    job = Job(name="j", script="x.py", root=str(tmp_path), resources=Resources(accelerator=Accelerator(kind="T4")))
    assert len(LocalTarget().notes(job, 10_000)) == 2
    assert LocalTarget().notes(Job(name="j", script="x.py", root=str(tmp_path)), 1) == []


def test_an_unwritable_folder_is_found_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write everywhere
    (problem,) = LocalTarget().check(Job(name="j", script="x.py", outputs=str(tmp_path / "runs")))
    assert f"{tmp_path} is not writable" in problem.what


def test_the_local_folder_of_a_run_in_a_bucket_is_in_our_own_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    plans = [
        plan_play(write_project(tmp_path / "p"), FakeBehaviour(), on="local", outputs=url)
        for url in ("gs://one/runs", "gs://two/runs")
    ]
    places = {plan.requests[0].body["cwd"] for plan in plans}
    assert len(places) == 2, "the same name in two buckets is two runs"
    assert all(place.startswith(f"{tmp_path}/home/local/") and place.endswith("/{RUN}") for place in places)


KILLED_CLIENT = """
import os, signal, sys
from pathlib import Path
from headway.launcher import lifecycle as launcher; from headway.rundir import submission as intent
from headway.planning import Plan
from headway.targets.local import processes as spawn

def die(*args, **more):
    os.kill(os.getpid(), signal.SIGKILL)

moment = sys.argv[2]
if moment == "before":
    intent.record_submission = die
elif moment == "code":
    spawn._popen = die
elif moment == "started":
    spawn._write_pid_file = die
else:
    intent.save_handle_details = die
launcher.launch(Plan.from_json(Path(sys.argv[1]).read_text()), name="orphan", detach=True)
"""

ATTACHED_CLIENT = """
import sys
from pathlib import Path
from headway.launcher import lifecycle as launcher
from headway.planning import Plan
launcher.launch(Plan.from_json(Path(sys.argv[1]).read_text()), name="mine", on_line=lambda line: print(line.text))
"""

DAEMONIZER = """
import os, subprocess, sys
# A daemon with an empty environment, in a session of its own, whose parent is gone.
code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); os.close(1); time.sleep(600)"
if os.fork() == 0:
    os.setsid()
    subprocess.Popen([sys.executable, "-c", code, os.environ["PIDFILE"]], env={}, close_fds=True)
    os._exit(0)
os.wait()
while not os.path.exists(os.environ["PIDFILE"]) or not open(os.environ["PIDFILE"]).read():
    pass
"""
