"""A run that is begun here goes on on Vertex AI and ends here: the same steps in the same order, each once."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.migrate import Migration
from headway.planning import plan
from headway.spec import Job
from tests.contract.counting import COUNT, count_to, counted, write_counting
from tests.servers.vertex_machines import Image as There
from tests.targets.vertex.cloud import Cloud
from tests.targets.vertex.jobs import IMAGE, entry, ready_image
from tests.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.mark.parametrize("copied", [False, True])
def test_from_here_to_vertex_and_back(cloud: Cloud, tmp_path: Path, copied: bool) -> None:
    """Its folder is in a bucket from the start, or on this machine's disk and brought there first."""
    cloud.vertex.images[IMAGE] = There()
    job = Job(
        name="counts",
        script=COUNT,
        args=("16", "0.25"),
        root=str(write_counting(tmp_path / "project")),
        outputs=str(tmp_path / "runs") if copied else "gs://bucket/runs",
        image=ready_image(),
        targets=entry(grace=10.0),
    )
    hold = lifecycle.launch(plan(job), name="wanders", detach=True)
    wait_until(lambda: len(counted(hold)) >= 2, "it counts here")
    assert hold.stop().status.state is State.STOPPED
    here = len(counted(hold))
    there = lifecycle.resume(hold.url, move=Migration(on="vertex", copy_to="gs://bucket/runs" if copied else None))
    assert there.url == "gs://bucket/runs/wanders"
    wait_until(lambda: len(counted(there)) >= here + 2, "it counts there")
    assert there.stop().status.state is State.STOPPED
    assert there.target.list_runs() == []
    assert len(counted(there)) < 17
    back = lifecycle.resume(there.url, move=Migration(on="local"))
    assert back.wait().status.state is State.FINISHED
    assert counted(back) == count_to(16)
