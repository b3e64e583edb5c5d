"""The same projects, unchanged, as batch jobs of a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.projects.unchanged import Folder, Project, each_project, kill, ranks_of_run
from tests.testbed.slurm.cluster import Cluster, lacking

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(bool(lacking()), reason=f"no Slurm here: {lacking()}"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.config))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@each_project(ci=["notebook", "grader"])
def test_a_project_runs_unchanged_on_slurm_and_continues_after_a_kill(project: Project, tmp_path: Path) -> None:
    here = Folder.copy(project, tmp_path, {"kind": "slurm"})
    here.start()
    kill(ranks_of_run(here.run))
    here.ends_with_its_model()
