"""One run, begun here, goes on in a real cluster and on Vertex AI, and ends here: each step once, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.launcher.migrate import Migration
from headway.planning import plan
from headway.spec import Image, Job, TargetEntry
from tests.contract.counting import COUNT, count_to, counted, write_counting
from tests.servers.vertex_machines import Image as There
from tests.targets.vertex.cloud import google
from tests.targets.vertex.jobs import entry
from tests.testbed.kubernetes.bucket import reachable
from tests.testbed.kubernetes.cluster import Cluster, cluster, ready
from tests.waiting import wait_until

__all__ = ["cluster"]
pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]
STEPS = 12
NAMESPACE = "moving"


def stopped_at(step: int, hold: RunHandle) -> None:
    wait_until(lambda: len(counted(hold)) == step, f"{hold.folder.plan().target} goes on", within_s=240)
    assert hold.stop("to move on").status.state is State.STOPPED
    assert hold.url not in {found.url for found in hold.target.list_runs()}


def test_a_run_wanders_from_here_to_a_cluster_and_vertex_and_back_without_missing_a_step(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    ready(cluster, NAMESPACE)
    with google(tmp_path, monkeypatch) as cloud, reachable(cluster, cloud.gcs.url) as store:
        cloud.vertex.images[cluster.image] = There()
        job = Job(
            name="counts",
            script=COUNT,
            args=(str(STEPS), "0.01", "3,6,9"),
            root=str(write_counting(tmp_path / "project")),
            outputs=str(tmp_path / "runs"),
            env={"STORAGE_EMULATOR_HOST": store},
            image=Image(uri=cluster.image),
            targets={"bed": TargetEntry(kind="kubernetes", options={"namespace": NAMESPACE}), **entry(grace=10.0)},
        )
        hold = lifecycle.launch(plan(job), name="wanders", detach=True)
        stopped_at(3, hold)
        hold = lifecycle.resume(hold.url, move=Migration(on="bed", copy_to="gs://bucket/runs"))
        assert hold.url == "gs://bucket/runs/wanders"
        stopped_at(6, hold)
        hold = lifecycle.resume(hold.url, move=Migration(on="vertex"))
        stopped_at(9, hold)
        hold = lifecycle.resume(hold.url, move=Migration(on="local"))
        assert hold.wait().status.state is State.FINISHED, [line.text for line in hold.logs()][-10:]
        assert counted(hold) == count_to(STEPS)
        starts = [start.get("target") for start in (hold.folder.read_json("intent.json") or {})["attempts"]]
        assert starts == [None, "bed", "vertex", "local"]
