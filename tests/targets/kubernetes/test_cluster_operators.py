"""PyTorchJob and TrainJob on a real API server with the real CRDs; the pods an operator would make train for real."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadInput
from headway.core.types import State
from headway.launcher import lifecycle
from headway.planning import plan
from headway.spec import Budget, Cadence, Checkpoint, Job, Resources, TargetEntry
from headway.targets.kubernetes import lifecycle as kubernetes_lifecycle
from headway.targets.kubernetes.client import Client
from headway.targets.kubernetes.options import Options
from headway.targets.kubernetes.target import KubernetesTarget
from tests.targets.kubernetes.plans import FULL, FULL_OPTIONS, rendered
from tests.testbed.kubernetes import operators
from tests.testbed.kubernetes.bucket import BUCKET, bucket
from tests.testbed.kubernetes.cluster import Cluster, cluster
from tests.testbed.kubernetes.workload import SCRIPT, digest, steps
from tests.waiting import wait_until

__all__ = ["cluster"]
pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.torch]
PATIENCE_S = 240.0
ENGINES = operators.CRDS


@pytest.fixture
def job_of(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(SCRIPT)
    with bucket(cluster, monkeypatch) as shared:

        def job(engine: str, *, nodes: int = 2, pause_s: float = 0.0, **more: Any) -> Job:
            return Job(
                **{
                    **shared,
                    "env": {**shared["env"], "OMP_NUM_THREADS": "1"},
                    "name": "train",
                    "script": "train.py",
                    "config": {"pause_s": pause_s},
                    "outputs": f"{BUCKET}/{tmp_path.name}",
                    "root": str(tmp_path / "project"),
                    "resources": Resources(nodes=nodes),
                    "checkpoint": Checkpoint(every=Cadence(steps=5)),
                    "targets": {"bed": TargetEntry(kind="kubernetes", options={"engine": engine})},
                    **more,
                }
            )

        yield job


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="kubernetes: the image has Python 3.11, torch is mounted")
@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_job_trains_in_the_operators_pods_and_is_taken_down(
    cluster: Cluster, job_of: Callable[..., Job], engine: str
) -> None:
    with operators.operator(cluster, ENGINES[engine]):
        hold = lifecycle.launch(plan(job_of(engine, budget=Budget(hours=1)), on="bed"), name="first")
        outcome = hold.outcome()
        assert outcome.status.state is State.FINISHED, [line.text for line in hold.logs()][-20:]
        assert outcome.receipt is not None
        assert outcome.receipt.left == ()
        assert KubernetesTarget(Options(engine=engine)).list_runs() == []  # type: ignore[arg-type]
        assert digest(hold)
        assert cluster.kubectl("get", "pods", "-o", "name") == ""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="kubernetes: the image has Python 3.11, torch is mounted")
def test_a_pod_of_a_pytorchjob_that_is_taken_away_is_made_again_and_the_bits_are_the_same(
    cluster: Cluster, job_of: Callable[..., Job]
) -> None:
    with operators.operator(cluster, ENGINES["pytorchjob"]):
        straight = lifecycle.launch(plan(job_of("pytorchjob"), on="bed"), name="straight")
        assert straight.outcome().status.state is State.FINISHED
        broken = lifecycle.launch(plan(job_of("pytorchjob", pause_s=0.3), on="bed"), name="broken", detach=True)
        wait_until(lambda: steps(broken) >= 7, "it trains", PATIENCE_S)
        cluster.kubectl("delete", "pod", "broken-worker-0")
        outcome = broken.wait()
        assert outcome.status.state is State.FINISHED, [line.text for line in broken.logs()][-20:]
        assert len([event for event in broken.folder.events() if event["kind"] == "attempt"]) > 1
        assert digest(broken) == digest(straight)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("crd", ["pytorchjobs-v1.8.1", "pytorchjobs-v1.9.0"])
def test_the_api_server_takes_a_pytorchjob_as_it_is(cluster: Cluster, crd: str, full: bool) -> None:
    body = rendered(Options(engine="pytorchjob", **(FULL_OPTIONS if full else {})), **(FULL if full else {}))
    _taken_unchanged(cluster, crd, body["pytorchjob.json"])


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("release", ["2.0", "2.1", "2.2", "2.3"])
def test_the_api_server_takes_a_trainjob_rendered_for_its_release(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, release: Any, full: bool
) -> None:
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    options = Options(engine="trainjob", trainer=release, **(FULL_OPTIONS if full else {}))
    body = rendered(options, **(FULL if full else {}))
    crd = f"trainjobs-v{release}.0"
    _taken_unchanged(cluster, crd, body["trainjob.json"], lambda: _known_as(options, release))


def test_a_job_for_another_release_than_the_installed_one_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    with pytest.raises(BadInput, match="has no TrainJob"):
        kubernetes_lifecycle.installed_trainer(Client(), Options(engine="trainjob"))
    operators.install(cluster, "trainjobs-v2.1.0")
    try:
        with pytest.raises(BadInput, match=r"trainer: '2\.1'"):
            kubernetes_lifecycle.installed_trainer(Client(), Options(engine="trainjob", trainer="2.3"))
    finally:
        operators.remove(cluster, "trainjobs-v2.1.0")


def _known_as(options: Options, release: str) -> None:
    assert kubernetes_lifecycle.installed_trainer(Client(), options) == release


def _taken_unchanged(cluster: Cluster, crd: str, body: dict[str, Any], look: Callable[[], None] = lambda: None) -> None:
    """Created, read back, and nothing of it was dropped on the way."""
    text = json.dumps(body).replace("{RUN}", "golden").replace("{FOLDER}", "f").replace("{EXPIRES}", "1")
    text = text.replace("{OWNER}", "a1b2").replace("{OWNER_NAME}", "alice@host-7")
    wanted = json.loads(text)
    wanted["metadata"] = {**wanted["metadata"], "namespace": "default"}
    operators.install(cluster, crd)
    try:
        look()
        api = Client(access=_access(cluster))
        from headway.targets.kubernetes import client

        made = client.create(api, wanted)
        lost = list(_lost(wanted["spec"], made["spec"], "spec"))
        assert lost == []
        client.delete(api, body["kind"], "default", "golden")
    finally:
        operators.remove(cluster, crd)


def _access(cluster: Cluster) -> Any:
    import os

    from headway.targets.kubernetes import kubeconfig

    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = cluster.kubeconfig
    try:
        return kubeconfig.load()
    finally:
        os.environ.pop("KUBECONFIG") if before is None else os.environ.update(KUBECONFIG=before)


def _lost(wanted: Any, made: Any, where: str) -> Iterator[str]:
    """What was asked for and is not there. Defaults that were added are no loss."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            if not isinstance(made, dict) or key not in made:
                yield f"{where}.{key}"
            else:
                yield from _lost(value, made[key], f"{where}.{key}")
    elif isinstance(wanted, list):
        for number, value in enumerate(wanted):
            yield from _lost(value, made[number], f"{where}[{number}]")
    elif wanted != made:
        yield f"{where}: {wanted!r} became {made!r}"
