"""Old runs on a real Slurm, whose jobs start the wheel that the run has recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.old_headway import PATIENCE_S, TRAINS, OldRuns, Project, resumed, stopped
from tests.testbed.slurm.cluster import Cluster, lacking
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, *TRAINS, pytest.mark.skipif(bool(lacking()), reason=f"no Slurm here: {lacking()}")]


@pytest.fixture(scope="module", autouse=True)
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.config))
        try:
            cluster.start()
            yield
        finally:
            cluster.stop()


class TestSlurm(OldRuns):
    on = "slurm"

    def test_the_recorded_wheel_goes_on_from_a_checkpoint_of_today(
        self, project: Project, straight: dict[str, str]
    ) -> None:
        project.begin("e")
        stopped(project, "e", by=project.old)
        before = project.status("e")["checkpoint"]
        project.new("resume", "e", "--detach")
        wait_until(lambda: project.status("e")["checkpoint"] > before, "it saves again", PATIENCE_S)
        stopped(project, "e", by=project.new)
        resumed(project, "e", straight, "--on", "slurm")
