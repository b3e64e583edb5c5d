"""The same projects, unchanged, in pods of a real cluster, in an image that has no Headway.

An init container brings the supervisor from an image of its own. torch and the frameworks are mounted from the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.planning import plan
from headway.spec import Job
from tests.projects.unchanged import SITE, Folder, Project, each_project, kill, ranks_of_run
from tests.testbed.kubernetes.bucket import BUCKET, KEYS, bucket
from tests.testbed.kubernetes.cluster import Cluster, cluster
from tests.testbed.kubernetes.images import PLAIN, SUPERVISOR, TRAINS_INSIDE

__all__ = ["cluster"]
pytestmark = [pytest.mark.kubernetes, *TRAINS_INSIDE]


@pytest.fixture
def store(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    if not cluster.ours:
        pytest.skip("kubernetes: only the node of the test bed has the plain image and the supervisor's")
    with bucket(cluster, monkeypatch) as shared:
        yield {"env": shared["env"], "secrets": {name: f"env:{name}" for name in KEYS}, "outputs": f"{BUCKET}/runs"}


@each_project(ci=["leaves"])
def test_a_project_runs_unchanged_in_a_pod_and_continues_after_a_kill(
    project: Project, cluster: Cluster, store: dict[str, Any], tmp_path: Path
) -> None:
    entry = {"kind": "kubernetes", "namespace": "default", "supervisor": SUPERVISOR}
    here = Folder.copy(project, tmp_path, entry, image={"uri": PLAIN}, mount_packages=True, **store)
    cluster.lay_supervisor_ready(plan(Job.load(here.path / "headway.yaml"), on="there").code)
    here.start("--yes", "--no-rehearse", "--set", f"env.PYTHONPATH={SITE}")
    kill(ranks_of_run(here.run))
    here.ends_with_its_model()
    assert cluster.items("pod") == []
