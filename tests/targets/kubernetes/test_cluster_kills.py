"""kill -9 of the client at each request it makes of a real cluster leaves nothing that does not end by itself."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.orphans import ORPHAN, Place, look, remove
from headway.planning import Plan
from headway.runfolder import RECEIPT, RunFolder
from headway.spec import Budget, TargetEntry
from headway.storage import join, open_store
from headway.targets.fake import Play
from headway.targets.kubernetes.options import Options
from headway.targets.kubernetes.target import KubernetesTarget
from tests.contract.client_kills import kill_at_each_request, nothing_stays
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import eventually
from tests.testbed.kubernetes.bucket import BUCKET, bucket
from tests.testbed.kubernetes.cluster import Cluster, cluster, ready

__all__ = ["cluster"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
PATIENCE_S = 300.0
NAMESPACE = "kills"
SOON = {"HEADWAY_LOOK_S": "1", "HEADWAY_BIRTH_S": "20"}  # for the reapers, which are else in no hurry


@pytest.fixture
def plan(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Plan]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    project = write_project(tmp_path / "project")
    ready(cluster, NAMESPACE)
    with bucket(cluster, monkeypatch) as shared:
        more: dict[str, Any] = {**shared, "env": {**shared["env"], **SOON}}
        more |= {
            "targets": {"bed": TargetEntry(kind="kubernetes", options={"namespace": NAMESPACE})},
            "budget": Budget(hours=1),
        }
        outputs = f"{BUCKET}/{tmp_path.name}"
        yield plan_play(project, Play(lines=("hello",)), on="bed", outputs=outputs, **more)
        target = KubernetesTarget(Options(namespace=NAMESPACE))
        for found in target.found():
            target.down(found)


def test_a_killed_client_leaves_what_trains_to_its_end_and_what_a_deadline_ends(
    cluster: Cluster, plan: Plan, tmp_path: Path
) -> None:
    names = kill_at_each_request(plan, tmp_path, "k")
    assert len(names) > 40
    target, patiently = (
        KubernetesTarget(Options(namespace=NAMESPACE)),
        functools.partial(eventually, within_s=PATIENCE_S),
    )
    sets = {item["metadata"]["name"] for item in cluster.items("statefulset", namespace=NAMESPACE)}
    # A reaper whose account was not made yet has no pod that could look: the deadline of its Job is what ends it.
    accounts = {
        item["metadata"]["labels"]["headway.run"] for item in cluster.items("serviceaccount", namespace=NAMESPACE)
    }
    jobs = {item["metadata"]["labels"]["headway.run"]: item for item in cluster.items("job", namespace=NAMESPACE)}
    assert sets < accounts < set(jobs), "killed before, between and after"
    assert all(item["spec"]["activeDeadlineSeconds"] > 0 for item in jobs.values())
    early = set(jobs) - accounts
    patiently(lambda: {handle.run for handle in target.found()} <= early, "the others end by themselves")
    place = Place(name=plan.target, kind=plan.kind, options=plan.options)
    for found in look(place):
        assert found.verdict == ORPHAN
        assert remove(found, say=lambda text: None).left == ()
    nothing_stays(target, plan, names, eventually)
    assert states(plan, sets) == {"finished"}


def test_a_killed_watcher_leaves_what_trains_to_its_end_and_is_taken_down_without_it(
    plan: Plan, tmp_path: Path
) -> None:
    names = kill_at_each_request(plan, tmp_path, "w", since="watch", every=12)
    receipts = {name for name in names if folder(plan, name).read_json(RECEIPT)}
    assert names[-1] in receipts
    assert receipts < set(names), "killed before the end, and not at all"
    patiently = functools.partial(eventually, within_s=PATIENCE_S)
    nothing_stays(KubernetesTarget(Options(namespace=NAMESPACE)), plan, names, patiently)
    assert states(plan, names) == {"finished"}


def folder(plan: Plan, name: str) -> RunFolder:
    return RunFolder(open_store(join(str(plan.job["outputs"]), name)))


def states(plan: Plan, names: Iterable[str]) -> set[str]:
    return {str((folder(plan, name).ended() or {}).get("state")) for name in names}
