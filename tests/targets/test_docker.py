"""Containers as a target: a real daemon, real containers, killed in every way there is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadInput, HeadwayError, RunBusy, TargetError
from headway.core.plan import RUN
from headway.core.types import State, Target
from headway.launcher import lifecycle
from headway.launcher.gc import LIVE, ORPHAN, OTHER_OWNER, UNKNOWN, TargetRef, find_resources
from headway.launcher.lifecycle import RunHandle
from headway.packaging.engine import COMMAND_TIMEOUT_S, EngineError, Unreachable, run
from headway.planning import Plan
from headway.spec import Budget, Data, Image, Mount, Resources, Secret, Source
from headway.storage import open_store, subfolders
from headway.targets.docker import render
from headway.targets.docker import secrets as docker_secrets
from headway.targets.docker.target import DockerTarget
from headway.targets.fake import FakeBehaviour
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import CANARY, WAITS, TargetContract
from tests.testbed.docker import BASE, docker, docker_host
from tests.waiting import wait_until

__all__ = ["docker_host"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]


class Refusing:
    """The real engine, which refuses one word when a test says so."""

    word: str | None = None

    def __call__(self, argv: Sequence[str], *, within_s: float | None = COMMAND_TIMEOUT_S) -> str:
        if self.word in argv:
            raise EngineError(f"{self.word} was refused")
        return run(argv, within_s=within_s)


class TestDocker(TargetContract):
    kind = "docker"

    @pytest.fixture(autouse=True)
    def _daemon(self, docker_host: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DOCKER_HOST", docker_host)

    @pytest.fixture
    def target(self) -> Iterator[Target]:
        target = DockerTarget(engine=Refusing())
        yield target
        assert target.list_runs() == []

    @pytest.fixture
    def plan_of(self, tmp_path: Path, outputs: str) -> Callable[..., Plan]:
        project = write_project(tmp_path / "project")
        (project / "requirements.txt").write_text("")  # says that it needs nothing, so that torch is not installed
        shared = {"on": self.kind, "outputs": outputs, "image": Image(base=BASE), "requirements": "requirements.txt"}
        return lambda play, **more: plan_play(project, play, **{**shared, **more})

    def half_gone(self, hold: RunHandle) -> None:
        docker("kill", "--signal", "KILL", hold.target_handle.details["containers"][0])

    @contextmanager
    def lost_host(self, hold: RunHandle) -> Iterator[None]:
        supervisor = int(inspected(hold)["State"]["Pid"])
        os.kill(supervisor, signal.SIGSTOP)
        yield
        os.kill(supervisor, signal.SIGKILL)  # a container ends with its process 1

    def own_limit_s(self, hold: RunHandle) -> float | None:
        return float(inspected(hold)["Config"]["Labels"]["headway.expires"]) - time.time()

    @contextmanager
    def failing_submit(self, monkeypatch: pytest.MonkeyPatch, target: Target) -> Iterator[None]:
        assert isinstance(target, DockerTarget)
        assert isinstance(target.engine, Refusing)
        target.engine.word = "start"  # the containers are there, and do not start
        yield
        target.engine.word = None

    def lines_about_a_secret(self) -> tuple[str, ...]:
        return ("the token is {TOKEN}",)

    # Killed in every way.

    @pytest.mark.ci
    def test_a_killed_supervisor_is_a_lost_run_at_once_and_it_goes_on_without_waiting_for_its_lease(
        self, start: Callable[..., RunHandle], target: Target
    ) -> None:
        hold = self.running(start(WAITS, ranks=2))
        os.kill(inspected(hold)["State"]["Pid"], signal.SIGKILL)
        wait_until(lambda: hold.target.status(hold.target_handle).state is State.LOST, "it is seen to be gone")
        assert "137" in hold.target.status(hold.target_handle).reason
        again = lifecycle.resume(hold.url, target=target)
        wait_until(lambda: [event["kind"] for event in again.folder.events()].count("attempt") == 2, "it goes on")
        said = docker("logs", *again.target_handle.details["containers"])
        assert "to expire" not in said, f"nobody waits for the lease of a container that is gone: {said}"

    def test_a_stop_by_docker_itself_is_a_preemption_that_can_be_resumed(
        self, start: Callable[..., RunHandle], target: Target
    ) -> None:
        hold = self.running(start(WAITS))
        docker("stop", *hold.target_handle.details["containers"])
        assert inspected(hold)["State"]["ExitCode"] == 143
        outcome = hold.outcome()
        assert (outcome.status.state, outcome.exit_code) == (State.STOPPED, 4)
        again = lifecycle.resume(hold.url, target=target)
        wait_until(lambda: len(self.texts(again)) == 2, "it goes on")

    def test_docker_stop_waits_for_the_grace_period_of_the_plan(self, start: Callable[..., RunHandle]) -> None:
        hold = self.running(start(WAITS))
        assert inspected(hold)["Config"]["StopTimeout"] >= hold.folder.plan().limits.grace_s

    def test_a_stubborn_rank_is_killed_after_the_grace_period(
        self, start: Callable[..., RunHandle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headway.core.types.GRACE_S", 1.0)
        hold = self.running(start(WAITS))
        (rank,) = [
            line.split()[1]
            for line in docker("top", *hold.target_handle.details["containers"]).splitlines()
            if "play.py" in line
        ]
        os.kill(int(rank), signal.SIGSTOP)
        outcome = hold.stop()
        assert outcome.status.state.resumable
        assert outcome.receipt is not None
        assert outcome.receipt.left == ()

    def test_a_paused_container_is_taken_down(self, start: Callable[..., RunHandle]) -> None:
        hold = self.running(start(WAITS))
        docker("pause", *hold.target_handle.details["containers"])
        assert hold.target.status(hold.target_handle).state is State.RUNNING
        assert hold.down().left == ()
        assert hold.target.status(hold.target_handle).state is State.STOPPED

    def test_containers_removed_behind_our_back_are_a_lost_run(self, start: Callable[..., RunHandle]) -> None:
        hold = self.running(start(WAITS))
        docker("rm", "--force", *hold.target_handle.details["containers"])
        status = hold.target.status(hold.target_handle)
        assert (status.state, "no longer exist" in status.reason) == (State.LOST, True)
        receipt = hold.down()
        assert receipt.created
        assert receipt.left == ()

    @pytest.mark.parametrize("moment", ["image", "create", "start", "recorded"])
    def test_a_launcher_killed_at_any_moment_leaves_nothing_or_a_run_that_can_be_taken_down(
        self, plan_of: Callable[..., Plan], target: Target, tmp_path: Path, moment: str
    ) -> None:
        (tmp_path / "plan.json").write_text(plan_of(WAITS, nodes=2).to_json())
        client = subprocess.run(
            [sys.executable, "-c", KILLED_CLIENT, str(tmp_path / "plan.json"), moment], capture_output=True, text=True
        )
        assert client.returncode == -signal.SIGKILL, client.stderr
        url = str(tmp_path / "runs" / "orphan")
        assert bool(target.list_runs()) == (moment != "image")
        hold = lifecycle.open_run(url, target=target)
        live = moment == "recorded"
        assert hold.target.status(hold.target_handle).state in (
            (State.PENDING, State.RUNNING) if live else (State.LOST,)
        )
        assert hold.down().left == ()
        assert target.list_runs() == []
        again = lifecycle.resume(url, target=target)
        self.running(again)
        again.down()

    # Several nodes.

    @pytest.mark.ci
    def test_nodes_find_each_other_by_name_on_a_network_of_their_own(
        self, start: Callable[..., RunHandle], target: Target
    ) -> None:
        hold = start(FakeBehaviour(lines=("{RANK} of {WORLD_SIZE} at {MASTER_ADDR}",)), nodes=2, ranks=2)
        assert len(docker("network", "ls", "--quiet", "--filter", "label=headway.run").split()) == 1
        outcome = hold.wait()
        assert outcome.status.state is State.FINISHED, outcome
        said = [self.texts(hold, rank=rank) for rank in range(4)]
        assert said == [[f"{rank} of 4 at node-0"] for rank in range(4)]
        assert outcome.receipt is not None
        assert [name.split()[0] for name in outcome.receipt.removed] == ["container", "container", "network"]
        assert docker("network", "ls", "--quiet", "--filter", "label=headway.run") == ""

    def test_a_node_that_cannot_be_made_takes_the_others_with_it(
        self, plan_of: Callable[..., Plan], target: Target, outputs: str
    ) -> None:
        plan = plan_of(WAITS, nodes=2)
        (taken,) = [word.replace(RUN, "unlucky") for word in plan.requests[-1].body["argv"] if word.endswith("-1")]
        docker("create", "--name", taken, BASE, "true")
        try:
            with pytest.raises(HeadwayError, match="unlucky"):
                lifecycle.launch(plan, name="unlucky", detach=True, target=target)
            assert target.list_runs() == []
            assert docker("ps", "--all", "--format", "{{.Names}}").split() == [taken], "what is not ours stays"
            assert "unlucky" not in subfolders(open_store(outputs))
        finally:
            docker("rm", taken)

    def test_a_node_that_is_gone_is_said_while_the_others_wait(self, start: Callable[..., RunHandle]) -> None:
        hold = self.running(start(WAITS, nodes=2, retries=3))
        docker("kill", hold.target_handle.details["containers"][1])
        wait_until(lambda: "node 1 ended with 137" in hold.target.status(hold.target_handle).reason, "it is said")
        assert hold.down().left == ()

    # What containers see and leave.

    def test_a_secret_is_in_memory_only_and_in_nothing_that_docker_knows(
        self, start: Callable[..., RunHandle], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "key.pem").write_text(f"{CANARY}-key\n")
        monkeypatch.setenv("TOKEN_HERE", CANARY)
        secrets = {"TOKEN": Secret(ref="env:TOKEN_HERE"), "KEY": Secret(ref=f"file:{tmp_path}/key.pem", as_="file")}
        hold = self.running(start(FakeBehaviour(lines=("{KEY} waits",), until_stopped=True), secrets=secrets))
        (container,) = hold.target_handle.details["containers"]
        assert CANARY not in json.dumps(inspected(hold))
        assert CANARY not in docker("logs", container)
        for process in docker("top", container, "-eo", "pid").split()[1:]:
            assert CANARY.encode() not in Path(f"/proc/{process}/cmdline").read_bytes()
        (line,) = [line.text for line in hold.logs(rank=0)]
        file = line.removesuffix(" waits")
        assert docker("exec", container, "cat", file) == f"{CANARY}-key"
        assert docker("exec", container, "stat", "--file-system", "--format", "%T", file).strip() == "tmpfs"
        folder = docker_secrets.secrets_dir(hold.url)
        assert folder.is_relative_to("/dev/shm")
        assert [path for path in folder.rglob("*") if path.is_file()] == [], "read, then removed"
        hold.down()
        assert not folder.exists()

    def test_a_secret_that_cannot_be_had_is_said_before_anything_is_made(
        self, plan_of: Callable[..., Plan], target: Target, outputs: str
    ) -> None:
        plan = plan_of(WAITS, secrets={"TOKEN": Secret(ref="env:NOT_SET_ANYWHERE")})
        with pytest.raises(BadInput, match="NOT_SET_ANYWHERE"):
            lifecycle.launch(plan, name="r", detach=True, target=target)
        assert target.list_runs() == []
        assert subfolders(open_store(outputs)) == ["code"]

    @pytest.mark.ci
    def test_a_ready_image_is_used_as_it_is_with_the_planned_code_and_headway(
        self, start: Callable[..., RunHandle], tmp_path: Path
    ) -> None:
        hold = self.running(start(WAITS, image=Image(uri=BASE), requirements=None))
        assert inspected(hold)["Config"]["Image"] == BASE
        assert hold.stop().status.state is State.STOPPED

    def test_folders_of_the_job_are_there_under_their_own_paths(
        self, start: Callable[..., RunHandle], tmp_path: Path
    ) -> None:
        data, extra = tmp_path / "data, with a comma", tmp_path / "extra"
        for folder in (data, extra):
            folder.mkdir()
            (folder / "hello.txt").write_text(f"from {folder.name}")
        (tmp_path / "project" / "play.py").write_text(READER)
        hold = start(
            FakeBehaviour(),
            data=Data(train=(Source(source=str(data)),)),
            mounts=(Mount(path=str(extra), at="/mnt/extra"),),
            env={"DATA": str(data)},
        )
        assert hold.wait().status.state is State.FINISHED
        assert self.texts(hold) == ["from data, with a comma", "Read-only file system", "from extra"]
        assert (extra / "written").read_text() == "by the container"

    def test_limits_of_the_job_are_the_containers(self, start: Callable[..., RunHandle], tmp_path: Path) -> None:
        (tmp_path / "project" / "play.py").write_text("x = bytearray(10**9)")
        job_size = Resources(memory=200_000_000, cpus=1)
        hold = start(FakeBehaviour(), resources=job_size)
        outcome = hold.wait()
        assert outcome.status.state is State.FAILED
        assert "SIGKILL" in outcome.status.reason

    def test_a_run_of_another_machine_is_not_touched_from_here(self, start: Callable[..., RunHandle]) -> None:
        hold = self.running(start(WAITS))
        far = replace(hold.target_handle, details={**hold.target_handle.details, "host": "far-away"})
        with pytest.raises(HeadwayError, match="far-away"):
            hold.target.down(far)
        assert hold.target.status(far).state is State.RUNNING, "as its folder says"
        assert hold.target.status(hold.target_handle).state is State.RUNNING

    def test_a_farewell_is_heard_without_a_daemon_and_a_live_run_needs_one(
        self, start: Callable[..., RunHandle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done, live = start(FakeBehaviour()), self.running(start(WAITS))
        done.wait()
        with monkeypatch.context() as patch:
            patch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
            assert done.target.status(done.target_handle).state is State.FINISHED
            with pytest.raises(Unreachable, match="systemctl start docker"):
                live.target.status(live.target_handle)

    def test_when_it_may_be_removed_stands_on_what_has_a_budget(self, start: Callable[..., RunHandle]) -> None:
        hold = self.running(start(WAITS, budget=Budget(hours=1)))
        (found,) = hold.target.list_runs()
        assert 3600 < int(found.details["expires"]) - time.time() < 3 * 3600
        assert inspected(hold)["Config"]["Labels"]["headway.expires"] == found.details["expires"]

    def test_gc_leaves_a_colleagues_live_container_whose_folder_cannot_be_seen_from_here(
        self, start: Callable[..., RunHandle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def verdict() -> tuple[str, str]:
            (found,) = find_resources(TargetRef(name="docker", kind="docker", options={}))
            return found.verdict, found.reason

        monkeypatch.setenv("USER", "alice")
        hold = self.running(start(WAITS))
        hidden = tmp_path / "hidden"
        with monkeypatch.context() as bob:
            bob.setenv("HEADWAY_HOME", str(tmp_path / "home-of-bob"))
            os.rename(hold.url, hidden)
            assert verdict()[0] == OTHER_OWNER
            assert "alice@" in verdict()[1]
            os.rename(hidden, hold.url)
            assert verdict()[0] == OTHER_OWNER
        assert verdict() == (LIVE, "running")
        os.rename(hold.url, hidden)
        assert verdict() == (ORPHAN, "its run folder no longer exists")
        os.rename(hidden, hold.url)
        docker("stop", *hold.target_handle.details["containers"])
        assert verdict() == (ORPHAN, "its run is stopped")

    def test_a_container_that_does_not_say_whose_it_is_is_unknown_where_its_folder_is_not_here(
        self, start: Callable[..., RunHandle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        labels, newer = render._labels, ("headway.owner", "headway.owner-name")

        def of_an_older_headway(plan: Plan) -> list[str]:
            words = labels(plan)
            pairs = [words[i : i + 2] for i in range(0, len(words), 2)]
            return [word for pair in pairs if pair[1].partition("=")[0] not in newer for word in pair]

        monkeypatch.setattr(render, "_labels", of_an_older_headway)
        hold = self.running(start(WAITS))
        place = TargetRef(name="docker", kind="docker", options={})
        assert [found.verdict for found in find_resources(place)] == [LIVE]
        os.rename(hold.url, f"{hold.url}-away")
        assert [found.verdict for found in find_resources(place)] == [UNKNOWN]
        os.rename(f"{hold.url}-away", hold.url)
        docker("stop", *hold.target_handle.details["containers"])
        assert [found.verdict for found in find_resources(place)] == [ORPHAN], "its folder says that it was stopped"

    def test_a_folder_that_is_moved_while_its_container_runs_is_not_started_twice(
        self, start: Callable[..., RunHandle], target: Target, tmp_path: Path
    ) -> None:
        hold = self.running(start(WAITS))
        moved = f"{tmp_path}/archive"
        os.rename(hold.url, moved)
        with pytest.raises(RunBusy, match="was moved from"):
            lifecycle.resume(moved, target=target)
        with pytest.raises(TargetError, match="was moved from"):
            lifecycle.open_run(moved, target=target).down()
        os.rename(moved, hold.url)
        assert hold.stop().status.state is State.STOPPED


def inspected(hold: RunHandle, node: int = 0) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(docker("inspect", hold.target_handle.details["containers"][node]))
    return found[0]


READER = """
import os
from pathlib import Path
data = Path(os.environ["DATA"])
print((data / "hello.txt").read_text())
try:
    (data / "hello.txt").write_text("spoiled")
except OSError as error:
    print(error.strerror)
print(Path("/mnt/extra/hello.txt").read_text())
Path("/mnt/extra/written").write_text("by the container")
"""

KILLED_CLIENT = """
import os, signal, sys
from pathlib import Path
from headway.launcher import lifecycle as launcher; from headway.rundir import submission as intent
from headway.packaging import build, engine
from headway.planning import Plan
from headway import targets as registry
from headway.targets.docker.target import DockerTarget

def die(*args, **more):
    os.kill(os.getpid(), signal.SIGKILL)

moment = sys.argv[2]
creates = 0

def run(argv, *, within_s=engine.COMMAND_TIMEOUT_S):
    global creates
    if moment == "start" and "start" in argv:
        die()
    if "create" in argv and "network" not in argv:
        creates += 1
        if moment == "create" and creates == 2:
            die()
    return engine.run(argv, within_s=within_s)

if moment == "image":
    build.build = die
if moment == "recorded":
    intent.save_handle_details = die
plan = Plan.from_json(Path(sys.argv[1]).read_text())
launcher.launch(plan, name="orphan", detach=True, target=DockerTarget(engine=run))
"""
