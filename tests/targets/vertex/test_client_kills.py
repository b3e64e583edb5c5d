"""kill -9 of the client at each request it makes of Google leaves nothing that does not end by itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from headway.planning import Plan
from headway.rundir.layout import RECEIPT, RunFolder
from headway.storage import join, open_store
from headway.targets.fake import FakeBehaviour
from tests.contract.client_kills import kill_at_each_request, nothing_stays
from tests.servers.vertex_machines import Image as There
from tests.targets.vertex.jobs import IMAGE, ready_image
from tests.targets.vertex.lab import Lab
from tests.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1500)]
patiently = partial(wait_until, within_s=500.0)  # dozens of jobs share this machine


def test_a_killed_client_leaves_jobs_that_end_by_themselves(lab: Lab, tmp_path: Path) -> None:
    lab.server.images[IMAGE] = There()
    plan = lab.plan(FakeBehaviour(lines=("hello",)), image=ready_image())
    names = kill_at_each_request(plan, tmp_path, "k")
    assert len(names) > 20
    nothing_stays(lab.target(plan), plan, names, patiently)
    made = {job["labels"]["headway_run"]: job for job in lab.server.jobs.values()}
    assert 1 < len(made) < len(names), "killed before a job was made, and after"
    for name, job in made.items():
        ended = folder(name).ended()
        assert ended is not None, (job["state"], job.get("error"))
        assert ended["state"] == "finished"


def test_a_watcher_killed_after_the_end_leaves_jobs_that_succeed(lab: Lab, tmp_path: Path) -> None:
    plan = pushed(lab, FakeBehaviour(lines=("hello",)))
    names = kill_at_each_request(plan, tmp_path, "e", since="end", every=3)
    assert len(names) > 7
    receipts = {name for name in names if folder(name).read_json(RECEIPT)}
    assert {names[-1]} <= receipts < set(names), "killed before the receipt, and not at all"
    nothing_stays(lab.target(plan), plan, names, patiently)
    assert {ends(lab)[name] for name in names} == {"JOB_STATE_SUCCEEDED"}
    assert states(names) == {"finished"}


def test_a_killed_watcher_leaves_jobs_that_end_without_its_cancel(lab: Lab, tmp_path: Path) -> None:
    """A failed job is started again and again by Vertex AI, until that gives up or somebody has seen the failure."""
    plan = pushed(lab, FakeBehaviour(lines=("hello",), exit_code=7))
    names = kill_at_each_request(plan, tmp_path, "w", since="watch", every=5)  # of looks that are alike
    receipts = {name for name in names if folder(name).read_json(RECEIPT)}
    nothing_stays(lab.target(plan), plan, names, patiently)
    assert {names[-1]} <= receipts < set(names), "killed before, and not at all"
    # A watcher that is slow to see the failure finds that Vertex AI has given up by itself.
    assert {ends(lab)[name] for name in names} <= {"JOB_STATE_CANCELLED", "JOB_STATE_FAILED"}
    assert states(names) == {"failed"}


def pushed(lab: Lab, play: FakeBehaviour) -> Plan:
    """A plan whose image is in the registry, by a first run: its machines then have nothing to install."""
    lab.server.retries = 1
    lab.start(play).wait()
    return lab.plan(play)


def ends(lab: Lab) -> dict[str, str]:
    """How Vertex AI says that the job of each run has ended."""
    return {job["labels"]["headway_run"]: job["state"] for job in lab.server.jobs.values()}


def states(names: list[str]) -> set[str]:
    return {str((folder(name).ended() or {}).get("state")) for name in names}


def folder(name: str) -> RunFolder:
    return RunFolder(open_store(join("gs://bucket/runs", name)))
