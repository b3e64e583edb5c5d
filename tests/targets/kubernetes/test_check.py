"""What is said before anything is spent: by the plan, without a cluster, and by the doctor, with one."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.types import Handle
from headway.pricing.quote import quote
from headway.spec import Accelerator, Budget, Data, Image, Job, Mount, Resources, Secret, Source
from headway.targets.kubernetes import checks, trainjob
from headway.targets.kubernetes import pod as kubernetes_pod
from headway.targets.kubernetes import status as kubernetes_status
from headway.targets.kubernetes.client import Forbidden
from headway.targets.kubernetes.options import Options
from headway.targets.kubernetes.target import KubernetesTarget
from tests.targets.kubernetes.answering import Answering
from tests.targets.kubernetes.plans import job_of, plan_of

T4 = Resources(accelerator=Accelerator(kind="T4", count=2))
NAMESPACE = "/api/v1/namespaces/default"


def complaints(job: Job, **options: Any) -> list[str]:
    return [str(problem) for problem in KubernetesTarget(Options(**options)).check(job)]


def test_a_job_that_would_run_is_not_complained_about() -> None:
    assert complaints(job_of(resources=T4)) == []


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"image": Image()}, {}, "image: {repository: LOCATION-docker.pkg.dev"),
        ({"outputs": "/home/me/runs"}, {}, "outputs: gs://BUCKET"),
        ({"outputs": "memory://x"}, {}, "pods cannot see"),
        ({"data": Data(train=(Source(source="/data/coco"),))}, {}, "headway data prepare"),
        ({"mounts": (Mount(pvc="a", at="/tmp"),)}, {}, "/tmp is used by Headway"),
        ({"mounts": (Mount(pvc="A b", at="/data"),)}, {}, "kubectl get pvc"),
        ({"secrets": {"TOKEN": Secret(ref="k8s://Not_A_Name/key")}}, {}, "kubectl get secrets"),
        ({"resources": Resources(accelerator=Accelerator(kind="RTX4090"))}, {}, "platform: plain"),
        ({}, {"namespace": "Mine"}, "cannot be a namespace"),
        ({}, {"labels": {"team": "not a value"}}, "value of the label"),
        ({}, {"labels": {"headway.run": "x"}}, "is set by Headway"),
        ({}, {"service_account": "Nobody!"}, "correct `service_account`"),
        ({}, {"tolerations": ({"kee": "x"},)}, "a toleration has no 'kee'"),
    ],
)
def test_what_would_stop_it_is_said_with_what_to_write(
    changes: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    (complaint,) = complaints(job_of(**changes), **options)
    assert words in complaint


def test_folders_below_a_mount_can_be_seen_from_pods(tmp_path: Any) -> None:
    job = job_of(
        outputs=f"{tmp_path}/runs",
        data=Data(train=(Source(source=f"{tmp_path}/coco"),)),
        mounts=(Mount(nfs="server:/export", at=str(tmp_path)),),
    )
    assert complaints(job) == []


def test_the_plan_says_what_a_release_of_trainjob_has_no_words_for() -> None:
    options = Options(engine="trainjob", trainer="2.0", pull_secrets=("r",), priority="p")
    assert len(trainjob.unsupported_fields(options, "2.0")) == 4
    notes = list(checks.notes(job_of(), 1, options))
    assert any("non-root" in note for note in notes)
    assert not trainjob.unsupported_fields(Options(engine="trainjob"), "2.3")


def test_the_plan_says_that_waiting_counts() -> None:
    notes = list(checks.notes(job_of(budget=Budget(hours=1)), 1, Options()))
    assert any("max_wait is not given" in note for note in notes)


# The doctor.


def ready() -> dict[str, Any]:
    return {
        "/version": {"gitVersion": "v1.33.1"},
        NAMESPACE: {},
        "/api/v1/nodes": {"items": [node("gpu-1", 2)]},
        f"{NAMESPACE}/serviceaccounts/gcs-access": {"metadata": {"annotations": {}}},
    }


def node(name: str, gpus: int, label: str = "nvidia-tesla-t4") -> dict[str, Any]:
    labels = {"cloud.google.com/gke-accelerator": label}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}


def examined(api: Answering, job: Job | None = None, **options: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"ok": [], "note": [], "bad": []}
    chosen = Options(**{"context": "gke_my-project_us-east1-c_training", **options})
    for finding in KubernetesTarget(chosen, api=api).doctor(job or job_of(resources=T4)):
        found[finding.mark].append(f"{finding.what}; {finding.fix}")
    return found


def test_a_cluster_that_is_ready_is_all_right() -> None:
    found = examined(Answering(answers=ready()))
    assert found["bad"] == []
    assert any("v1.33.1" in line for line in found["ok"])


def test_a_labelled_node_without_allocatable_gpus_lacks_its_driver() -> None:
    api = Answering(answers={**ready(), "/api/v1/nodes": {"items": [node("gpu-1", 0)]}})
    (line,) = examined(api)["bad"]
    assert "0 allocatable" in line
    assert "daemonset-preloaded.yaml" in line


def test_a_cluster_without_that_gpu_is_told_how_to_make_a_pool() -> None:
    api = Answering(answers={**ready(), "/api/v1/nodes": {"items": [node("gpu-1", 2, "nvidia-l4")]}})
    (line,) = examined(api)["bad"]
    assert "gcloud container node-pools create" in line
    assert "type=nvidia-tesla-t4,count=2" in line


def test_missing_permissions_are_named_with_the_command_that_gives_them() -> None:
    (line,) = examined(Answering(answers=ready(), refused={"create roles"}))["bad"]
    assert "may not create roles" in line
    assert "--clusterrole=admin" in line


@pytest.mark.parametrize(
    ("engine", "lacking"),
    [("statefulset", "patch jobs"), ("statefulset", "patch statefulsets"), ("pytorchjob", "patch pytorchjobs"),
     ("pytorchjob", "create jobs"), ("trainjob", "patch trainjobs")],
)  # fmt: skip
def test_what_starts_a_run_and_what_the_reaper_is_given_are_permissions_too(engine: str, lacking: str) -> None:
    told = examined(Answering(answers=ready(), refused={lacking}), engine=engine)["bad"]
    assert any(f"may not {lacking}" in line for line in told)


def test_a_missing_namespace_is_all_that_is_said() -> None:
    answers = {**ready()}
    del answers[NAMESPACE]
    assert "kubectl create namespace default" in examined(Answering(answers=answers))["bad"][0]


def test_an_operator_that_is_missing_or_asleep_is_said() -> None:
    (line,) = examined(Answering(answers=ready()), engine="pytorchjob")["bad"]
    assert "manifests/overlays/standalone?ref=v1.8.1" in line
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pytorchjobs.kubeflow.org"
    spec = {"template": {"spec": {"containers": [{"image": "kubeflow/training-operator:v1-855e096"}]}}}
    deployment = {"metadata": {"name": "training-operator", "namespace": "kubeflow"}, "spec": spec}
    there = {**ready(), crd: {}, "/apis/apps/v1/deployments": {"items": [deployment]}}
    (line,) = examined(Answering(answers=there), engine="pytorchjob")["bad"]
    assert "is not ready" in line
    deployment["status"] = {"readyReplicas": 1}
    found = examined(Answering(answers=there), engine="pytorchjob")
    assert found["bad"] == []
    assert any("v1-855e096" in line for line in found["ok"])


def test_the_accounts_binding_is_printed_with_the_values_filled_in() -> None:
    found = examined(Answering(answers=ready()), service_account="gcs-access")
    (line,) = found["note"]
    assert "my-project.svc.id.goog/subject/ns/default/sa/gcs-access" in line
    answers = ready()
    annotations = {"iam.gke.io/gcp-service-account": "trainer@my-project.iam.gserviceaccount.com"}
    answers[f"{NAMESPACE}/serviceaccounts/gcs-access"]["metadata"]["annotations"] = annotations
    (line,) = examined(Answering(answers=answers), service_account="gcs-access")["note"]
    assert "serviceAccount:my-project.svc.id.goog[default/gcs-access]" in line
    (line,) = examined(Answering(answers=ready()), service_account="nobody")["bad"]
    assert "kubectl -n default create serviceaccount nobody" in line


def test_the_bindings_name_the_jobs_own_buckets() -> None:
    job = job_of(outputs="gs://runs/x", data=Data(train=(Source(source="gs://pictures/coco"),)))
    notes = examined(Answering(answers=ready()), job, service_account="gcs-access")["note"]
    bound = [note.partition("add-iam-policy-binding ")[2].split()[0] for note in notes]
    assert bound == ["gs://pictures", "gs://runs"]
    assert all("$(gcloud projects describe my-project" in note for note in notes)


@pytest.mark.parametrize(
    ("machine", "resources", "fix"),
    [
        ("n1-standard-4", {"cpus": 4}, "cpus: 3, or a larger"),
        ("n1-standard-4", {"cpus": 3, "memory": 15 * 10**9}, "memory: 11GiB, or a larger"),
        ("n1-standard-4", {"cpus": 3, "memory": 12 * 10**9}, ""),
        ("a-machine-of-tomorrow", {"cpus": 400}, ""),
    ],
)
def test_what_gke_reserves_of_a_node_is_not_there_for_pods(machine: str, resources: dict[str, Any], fix: str) -> None:
    job = job_of(resources=Resources(machine=machine, **resources))
    found = complaints(job)
    assert [fix in line for line in found] == ([True] if fix else [])
    assert complaints(job, platform="plain") == []


def test_a_job_without_a_machine_is_priced_on_one_that_holds_its_pods() -> None:
    for cpus, machine in ((3, "n1-standard-4"), (4, "n1-standard-8")):
        priced = quote(job_of(resources=Resources(cpus=cpus, memory=8 * 10**9)), "kubernetes", {})
        assert priced is not None
        assert priced.machine == machine


def room(*pods: str, cpus: str = "3920m") -> dict[str, Any]:
    """A cluster of two nodes; each pod requests that many CPUs on the first."""
    amounts = {"cpu": cpus, "memory": "12Gi"}
    nodes = [{"metadata": {"name": f"n{k}"}, "status": {"allocatable": amounts}} for k in range(2)]
    running = [{"spec": {"nodeName": "n0", "containers": [{"resources": {"requests": {"cpu": cpu}}}]}} for cpu in pods]
    return {**ready(), "/api/v1/nodes": {"items": nodes}, "/api/v1/pods": {"items": running}}


def test_the_doctor_sees_what_other_pods_leave_free() -> None:
    job = job_of(resources=Resources(cpus=3, memory=8 * 10**9, nodes=2))
    found = examined(Answering(answers=room("500m")), job)
    assert "2 of 2 nodes have 3 CPUs and 8.0 GB free; the run needs 2; " in found["ok"]
    (line,) = examined(Answering(answers=room("500m", "800m")), job)["note"]
    assert line.startswith("1 of 2 nodes have 3 CPUs and 8.0 GB free; the run needs 2; kubectl top nodes")
    (line,) = examined(Answering(answers=room(cpus="1930m")), job)["bad"]
    assert "the largest has 1.93 CPUs and 12.9 GB for pods" in line


def test_the_doctor_reads_the_namespaces_quota() -> None:
    quota = {
        "metadata": {"name": "team"},
        "status": {"hard": {"requests.cpu": "8", "limits.cpu": "16"}, "used": {"requests.cpu": "3"}},
    }
    answers = {**room(), f"{NAMESPACE}/resourcequotas": {"items": [quota]}}
    found = examined(Answering(answers=answers), job_of(resources=Resources(cpus=3, nodes=2)))
    assert found["bad"] == [
        "quota team leaves 5 of requests.cpu, and the run requests 6; kubectl -n default describe resourcequota team"
    ]
    (note,) = found["note"]
    assert '"kind": "LimitRange"' in note


def test_the_pytorchjobs_of_a_bare_operator_need_a_role_of_their_own() -> None:
    (line, *_) = examined(Answering(answers=ready(), refused={"create pytorchjobs"}), engine="pytorchjob")["bad"]
    assert "role headway-jobs --verb=create,get,list,delete,patch --resource=pytorchjobs.kubeflow.org" in line


def test_code_that_asks_the_cluster_gets_the_token_of_an_account_that_may_view() -> None:
    commands = (
        "kubectl -n default create role headway-view --verb=get,list,watch --resource=pods,services && "
        "kubectl -n default create rolebinding headway-view-gcs-access --role=headway-view "
        "--serviceaccount=default:gcs-access"
    )
    review = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    asks: dict[str, Any] = {"service_account": "gcs-access", "token": True}
    refused = Answering(answers={**ready(), review: {"status": {"allowed": False}}})
    (line,) = examined(refused, **asks)["bad"]
    assert line == f"token: gcs-access may not list pods and services; {commands}"
    allowed = Answering(answers={**ready(), review: {"status": {"allowed": True}}})
    assert any("token: gcs-access may view" in line for line in examined(allowed, **asks)["ok"])
    assert any(commands in line for line in examined(Answering(answers=ready()), **asks)["note"])
    assert any(commands in note for note in KubernetesTarget(Options(**asks)).notes(job_of(), 1))
    assert not any("token" in note for note in KubernetesTarget(Options()).notes(job_of(), 1))


def test_a_token_needs_an_account() -> None:
    (problem,) = [each for each in KubernetesTarget(Options(token=True)).check(job_of()) if "token" in each.what]
    assert "create serviceaccount" in problem.fix


@pytest.mark.parametrize("token", [False, True])
def test_pods_have_a_token_only_where_it_is_asked_for(token: bool) -> None:
    options = Options(service_account="viewer", token=token)
    spec = kubernetes_pod.pod_spec(plan_of(options), options, container="worker", restart=None, env={})
    assert (spec["automountServiceAccountToken"], spec["serviceAccountName"]) == (token, "viewer")


def test_what_the_job_refers_to_is_looked_for() -> None:
    job = job_of(secrets={"TOKEN": Secret(ref="k8s://hub/token")}, mounts=(Mount(pvc="scratch", at="/scratch"),))
    found = examined(Answering(answers=ready()), job, pull_secrets=("registry",))
    assert len(found["bad"]) == 3
    assert any("--from-literal=token=" in line for line in found["bad"])
    there = {
        **ready(),
        f"{NAMESPACE}/secrets/hub": {"metadata": {}, "data": {"token": "eA=="}},
        f"{NAMESPACE}/secrets/registry": {"metadata": {}},
        f"{NAMESPACE}/persistentvolumeclaims/scratch": {},
    }
    assert examined(Answering(answers=there), job, pull_secrets=("registry",))["bad"] == []


def test_what_may_not_be_looked_at_is_a_note() -> None:
    found = examined(Answering(answers={**ready(), "/api/v1/nodes": Forbidden}))
    assert found["bad"] == []
    assert any("nodes" in line for line in found["note"])


# Links, and words for what keeps a pod waiting.


def test_links_lead_to_the_logs_of_this_run() -> None:
    target = KubernetesTarget(Options(context="gke_my-project_us-east1-c_training"), api=Answering())
    links = target.links(Handle(target="gke", run="r1", url="gs://b/r1"))
    assert "project=my-project" in links["logs"]
    assert "headway_run" in links["logs"]
    assert "us-east1-c/training/default/r1" in links["workload"]
    assert KubernetesTarget(Options(context="kind"), api=Answering()).links(Handle(target="x", run="r", url="u")) == {}


@pytest.mark.parametrize(
    ("trouble", "advice"),
    [
        ("Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "headway doctor"),
        ("Unschedulable: 0/1 nodes are available: 1 node(s) didn't match node selector.", "no node has these labels"),
        ("ErrImagePull: rpc error: not found", "headway image --push"),
        ("FailedCreate: pods is forbidden: exceeded quota: compute", "kubectl describe resourcequota"),
        ('CreateContainerConfigError: secret "hub" not found', "k8s://"),
    ],
)
def test_what_keeps_a_pod_waiting_is_said_with_what_to_do(trouble: str, advice: str) -> None:
    assert advice in kubernetes_status.with_advice(trouble)


def test_why_is_told_what_the_cluster_remembers_also_of_pods_that_are_gone() -> None:
    def event(about: str, reason: str, at: str) -> dict[str, Any]:
        object_ = {"name": about}
        return {"involvedObject": object_, "reason": reason, "message": about, "lastTimestamp": at, "metadata": {}}

    remembered = [
        event("r1-1", "Evicted", "2026-01-01T00:00:02Z"),
        event("r1", "FailedCreate", "2026-01-01T00:00:01Z"),
        event("r1-worker-0", "FailedScheduling", "2026-01-01T00:00:03Z"),
        event("r10-0", "OfAnotherRun", "2026-01-01T00:00:04Z"),
        event("r1-reaper", "FailedMount", "2026-01-01T00:00:05Z"),
    ]
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    status = {"phase": "Running", "containerStatuses": [{"lastState": ended}]}
    pod = {"metadata": {"name": "r1-0"}, "status": status}
    api = Answering(
        answers={"/api/v1/namespaces/ml/events": {"items": remembered}, "/api/v1/namespaces/ml/pods": {"items": [pod]}}
    )
    told = KubernetesTarget(Options(namespace="ml"), api=api).evidence(Handle(target="gke", run="r1", url="gs://b/r1"))
    words = ["FailedCreate", "Evicted", "FailedScheduling", "FailedMount", "pod r1-0"]
    assert [line.partition(":")[0] for line in told] == words, "the reaper calls the workers: what keeps it keeps them"
    assert told[-1] == "pod r1-0: ended with 137, OOMKilled"
