"""kill -9 of the client at each request it makes of a real cluster leaves nothing that does not end by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.planning import Plan
from headway.rundir.layout import RECEIPT, RunFolder
from headway.spec import TargetEntry
from headway.storage import join, open_store
from headway.targets.fake import FakeBehaviour
from headway.targets.kubernetes.options import Options
from headway.targets.kubernetes.target import KubernetesTarget
from tests.contract.client_kills import kill_at_each_request, nothing_stays
from tests.contract.plays import plan_play, write_project
from tests.testbed.kubernetes import operators
from tests.testbed.kubernetes.bucket import BUCKET, bucket
from tests.testbed.kubernetes.cluster import Cluster, cluster, ready
from tests.waiting import wait_until

__all__ = ["cluster"]
pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(1500)]
PATIENCE_S = 300.0
NAMESPACES = {"statefulset": "kills", **dict.fromkeys(operators.CRDS, operators.NAMESPACE)}
FIRST_OF_THE_CLUSTERS = 30  # of the requests of a start: those before are the same for every engine
# For fuses and reapers, which are else in no hurry. The fuse is far longer than a start of one client takes.
SOON = {"HEADWAY_TIMING": "reaper_poll=1,reaper_wait=20,fuse=30"}


@pytest.fixture
def plan_of(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Plan]]:
    """Of runs without a budget: no limit but their own end stands behind them."""
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    project = write_project(tmp_path / "project")
    ready(cluster, NAMESPACES["statefulset"])
    with bucket(cluster, monkeypatch) as shared:
        more: dict[str, Any] = {**shared, "env": {**shared["env"], **SOON}}
        outputs = f"{BUCKET}/{tmp_path.name}"

        def made(engine: str) -> Plan:
            options = {"namespace": NAMESPACES[engine], "engine": engine}
            entry = {"bed": TargetEntry(kind="kubernetes", options=options)}
            return plan_play(project, FakeBehaviour(lines=("hello",)), on="bed", outputs=outputs, targets=entry, **more)

        yield made
        for engine, namespace in NAMESPACES.items():
            target = KubernetesTarget(Options(namespace=namespace, engine=engine))
            for found in target.list_runs():
                target.down(found)


def test_a_killed_client_leaves_what_trains_to_its_end_or_what_its_fuse_takes(
    plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = plan_of("statefulset")
    names = kill_at_each_request(plan, tmp_path, "k")
    assert len(names) > 40
    nothing_stays(target_of("statefulset"), plan, names, patiently)
    begun = [name for name in names if attempts(plan, name)]
    assert begun == names[-len(begun) :], "nothing runs before the stroke that starts it, and after it all do"
    assert 1 < len(begun) < len(names) - 10, "killed before, between and after"
    assert states(plan, begun) == {"finished"}


@pytest.mark.parametrize("engine", list(operators.CRDS))
def test_a_killed_client_leaves_a_job_of_an_operators_that_runs_or_that_its_fuse_takes(
    cluster: Cluster, plan_of: Callable[..., Plan], tmp_path: Path, engine: str
) -> None:
    with operators.operator(cluster, operators.CRDS[engine]):
        plan, target = plan_of(engine), target_of(engine)
        names = kill_at_each_request(plan, tmp_path, "o", first=FIRST_OF_THE_CLUSTERS, every=2)

        def going() -> set[str]:
            """What runs or waits, is at rest, or is a Secret that nobody owns."""
            jobs = {item["metadata"]["name"]: item for item in cluster.items(engine)}
            ended = {name for name, item in jobs.items() if (item.get("status") or {}).get("conditions")}
            secrets = {item["metadata"]["name"] for item in cluster.items("secret")}
            return (set(jobs) | secrets) - ended

        nothing_stays(target, plan, names, patiently, live=going)
        begun = [name for name in names if attempts(plan, name)]
        assert begun == names[-len(begun) :], "nothing runs before the stroke that starts it, and after it all do"
        assert 1 <= len(begun) < len(names) - 3, "killed before, between and after"
        assert states(plan, begun) == {"finished"}


def test_a_killed_watcher_leaves_what_trains_to_its_end_and_is_taken_down_without_it(
    plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = plan_of("statefulset")
    names = kill_at_each_request(plan, tmp_path, "w", since="watch", every=12)
    receipts = {name for name in names if folder(plan, name).read_json(RECEIPT)}
    assert names[-1] in receipts
    assert receipts < set(names), "killed before the end, and not at all"
    nothing_stays(target_of("statefulset"), plan, names, patiently)
    assert states(plan, names) == {"finished"}


def target_of(engine: str) -> KubernetesTarget:
    return KubernetesTarget(Options(namespace=NAMESPACES[engine], engine=engine))  # type: ignore[arg-type]


def patiently(done: Callable[[], bool], what: str) -> None:
    wait_until(done, what, within_s=PATIENCE_S)


def attempts(plan: Plan, name: str) -> list[dict[str, Any]]:
    return [event for event in folder(plan, name).events() if event["kind"] == "attempt"]


def folder(plan: Plan, name: str) -> RunFolder:
    return RunFolder(open_store(join(str(plan.job["outputs"]), name)))


def states(plan: Plan, names: Iterable[str]) -> set[str]:
    return {str((folder(plan, name).ended() or {}).get("state")) for name in names}
