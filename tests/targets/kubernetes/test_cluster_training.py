"""Real training in a real cluster, artifacts in S3 outside of it: taken away in every way, the same bits in the end.

torch comes from this machine's own packages, which the test bed's pods mount.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import plan
from headway.rundir.layout import RunFolder
from headway.spec import Cadence, Checkpoint, Job, Resources, TargetEntry
from headway.storage import open_store
from headway.targets.kubernetes.target import KubernetesTarget
from tests.testbed.kubernetes.bucket import BUCKET, bucket
from tests.testbed.kubernetes.cluster import NODE, Cluster, cluster
from tests.testbed.kubernetes.images import TRAINS_INSIDE
from tests.testbed.kubernetes.workload import SCRIPT, digest, steps
from tests.waiting import wait_until

__all__ = ["cluster"]
pytestmark = [pytest.mark.kubernetes, *TRAINS_INSIDE]
PATIENCE_S = 240.0


@pytest.fixture
def job_of(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(SCRIPT)
    with bucket(cluster, monkeypatch) as shared:

        def job(*, nodes: int, pause_s: float = 0.0, **more: Any) -> Job:
            return Job(
                **{
                    **shared,
                    "env": {**shared["env"], "OMP_NUM_THREADS": "1", "HEADWAY_TIMING": "fuse=60"},
                    "name": "train",
                    "script": "train.py",
                    "config": {"pause_s": pause_s},
                    "outputs": f"{BUCKET}/{tmp_path.name}",
                    "root": str(tmp_path / "project"),
                    "resources": Resources(nodes=nodes),
                    "checkpoint": Checkpoint(every=Cadence(steps=5)),
                    "targets": {"bed": TargetEntry(kind="kubernetes")},
                    **more,
                }
            )

        yield job
        target = KubernetesTarget()
        for found in target.list_runs():
            target.down(found)


@pytest.mark.parametrize(("nodes", "way"), [(2, "a pod is deleted"), (3, "the node is drained")])
def test_a_run_that_was_taken_away_goes_on_by_itself_and_ends_with_the_same_bits(
    cluster: Cluster, job_of: Callable[..., Job], nodes: int, way: str
) -> None:
    straight = lifecycle.launch(plan(job_of(nodes=nodes), on="bed"), name="straight")
    assert straight.outcome().status.state is State.FINISHED, [line.text for line in straight.logs()][-20:]
    hosts = {line.text.split()[-1] for line in straight.logs() if line.text.startswith("step ")}
    assert hosts == {f"straight-{number}" for number in range(nodes)}, "each worker trained in a pod of its own"

    broken = lifecycle.launch(plan(job_of(nodes=nodes, pause_s=0.3), on="bed"), name="broken", detach=True)
    wait_until(lambda: steps(broken) >= 7, "it trains", PATIENCE_S)
    if way == "a pod is deleted":
        cluster.kubectl("delete", "pod", f"broken-{nodes - 1}")
    else:
        cluster.kubectl("drain", NODE, "--force", "--delete-emptydir-data", "--ignore-daemonsets")
        status = broken.target.status(broken.target_handle)
        assert status.state is State.PENDING, status
        assert "continues from its last checkpoint" in status.reason
        cluster.kubectl("uncordon", NODE)
    outcome = broken.wait()
    assert outcome.status.state is State.FINISHED, [line.text for line in broken.logs()][-20:]
    events = broken.folder.events()
    restored = [event for event in events if event["kind"] == "restored" and event["attempt"] > 1]
    assert restored
    assert restored[-1]["step"] >= 5
    assert digest(broken) == digest(straight)
    assert outcome.receipt is not None
    assert outcome.receipt.left == ()


KILLED_CLIENT = """
import os, signal, sys
from pathlib import Path
from headway.launcher import lifecycle as launcher
from headway.planning import Plan
from headway.targets.kubernetes import client as kinds
from headway.targets.kubernetes.target import KubernetesTarget

plan, moment = Plan.from_json(Path(sys.argv[1]).read_bytes()), sys.argv[2]
create, change = kinds.create, kinds.patch

def made(api, body):
    answer = create(api, body)
    if body["kind"] == moment:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

def started(api, stroke):
    change(api, stroke)
    if moment == "started":
        os.kill(os.getpid(), signal.SIGKILL)

kinds.create, kinds.patch = made, started
launcher.launch(plan, name="orphan", detach=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["started", "submitted"])
def test_a_run_whose_client_was_killed_trains_ends_and_is_taken_down_without_anybody(
    cluster: Cluster, job_of: Callable[..., Job], tmp_path: Path, moment: str
) -> None:
    url = _killed(job_of(nodes=2), tmp_path, moment)
    folder = RunFolder(open_store(url))
    wait_until(lambda: (folder.ended() or {}).get("state") == "finished", "it trains to its end", PATIENCE_S)
    wait_until(lambda: cluster.items("statefulset") == [], "the reaper deletes the set", PATIENCE_S)
    wait_until(lambda: cluster.items("pod", "headway.part=worker") == [], "its pods go", PATIENCE_S)
    wait_until(lambda: KubernetesTarget().list_runs() == [], "all that the reaper owns goes with it", PATIENCE_S)
    outcome = lifecycle.observe(url)
    assert outcome.status.state is State.FINISHED
    assert outcome.receipt is not None
    assert outcome.receipt.left == ()


@pytest.mark.parametrize("moment", ["Job", "Secret", "Service", "StatefulSet"])
def test_what_a_client_killed_half_way_has_made_is_found_and_removed(
    cluster: Cluster, job_of: Callable[..., Job], tmp_path: Path, moment: str
) -> None:
    url = _killed(job_of(nodes=2), tmp_path, moment)
    (found,) = KubernetesTarget().list_runs()
    assert found.url == url
    hold = lifecycle.open_run(url)
    assert hold.down().left == ()
    assert KubernetesTarget().list_runs() == []
    again = lifecycle.resume(url)
    assert again.wait().status.state is State.FINISHED


def _killed(job: Job, tmp_path: Path, moment: str) -> str:
    (tmp_path / "plan.json").write_text(plan(job, on="bed").to_json())
    client = subprocess.run(
        [sys.executable, "-c", KILLED_CLIENT, str(tmp_path / "plan.json"), moment], capture_output=True, text=True
    )
    assert client.returncode == -signal.SIGKILL, client.stderr
    return f"{job.outputs}/orphan"


def test_a_deleted_set_is_a_stopped_run_that_resumes(cluster: Cluster, job_of: Callable[..., Job]) -> None:
    hold: RunHandle = lifecycle.launch(plan(job_of(nodes=2, pause_s=0.3), on="bed"), name="gone", detach=True)
    wait_until(lambda: steps(hold) >= 3, "it trains", PATIENCE_S)
    cluster.kubectl("delete", "statefulset", "gone")
    wait_until(lambda: hold.target.status(hold.target_handle).state.ended, "it is seen to have ended", PATIENCE_S)
    assert hold.outcome().status.state is State.STOPPED
    again = lifecycle.resume(hold.url)
    assert again.wait().status.state is State.FINISHED
