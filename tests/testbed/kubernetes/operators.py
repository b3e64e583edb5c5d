"""What Kubeflow's operators do with a PyTorchJob and a TrainJob, as far as pods can tell: a small controller of ours.

Neither operator can be had where these tests run. Pods are made with the variables, names and labels that the projects
document; exit codes are answered and conditions are set as they would be. Objects pass the real CRDs first.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headway.core.errors import HeadwayError
from headway.targets.kubernetes import client, pytorchjob, trainjob
from headway.targets.kubernetes.client import AlreadyExists, Client, NotFound, Object
from tests.targets.kubernetes import schemas
from tests.testbed.kubernetes.cluster import Cluster
from tests.waiting import wait_until

EVERY_S = 0.5
NAMESPACE = "default"
CRDS = {"pytorchjob": "pytorchjobs-v1.9.0", "trainjob": "trainjobs-v2.3.0"}  # the newest of each engine's


@contextmanager
def operator(cluster: Cluster, crd: str) -> Iterator[None]:
    """Install the CRD and act on its objects until the block ends."""
    install(cluster, crd)
    over = threading.Event()
    api = Client()
    api._access()  # while KUBECONFIG is what the test has set
    act = _pytorch_jobs if crd.startswith("pytorchjobs") else _train_jobs
    worker = threading.Thread(target=_run, args=(api, act, over), daemon=True)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join(10)
        remove(cluster, crd)


def install(cluster: Cluster, crd: str) -> None:
    import tempfile

    definition = schemas.crd(crd)
    remove(cluster, crd)  # another release of it, left by a test that failed
    # A 1.20 API server refuses empty defaults of list keys, which newer ones take.
    text = json.dumps(definition).replace('"default": ""', '"default": "unnamed"')
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text)
        file.flush()
        cluster.kubectl("create", "--validate=false", "-f", file.name)
    name = definition["metadata"]["name"]
    wait_until(lambda: _served(cluster, name), f"{name} is served")


def _served(cluster: Cluster, name: str) -> bool:
    """Its condition says so, and its objects can be listed."""
    ready = '{.status.conditions[?(@.type=="Established")].status}'
    if cluster.kubectl("get", "crd", name, "-o", f"jsonpath={ready}", check=False) != "True":
        return False
    return '"items"' in cluster.kubectl("get", name, "-o", "json", check=False)


def remove(cluster: Cluster, crd: str) -> None:
    name = schemas.crd(crd)["metadata"]["name"]
    cluster.kubectl("delete", "crd", name, "--wait=true", "--timeout=60s", check=False)


def _run(api: Client, act: Any, over: threading.Event) -> None:
    while not over.wait(EVERY_S):
        try:
            act(api)
        except HeadwayError:
            continue  # the object went while we looked


def _pytorch_jobs(api: Client) -> None:
    for job in _items(api, "PyTorchJob"):
        if "deletionTimestamp" in job["metadata"] or _ended(job) or job["spec"].get("runPolicy", {}).get("suspend"):
            continue
        name, replicas = job["metadata"]["name"], job["spec"]["pytorchReplicaSpecs"]
        size = sum(each["replicas"] for each in replicas.values())
        pods = {}
        for role, spec in replicas.items():
            for index in range(spec["replicas"]):
                rank = index + (1 if role == "Worker" else 0)
                pod = _pytorch_pod(job, role, index, rank, size)
                pods[pod["metadata"]["name"]] = pod
        _service(
            api,
            job,
            f"{name}-master-0",
            {"training.kubeflow.org/job-name": name, "training.kubeflow.org/job-role": "master"},
        )
        master = _tend(api, pods, f"{name}-master-0")
        if master is not None:
            _clean(api, pods)
            _condition(api, "PyTorchJob", job, "Succeeded" if master == 0 else "Failed", f"exit code {master}")


def _pytorch_pod(job: Object, role: str, index: int, rank: int, size: int) -> Object:
    name = job["metadata"]["name"]
    labels = {
        pytorchjob.POD_LABEL: name,
        "training.kubeflow.org/replica-type": role.lower(),
        "training.kubeflow.org/replica-index": str(index),
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        **({"training.kubeflow.org/job-role": "master"} if role == "Master" else {}),
    }
    env = {
        "PYTHONUNBUFFERED": "1",
        "MASTER_PORT": "23456",
        "PET_MASTER_PORT": "23456",
        "MASTER_ADDR": f"{name}-master-0",
        "PET_MASTER_ADDR": f"{name}-master-0",
        "WORLD_SIZE": str(size),
        "RANK": str(rank),
        "PET_NPROC_PER_NODE": "auto",
        "PET_NODE_RANK": str(rank),
        "PET_NNODES": str(size),
    }
    template = job["spec"]["pytorchReplicaSpecs"][role]["template"]
    return _pod(job, f"{name}-{role.lower()}-{index}", template, "pytorch", labels, env)


def _train_jobs(api: Client) -> None:
    for job in _items(api, "TrainJob"):
        if "deletionTimestamp" in job["metadata"] or _ended(job) or job["spec"].get("suspend"):
            continue
        name, nodes = job["metadata"]["name"], int(job["spec"]["trainer"]["numNodes"])
        pods = {}
        for index in range(nodes):
            pod = _train_pod(job, index, nodes)
            pods[pod["metadata"]["name"]] = pod
        _service(api, job, name, {trainjob.POD_LABEL: name})
        codes = [_tend(api, pods, pod_name) for pod_name in pods]
        if any(code for code in codes):
            _condition(api, "TrainJob", job, "Failed", "BackoffLimitExceeded")
        elif all(code == 0 for code in codes):
            _condition(api, "TrainJob", job, "Complete", "jobs completed")


def _train_pod(job: Object, index: int, nodes: int) -> Object:
    """The runtime's pod with the job's changes merged into it, in whichever form its release says them."""
    name, spec = job["metadata"]["name"], job["spec"]
    trainer = spec["trainer"]
    changes: Object = {}
    labels: dict[str, str] = {**spec.get("labels", {})}
    if "podSpecOverrides" in spec:
        changes = spec["podSpecOverrides"][0]
    elif "podTemplateOverrides" in spec:
        changes = spec["podTemplateOverrides"][0]["spec"]
        labels |= spec["podTemplateOverrides"][0]["metadata"]["labels"]
    else:
        (jobs,) = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        changes = jobs["template"]["spec"]["template"]["spec"]
        labels |= jobs["template"]["spec"]["template"]["metadata"]["labels"]
    (override,) = changes["containers"]
    container = {
        "name": "node",
        "image": trainer["image"],
        "command": trainer["command"],
        "env": trainer["env"],
        **override,
    }
    kept = ("volumes", "securityContext", "serviceAccountName", "nodeSelector", "tolerations")
    pod_spec = {"containers": [container], **{key: changes[key] for key in kept if key in changes}}
    env = {
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": str(trainer.get("numProcPerNode", "auto")),
        "PET_NODE_RANK": str(index),
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }
    labels |= {
        trainjob.POD_LABEL: name,
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    pod = _pod(job, f"{name}-node-0-{index}-abcde", {"spec": pod_spec}, "node", labels, env)
    pod["spec"] |= {"hostname": f"{name}-node-0-{index}", "subdomain": name}
    return pod


def _pod(
    job: Object, name: str, template: Object, container: str, labels: dict[str, str], env: dict[str, str]
) -> Object:
    spec = copy.deepcopy(template["spec"])
    (named,) = [each for each in spec["containers"] if each["name"] == container]
    named["env"] = [*named.get("env", ()), *({"name": key, "value": value} for key, value in env.items())]
    meta = template.get("metadata", {})
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": job["metadata"]["name"],
             "uid": job["metadata"]["uid"], "controller": True}  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {**meta.get("labels", {}), **labels},
            "annotations": dict(meta.get("annotations", {})),
            "ownerReferences": [owner],
        },
        "spec": {**spec, "restartPolicy": "Never"},
    }


def _tend(api: Client, pods: dict[str, Object], name: str) -> int | None:
    """Make what is missing, make again what ended with 128 or more; the exit code of the one called `name`."""
    code = None
    for each, body in pods.items():
        found = client.read(api, "Pod", NAMESPACE, each)
        if found is None:
            _create(api, body)
            continue
        ended = _exit_code(found)
        if ended is not None and ended >= 128:
            client.delete(api, "Pod", NAMESPACE, each, grace_s=0)
        elif each == name and ended is not None:
            code = ended
    return code


def _clean(api: Client, pods: dict[str, Object]) -> None:
    """cleanPodPolicy: Running."""
    for name in pods:
        found = client.read(api, "Pod", NAMESPACE, name)
        if found is not None and _exit_code(found) is None:
            client.delete(api, "Pod", NAMESPACE, name)


def _exit_code(pod: Object) -> int | None:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    for status in statuses:
        ended = (status.get("state") or {}).get("terminated")
        if ended:
            return int(ended["exitCode"])
    return None


def _service(api: Client, job: Object, name: str, selector: dict[str, str]) -> None:
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": job["metadata"]["name"],
             "uid": job["metadata"]["uid"]}  # fmt: skip
    _create(
        api,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": NAMESPACE, "ownerReferences": [owner]},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": selector,
                "ports": [{"name": "pytorchjob-port", "port": 23456}],
            },
        },
    )


def _create(api: Client, body: Object) -> None:
    try:
        client.create(api, body)
    except AlreadyExists:
        pass


def _items(api: Client, kind: str) -> list[Object]:
    try:
        found: list[Object] = api("GET", client.path(kind, NAMESPACE)).get("items") or []
    except NotFound:
        return []
    return found


def _ended(job: Object) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(each["type"] in ("Succeeded", "Failed", "Complete") for each in conditions)


def _condition(api: Client, kind: str, job: Object, what: str, why: str) -> None:
    """As the operator leaves it, in the status subresource."""
    found = client.read(api, kind, NAMESPACE, job["metadata"]["name"])
    if found is None:
        return
    moment = "2026-01-01T00:00:00Z"
    condition = {
        "type": what,
        "status": "True",
        "reason": f"{kind}{what}",
        "message": why,
        "lastTransitionTime": moment,
    }
    if kind == "PyTorchJob":
        condition |= {"lastUpdateTime": moment}
        found["status"] = {"conditions": [condition], "replicaStatuses": {}}
    else:
        found["status"] = {"conditions": [condition]}
    api("PUT", f"{client.path(kind, NAMESPACE, job['metadata']['name'])}/status", body=found)
