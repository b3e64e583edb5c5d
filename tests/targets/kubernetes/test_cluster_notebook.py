"""Jupyter beside a run in a real cluster: in the pod's own interpreter, by `kubectl exec`, and gone with the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

for needed in ("jupyter_server", "ipykernel", "websocket", "httpx"):
    pytest.importorskip(needed)

import httpx  # noqa: E402

from headway.core.types import State  # noqa: E402
from headway.launcher import lifecycle  # noqa: E402
from headway.launcher.lifecycle import RunHandle  # noqa: E402
from headway.planning import plan  # noqa: E402
from headway.spec import Job, TargetEntry  # noqa: E402
from headway.targets.kubernetes.target import KubernetesTarget  # noqa: E402
from tests.notebook.test_jupyter import SCRIPT, Notebook, env, execute, large  # noqa: E402
from tests.testbed.kubernetes.bucket import BUCKET, bucket  # noqa: E402
from tests.testbed.kubernetes.cluster import Cluster, cluster  # noqa: E402
from tests.testbed.kubernetes.images import TRAINS_INSIDE  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

__all__ = ["cluster", "env"]
pytestmark = [pytest.mark.kubernetes, *TRAINS_INSIDE]  # Jupyter comes from this machine's own packages, as torch does
PATIENCE_S = 240.0
ENOUGH = "/tmp/enough"  # in the pod
SERVERS = "grep -la 'ServerApp[.]root_dir' /proc/[0-9]*/cmdline"


@pytest.fixture
def run(
    cluster: Cluster, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[RunHandle, dict[str, str]]]:
    """A live one, and the environment of a person who looks at it."""
    monkeypatch.setenv("HEADWAY_HOME", env["HEADWAY_HOME"])
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(SCRIPT)
    with bucket(cluster, monkeypatch) as shared:
        shared["env"] = {**shared["env"], "ENOUGH": ENOUGH}
        job = Job(
            name="job",
            script="train.py",
            outputs=f"{BUCKET}/{tmp_path.name}",
            root=str(tmp_path / "project"),
            targets={"bed": TargetEntry(kind="kubernetes")},
            **shared,
        )
        hold = lifecycle.launch(plan(job, on="bed"), name="job", detach=True)
        began = "training has begun"
        wait_until(lambda: began in [line.text for line in hold.logs(rank=0)], "it trains", PATIENCE_S)
        yield hold, {**os.environ, "ENOUGH": env["ENOUGH"]}
        target = KubernetesTarget()
        for found in target.list_runs():
            target.down(found)


def servers(cluster: Cluster) -> list[str]:
    """Jupyter's processes in the pod."""
    return cluster.kubectl("exec", "job-0", "--", "sh", "-c", SERVERS, check=False).split()


def test_a_cell_runs_in_the_pod_and_jupyter_closes_with_its_caller_or_the_run(
    cluster: Cluster, run: tuple[RunHandle, dict[str, str]]
) -> None:
    hold, env = run
    notebook = Notebook(env)
    address, token = notebook.address()
    assert "pod job-0" in notebook.said
    assert httpx.get(f"{address}/api/contents", timeout=30).status_code == 403, "nothing is told without the token"
    large(address, token)
    said = execute(
        address, token, "import headway, os; run = headway.open_run(); print(run.name, run.state, os.uname().nodename)"
    )
    assert said.split() == ["job", "running", "job-0"]
    assert servers(cluster) != []
    assert notebook.leave() == 0
    assert "closed; the run keeps running" in notebook.said
    wait_until(lambda: servers(cluster) == [], "Jupyter has left the pod", PATIENCE_S)
    assert hold.target.status(hold.target_handle).state is State.RUNNING

    again = Notebook(env)
    again.address()
    cluster.kubectl("exec", "job-0", "--", "touch", ENOUGH)
    assert again.process.wait(PATIENCE_S) == 0, again.said
    assert "closed: job is finished" in again.said
