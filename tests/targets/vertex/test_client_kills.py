"""kill -9 of the client at each request it makes of Google leaves nothing that does not end by itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from headway.runfolder import RunFolder
from headway.storage import join, open_store
from headway.targets.fake import Play
from tests.contract.client_kills import kill_at_each_request, nothing_stays
from tests.contract.suite import eventually
from tests.servers.vertex_machines import Image as There
from tests.targets.vertex.jobs import IMAGE, ready_image
from tests.targets.vertex.lab import Lab

pytestmark = pytest.mark.slow


def test_a_killed_client_leaves_jobs_that_end_by_themselves(lab: Lab, tmp_path: Path) -> None:
    lab.server.images[IMAGE] = There()
    plan = lab.plan(Play(lines=("hello",)), image=ready_image())
    names = kill_at_each_request(plan, tmp_path, "k")
    assert len(names) > 20
    patiently = partial(eventually, within_s=200.0)  # dozens of jobs share this machine
    nothing_stays(lab.target(plan), plan, names, patiently)
    made = {job["labels"]["headway_run"]: job for job in lab.server.jobs.values()}
    assert 1 < len(made) < len(names), "killed before a job was made, and after"
    for name, job in made.items():
        folder = RunFolder(open_store(join("gs://bucket/runs", name)))
        ended = folder.ended()
        assert ended is not None, (job["state"], job.get("error"))
        assert ended["state"] == "finished"
