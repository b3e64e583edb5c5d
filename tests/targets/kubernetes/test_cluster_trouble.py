"""What goes wrong in a real cluster, and what is said of it; and what pods and the reaper may and may not do there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.core.errors import BadInput
from headway.core.types import State
from headway.diagnose.diagnosis import diagnose_run
from headway.launcher.lifecycle import RunHandle, launch
from headway.planning import Plan
from headway.spec import Accelerator, Image, Resources, Secret, TargetEntry
from headway.targets.fake import FakeBehaviour
from headway.targets.kubernetes.client import ApiError
from headway.targets.kubernetes.options import Options
from headway.targets.kubernetes.target import KubernetesTarget
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import CANARY, WAITS
from tests.targets.kubernetes.plans import job_of
from tests.testbed.kubernetes.bucket import BUCKET, bucket
from tests.testbed.kubernetes.cluster import Cluster, cluster, ready
from tests.waiting import wait_until

__all__ = ["cluster"]
pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]
NAMESPACE = "trouble"


@pytest.fixture
def start(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., RunHandle]]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    project = write_project(tmp_path / "project")
    holds: list[RunHandle] = []
    with bucket(cluster, monkeypatch) as shared:
        ready(cluster, NAMESPACE)

        def begin(play: FakeBehaviour = WAITS, *, options: dict[str, Any] | None = None, **more: Any) -> RunHandle:
            entry = TargetEntry(kind="kubernetes", options={"namespace": NAMESPACE, **(options or {})})
            asked = {**shared, **more, "secrets": {**shared["secrets"], **more.get("secrets", {})}}
            plan: Plan = plan_play(
                project, play, on="bed", outputs=f"{BUCKET}/{tmp_path.name}", targets={"bed": entry}, **asked
            )
            holds.append(launch(plan, name="r1", detach=True))
            return holds[-1]

        yield begin
        for hold in holds:
            assert hold.down().left == ()


def says(hold: RunHandle, *words: str) -> None:
    """Its status comes to say all of these words, while it waits."""

    def said() -> bool:
        status = hold.target.status(hold.target_handle)
        assert not status.state.ended, status
        return status.state is State.PENDING and all(word in status.reason for word in words)

    wait_until(said, f"the status says {words}; it says {hold.target.status(hold.target_handle)}", 90.0)


def test_a_node_that_is_nowhere_is_said_while_it_waits(start: Callable[..., RunHandle]) -> None:
    says(start(options={"node_selector": {"planet": "mars"}}), "node", "no node has these labels")


def test_too_many_gpus_are_said_while_it_waits(start: Callable[..., RunHandle]) -> None:
    too_many = Resources(accelerator=Accelerator(kind="T4", count=64), processes=1)
    says(start(resources=too_many), "Insufficient nvidia.com/gpu", "headway doctor")


def test_an_image_that_cannot_be_pulled_is_said(start: Callable[..., RunHandle]) -> None:
    hold = start(image=Image(uri="127.0.0.1:1/no/such:image"))
    says(hold, "headway image --push")
    assert diagnose_run(hold, hold.target.status(hold.target_handle)).name == "image-pull"
    assert hold.down().left == ()
    told = hold.target.evidence(hold.target_handle)  # type: ignore[attr-defined]
    assert any("no/such:image" in line for line in told), "the cluster remembers what pods it had"


def test_a_missing_secret_is_said(start: Callable[..., RunHandle]) -> None:
    says(start(secrets={"TOKEN": Secret(ref="k8s://hub/token")}), "hub", "k8s://")


def test_a_quota_that_is_used_up_is_said(cluster: Cluster, start: Callable[..., RunHandle]) -> None:
    cluster.kubectl("-n", NAMESPACE, "create", "quota", "none", "--hard=pods=0")
    try:
        says(start(), "exceeded quota", "kubectl describe resourcequota")
    finally:
        cluster.kubectl("-n", NAMESPACE, "delete", "quota", "none")


def test_a_pod_that_never_gets_as_far_as_an_attempt_fails_with_its_last_words(start: Callable[..., RunHandle]) -> None:
    hold = start(env={"PYTHONHOME": "/nowhere"})  # so that no Python can start
    wait_until(lambda: hold.target.status(hold.target_handle).state is State.FAILED, "it is given up", 120.0)
    assert "failed before the first attempt" in hold.target.status(hold.target_handle).reason
    assert "ended with 1" in hold.target.status(hold.target_handle).reason
    words = re.compile(r"r1-reaper-\w+: Fatal Python error")
    assert any(words.match(line.text) for line in hold.logs()), "of the pod that was to call the workers"


def test_workers_are_called_by_a_reaper_that_runs_and_by_nobody_else(
    cluster: Cluster, start: Callable[..., RunHandle]
) -> None:
    cluster.kubectl("taint", "node", "--all", "team=others:NoSchedule")
    try:
        hold = start()
        says(hold, "r1-reaper", "taint", "tolerations")
        (waiting,) = cluster.items("statefulset", namespace=NAMESPACE)
        assert waiting["spec"]["replicas"] == 0
        assert cluster.items("pod", "headway.part=worker", namespace=NAMESPACE) == []
    finally:
        cluster.kubectl("taint", "node", "--all", "team-")
    wait_until(lambda: any("waits" in line.text for line in hold.logs(rank=0)), "it runs", 120.0)


def test_a_secret_of_the_cluster_reaches_the_script_as_a_variable_and_as_a_file(
    cluster: Cluster, start: Callable[..., RunHandle], tmp_path: Path
) -> None:
    literals = (f"--from-literal=token={CANARY}", f"--from-literal=key.pem={CANARY}-key")
    cluster.kubectl("-n", NAMESPACE, "create", "secret", "generic", "hub", *literals)
    try:
        (tmp_path / "project" / "play.py").write_text(
            "import os\nprint(len(os.environ['TOKEN']), open(os.environ['KEY']).read(), os.environ['KEY'])"
        )
        wanted = {"TOKEN": Secret(ref="k8s://hub/token"), "KEY": Secret(ref="k8s://hub/key.pem", as_="file")}
        hold = start(secrets=wanted)
        assert hold.wait().status.state is State.FINISHED
        (line,) = [line.text for line in hold.logs(rank=0)]
        assert line.startswith(f"{len(CANARY)} *** /run/headway/"), "redacted, in memory"
    finally:
        cluster.kubectl("-n", NAMESPACE, "delete", "secret", "hub")


def test_pods_have_no_token_and_the_reapers_opens_one_door_only(
    cluster: Cluster, start: Callable[..., RunHandle]
) -> None:
    hold = start()
    wait_until(lambda: any("waits" in line.text for line in hold.logs(rank=0)), "it runs", 120.0)
    wait_until(lambda: _reaper(cluster) != "", "the reaper runs", 120.0)
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    inside = cluster.kubectl("-n", NAMESPACE, "exec", "r1-0", "--", "ls", token, check=False)
    assert inside == ""
    user = f"--as=system:serviceaccount:{NAMESPACE}:r1-reaper"
    allowed = {
        words: cluster.kubectl("-n", NAMESPACE, "auth", "can-i", *words.split(), user, check=False).strip()
        for words in ("get statefulset/r1", "delete statefulset/r1", "delete statefulset/other", "list pods",
                      "get secrets", "create pods", "patch statefulset/r1", "patch statefulset/r1 --subresource=scale",
                      "patch statefulset/other --subresource=scale")
    }  # fmt: skip
    assert [words for words, answer in allowed.items() if answer == "yes"] == [
        "get statefulset/r1",
        "delete statefulset/r1",
        "patch statefulset/r1 --subresource=scale",
    ]


def test_a_worker_is_nobody_and_its_image_is_read_only(cluster: Cluster, start: Callable[..., RunHandle]) -> None:
    hold = start()
    wait_until(lambda: any("waits" in line.text for line in hold.logs(rank=0)), "it runs", 120.0)
    inside = ("-n", NAMESPACE, "exec", "r1-0", "--")
    assert cluster.kubectl(*inside, "id", "-u").strip() == "1000"
    tried = "import sys\ntry: open('/usr/x', 'w')\nexcept OSError as e: print(e.errno)"
    assert cluster.kubectl(*inside, "python3", "-c", tried).strip() == "30", "a read-only file system"
    assert "CapEff:\t0000000000000000" in cluster.kubectl(*inside, "cat", "/proc/1/status")


def test_a_run_of_the_same_name_from_another_folder_is_not_touched(
    cluster: Cluster, start: Callable[..., RunHandle], tmp_path: Path
) -> None:
    from dataclasses import replace

    from headway.launcher import lifecycle

    hold = start()
    plan = hold.folder.plan()
    other = replace(plan, job={**plan.job, "outputs": f"{BUCKET}/elsewhere"})
    other = replace(other, requests=tuple(hold.target.render(other)))
    with pytest.raises(BadInput, match="another --name"):
        lifecycle.launch(other, name="r1", detach=True)
    assert len(cluster.items("statefulset", "headway.run")) <= 1
    assert hold.target.status(hold.target_handle).state in (State.PENDING, State.RUNNING)


def test_the_doctor_finds_a_real_cluster_ready(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    job = job_of(resources=Resources(accelerator=Accelerator(kind="T4", count=2)))
    found = list(KubernetesTarget(Options()).doctor(job))
    assert [finding for finding in found if finding.mark == "bad"] == []
    lacking = list(KubernetesTarget(Options(engine="pytorchjob", namespace="nowhere")).doctor(job))
    assert "kubectl create namespace nowhere" in lacking[-1].fix


def test_credentials_that_the_cluster_does_not_know_are_answered_with_what_to_type(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
    config["users"] = [{"name": each["name"], "user": {"token": "of-nobody"}} for each in config["users"]]
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(ApiError, match="rejected the credentials") as refused:
        KubernetesTarget().list_runs()
    assert refused.value.code == 401
    assert "fix the user of this context in the kubeconfig" in refused.value.problem.fix


def _reaper(cluster: Cluster) -> str:
    shown = cluster.kubectl("-n", NAMESPACE, "get", "pods", "-l", "headway.part=reaper", "-o", "json")
    running = [item for item in json.loads(shown)["items"] if item["status"]["phase"] == "Running"]
    return str(running[0]["metadata"]["name"]) if running else ""
