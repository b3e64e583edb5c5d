"""One run, begun here, goes on in a container, on Slurm and on a machine reached by ssh: each step once, in order."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.launcher.migrate import Migration
from headway.planning import plan
from headway.spec import Image, Job, TargetEntry
from tests.contract.counting import COUNT, count_to, counted, write_counting
from tests.testbed import sshd
from tests.testbed.docker import BASE, docker_host
from tests.testbed.slurm.cluster import Cluster
from tests.testbed.slurm.cluster import lacking as no_slurm
from tests.waiting import wait_until

__all__ = ["docker_host"]
pytestmark = [
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.skipif(bool(sshd.lacking() or no_slurm()), reason=f"moving: {sshd.lacking() or no_slurm()}"),
]
STEPS = 12


@pytest.fixture
def places(tmp_path: Path, docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, TargetEntry]]:
    """A daemon, a cluster and a server, all on this machine."""
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    cluster, server = Cluster(tmp_path / "slurm"), sshd.Server(tmp_path / "sshd")
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    box = {"host": "box", "config": str(server.config), "dir": str(tmp_path / "there"), "python": sys.executable}
    try:
        cluster.start()
        server.start()
        yield {"box": TargetEntry(kind="ssh", options=box)}
    finally:
        cluster.stop()
        server.stop()


def stopped_at(step: int, hold: RunHandle) -> None:
    wait_until(lambda: len(counted(hold)) == step, f"{hold.folder.plan().target} goes on", within_s=240)
    assert hold.stop("to move on").status.state is State.STOPPED


def test_a_run_wanders_from_here_to_docker_slurm_and_ssh_without_missing_a_step(
    tmp_path: Path, places: dict[str, TargetEntry]
) -> None:
    project = write_counting(tmp_path / "project")
    job = Job(
        name="counts",
        script=COUNT,
        args=(str(STEPS), "0.01", "3,6,9"),
        root=str(project),
        outputs=str(tmp_path / "runs"),
        image=Image(uri=BASE),
        targets=places,
    )
    hold = lifecycle.launch(plan(job), name="wanders", detach=True)
    try:
        stopped_at(3, hold)
        for place, step in (("docker", 6), ("slurm", 9)):
            hold = lifecycle.resume(hold.url, move=Migration(on=place))
            stopped_at(step, hold)
        hold = lifecycle.resume(hold.url, move=Migration(on="box"))
        assert hold.wait().status.state is State.FINISHED, [line.text for line in hold.logs()][-10:]
        assert counted(hold) == count_to(STEPS)
        starts = [start.get("target") for start in (hold.folder.read_json("intent.json") or {})["attempts"]]
        assert starts == [None, "docker", "slurm", "box"]
        assert len({plan.key for plan in hold.folder.store.list("plans/")}) == 3
    finally:
        hold.down()
