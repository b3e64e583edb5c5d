"""Old runs in a real cluster: pods fetch the wheel that the run has recorded, whatever Headway their image has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.spec import to_plain
from headway.targets.kubernetes.target import KubernetesTarget
from tests.compat.old_headway import TRAINS, OldRuns, Project
from tests.testbed.kubernetes.bucket import BUCKET, bucket
from tests.testbed.kubernetes.cluster import Cluster, cluster
from tests.testbed.kubernetes.images import TRAINS_INSIDE

__all__ = ["cluster"]
pytestmark = [pytest.mark.kubernetes, *TRAINS, *TRAINS_INSIDE]


class TestKubernetes(OldRuns):
    on = "bed"

    @pytest.fixture
    def project(
        self, tmp_path: Path, old_src: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Project]:
        monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
        with bucket(cluster, monkeypatch) as shared:
            job = {
                "env": {**shared["env"], "OMP_NUM_THREADS": "1"},
                "secrets": {name: secret.ref for name, secret in shared["secrets"].items()},
                "image": {"uri": shared["image"].uri},
                "mounts": [to_plain(mount) for mount in shared["mounts"]],
                "outputs": f"{BUCKET}/{tmp_path.name}",
                "targets": {"bed": {"kind": "kubernetes"}},
            }
            yield Project(folder=tmp_path / "project", old_src=old_src, job=job).write()
            target = KubernetesTarget()
            for found in target.list_runs():
                target.down(found)
