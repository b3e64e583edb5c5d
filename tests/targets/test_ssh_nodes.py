"""Several machines as one: hosts in network namespaces, each of which calls itself 127.0.1.1."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import TargetError
from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan, plan
from headway.spec import Cadence, Checkpoint, Job, Resources, TargetEntry
from headway.targets.fake import FakeBehaviour
from headway.targets.local import processes
from headway.targets.ssh.options import Options
from headway.targets.ssh.target import SshTarget
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import WAITS
from tests.targets.test_docker_training import SCRIPT as TRAINS
from tests.testbed.namespaces import Hosts, lacking
from tests.testbed.sshd import running_below
from tests.waiting import wait_until

pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.skipif(bool(lacking()), reason=f"ssh nodes: {lacking()}")]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path_factory.mktemp("hosts"), 3)
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    yield
    wait_until(lambda: running_below(tmp_path) == [], "nothing of ours runs there")


@pytest.fixture
def entry(hosts: Hosts, tmp_path: Path) -> dict[str, Any]:
    """The hosts share this machine's disk, which is the share; what they keep for themselves is apart."""
    return {
        "hosts": hosts.names,
        "config": str(hosts.config),
        "dir": str(tmp_path / "there"),
        "share": str(tmp_path),
        "python": sys.executable,
    }


@pytest.fixture
def plan_of(tmp_path: Path, entry: dict[str, Any]) -> Callable[..., Plan]:
    project = write_project(tmp_path / "project")
    entries = {"pool": TargetEntry(kind="ssh", options=entry)}
    return lambda play, **more: plan_play(
        project, play, on="pool", outputs=str(tmp_path / "runs"), targets=entries, **more
    )


def target_of(plan: Plan) -> SshTarget:
    return SshTarget(Options(**plan.options), log=lambda text: None)


@pytest.mark.ci
def test_two_machines_of_two_ranks_know_each_other_by_address(plan_of: Callable[..., Plan], hosts: Hosts) -> None:
    made = plan_of(
        FakeBehaviour(lines=("rank {rank} of {world} at {MASTER_ADDR} in {HEADWAY_PLACE}",)), nodes=2, ranks=2
    )
    hold = lifecycle.launch(made, name="pair", target=target_of(made))
    assert hold.outcome().status.state is State.FINISHED, [line.text for line in hold.logs()]
    said = [line.text for rank in range(4) for line in hold.logs(rank=rank)]
    assert [text.split(" at ")[0] for text in said] == [f"rank {rank} of 4" for rank in range(4)]
    assert all(f"at {hosts.servers[0].address} " in text for text in said)
    assert [text.rpartition("/")[2] for text in said] == ["node-0", "node-0", "node-1", "node-1"]


def test_a_stop_ends_all_machines_and_a_resume_starts_them_again(plan_of: Callable[..., Plan]) -> None:
    made = plan_of(WAITS, nodes=2)
    hold = lifecycle.launch(made, name="pair", detach=True, target=target_of(made))
    waits(hold)
    outcome = hold.stop()
    assert outcome.status.state is State.STOPPED
    assert outcome.receipt is not None
    assert outcome.receipt.left == ()
    assert {name.rpartition(" on ")[2] for name in outcome.receipt.created} == {"hw-node0", "hw-node1"}
    again = lifecycle.resume(hold.url)
    waits(again, times=2)
    again.down()


def waits(hold: RunHandle, times: int = 1) -> None:
    wait_until(
        lambda: all(sum("waits" in line.text for line in hold.logs(rank=rank)) == times for rank in range(2)),
        "both wait",
    )


def test_a_machine_that_cannot_be_reached_leaves_nothing_on_the_others(
    plan_of: Callable[..., Plan], hosts: Hosts, tmp_path: Path
) -> None:
    hosts.servers[1].stop()
    try:
        made = plan_of(WAITS, nodes=2)
        with pytest.raises(TargetError, match="cannot be reached"):
            lifecycle.launch(made, name="half", target=target_of(made))
        assert not list((tmp_path / "there").glob("places/*/*"))
    finally:
        hosts.servers[1].start()


def test_a_node_whose_supervisor_was_killed_ends_the_run_on_all(plan_of: Callable[..., Plan]) -> None:
    made = plan_of(WAITS, nodes=2)
    hold = lifecycle.launch(made, name="pair", detach=True, target=target_of(made))
    waits(hold)
    found = processes.processes_of(hold.url, target="ssh")
    leaders = [process for process in found if process.runs("headway.runtime.worker")]
    for process in leaders:
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: hold.target.status(hold.target_handle).state.ended, "it is seen to be gone")
    assert hold.target.status(hold.target_handle).state.resumable
    assert hold.down().left == ()


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_two_machines_train_as_one_and_a_stopped_run_ends_with_the_same_bits(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    project = tmp_path / "training"
    project.mkdir()
    (project / "train.py").write_text(TRAINS)

    def job(pause_s: float) -> Job:
        return Job(
            name="spirals",
            script="train.py",
            config={"pause_s": pause_s},
            seed=3,
            outputs=str(tmp_path / "runs"),
            root=str(project),
            env={"OMP_NUM_THREADS": "1"},
            resources=Resources(nodes=2),
            checkpoint=Checkpoint(every=Cadence(steps=5)),
            targets={"pool": TargetEntry(kind="ssh", options=entry)},
        )

    def digest(hold: RunHandle) -> str:
        (line,) = [line.text for line in hold.logs(rank=0) if line.text.startswith("digest ")]
        return line

    def steps(hold: RunHandle) -> int:
        return sum(line.text.startswith("step ") for line in hold.logs(rank=0))

    straight = lifecycle.launch(plan(job(0.0), on="pool"), name="straight")
    assert straight.outcome().status.state is State.FINISHED, [line.text for line in straight.logs()][-20:]
    broken = lifecycle.launch(plan(job(2.0), on="pool"), name="broken", detach=True)
    try:
        wait_until(lambda: steps(broken) >= 7, "it trains")
        assert broken.stop().status.state is State.STOPPED
        assert steps(broken) < 36
        again = lifecycle.resume(broken.url)
        assert again.wait().status.state is State.FINISHED, [line.text for line in again.logs()][-20:]
        assert digest(again) == digest(straight)
    finally:
        broken.target.down(broken.target_handle)
