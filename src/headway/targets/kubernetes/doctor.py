"""Check what a job needs in a cluster, with the exact command for what is missing, and list billable GPU nodes.

Read-only, at no cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headway.core.errors import BadInput
from headway.core.types import Finding
from headway.pricing.quote import region_of
from headway.pricing.table import ACCELERATOR, MACHINE, Price, load
from headway.storage.secrets import parse
from headway.targets.kubernetes import capacity, checks, client, lifecycle, pod, status
from headway.targets.kubernetes.client import Api, ApiError, Forbidden, NotFound, Object
from headway.targets.kubernetes.options import Options

if TYPE_CHECKING:
    from headway.spec import Job


__all__ = ["Finding", "findings"]
DRIVER = (
    "kubectl apply -f https://raw.githubusercontent.com/GoogleCloudPlatform/container-engine-accelerators/master/"
    "nvidia-driver-installer/cos/daemonset-preloaded.yaml"
)
_OPERATOR = "github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.8.1"
INSTALL_PYTORCHJOB = f'kubectl apply --server-side -k "{_OPERATOR}"'
_POOL_COMMAND = ("create", "get", "list", "delete")
_SETUP_HINT = {"statefulset": "Job", "pytorchjob": "PyTorchJob", "trainjob": "TrainJob"}  # patched to start a run


def findings(api: Api, options: Options, job: Job, context: str) -> Iterator[Finding]:
    """Yield all findings; stop early if the cluster does not answer or lacks the namespace."""
    try:
        version = api("GET", "/version")
    except ApiError as error:
        yield Finding("bad", str(error.problem.what), error.problem.fix or status.renew_credentials(options, context))
        return
    named = f"context {context}" if context else "the cluster"
    yield Finding("ok", f"{named} answers: Kubernetes {version.get('gitVersion', '?')}")
    if not _namespace_finding(api, options):
        fix = f"kubectl create namespace {options.namespace}"
        yield Finding("bad", f"there is no namespace {options.namespace}", fix)
        return
    yield from _permission_findings(api, options)
    yield from _operator_finding(api, options)
    yield from _node_findings(api, options, job)
    yield from _account_findings(api, options, job, context)
    yield from _reference_findings(api, options, job)


def _namespace_finding(api: Api, options: Options) -> bool:
    try:
        api("GET", f"/api/v1/namespaces/{options.namespace}")
    except NotFound:
        return False
    except Forbidden:
        pass  # users of a namespace often may not read the namespace object
    return True


def _permission_findings(api: Api, options: Options) -> Iterator[Finding]:
    """Check every permission that `run`, `status`, `logs` and `down` need."""
    required = [
        (kind, verb) for kind in client.KINDS_BY_ENGINE[options.engine] if kind != "Pod" for verb in _POOL_COMMAND
    ]
    required += [("Pod", verb) for verb in ("get", "list", "delete")]
    required.append((_SETUP_HINT[options.engine], "patch"))
    missing = [
        f"{verb} {client.REST_PATHS[kind][1]}" for kind, verb in required if not _is_allowed(api, options, kind, verb)
    ]
    missing += [
        f"get {what}" for what in ("pods/log",) if not _is_allowed(api, options, "Pod", "get", subresource="log")
    ]
    # RBAC lets users grant the reaper only permissions that they have themselves.
    if options.engine == "statefulset" and not _is_allowed(api, options, "StatefulSet", "patch", subresource="scale"):
        missing.append("patch statefulsets/scale")
    if not missing:
        yield Finding("ok", f"all permissions are there in namespace {options.namespace}")
        return
    fix = _grant(options)
    yield Finding("bad", f"may not {', '.join(missing[:6])}{' …' if len(missing) > 6 else ''}", fix)


def _grant(options: Options) -> str:
    """Return the commands that give the user what is missing.

    Creating the reaper's Role needs the cluster role `admin`; `edit` does not allow it. Neither includes Kubeflow's
    objects where its operator was installed without the roles for users.
    """
    kubectl = f"kubectl -n {options.namespace} create"
    user = '--user="$(gcloud config get account)"' if options.platform == "gke" else "--user=NAME"
    role = "admin" if options.engine == "statefulset" else "edit"
    commands = [f"{kubectl} rolebinding headway-users --clusterrole={role} {user}"]
    resource = {"pytorchjob": "pytorchjobs.kubeflow.org", "trainjob": "trainjobs.trainer.kubeflow.org"}.get(
        options.engine
    )
    if resource:
        verbs = ",".join((*_POOL_COMMAND, "patch"))
        commands += [
            f"{kubectl} role headway-jobs --verb={verbs} --resource={resource}",
            f"{kubectl} rolebinding headway-jobs --role=headway-jobs {user}",
        ]
    return " && ".join(commands)


def _is_allowed(api: Api, options: Options, kind: str, verb: str, subresource: str = "") -> bool:
    place, plural = client.REST_PATHS[kind]
    group = place.split("/")[2] if place.startswith("/apis/") else ""
    asked: dict[str, Any] = {
        "namespace": options.namespace,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "verb": verb,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = api("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
    return bool(answer.get("status", {}).get("allowed"))


def _operator_finding(api: Api, options: Options) -> Iterator[Finding]:
    """Check the engine's CRD and its operator."""
    if options.engine == "statefulset":
        yield Finding("ok", "engine statefulset needs no operator")
    elif options.engine == "pytorchjob":
        if _crd(api, "pytorchjobs.kubeflow.org") is None:
            yield Finding("bad", "this cluster has no PyTorchJob", INSTALL_PYTORCHJOB)
        else:
            yield _deployment_finding(api, "training-operator", "PyTorchJob is installed", INSTALL_PYTORCHJOB)
    else:
        yield from _trainer_finding(api, options)


def _trainer_finding(api: Api, options: Options) -> Iterator[Finding]:
    try:
        release = lifecycle.installed_trainer(api, options)
    except BadInput as error:
        yield Finding("bad", error.problem.what, error.problem.fix)
        return
    yield _deployment_finding(
        api, "kubeflow-trainer", f"TrainJob of release {release} is installed", lifecycle.INSTALL_TRAINER
    )
    try:
        api("GET", f"/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes/{options.runtime}")
        yield Finding("ok", f"runtime {options.runtime}")
    except NotFound:
        fix = lifecycle.INSTALL_TRAINER.partition(" && ")[2]
        yield Finding("bad", f"there is no ClusterTrainingRuntime {options.runtime}", fix)
    except Forbidden:
        yield Finding("note", f"may not look whether the runtime {options.runtime} is there")


def _deployment_finding(api: Api, name: str, what: str, fix: str) -> Finding:
    """Check that the operator runs; its version is its image's tag."""
    try:
        answer = api("GET", "/apis/apps/v1/deployments")
    except (Forbidden, NotFound):
        return Finding("note", f"{what}; may not look whether its operator runs")
    for item in answer.get("items") or ():
        if item["metadata"]["name"].startswith(name):
            images = [each["image"] for each in item["spec"]["template"]["spec"]["containers"]]
            ready = (item.get("status") or {}).get("readyReplicas", 0)
            where = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            if not ready:
                fix = f"kubectl -n {item['metadata']['namespace']} describe deployment {item['metadata']['name']}"
                return Finding("bad", f"{what}, and its operator {where} is not ready", fix)
            return Finding("ok", f"{what}; operator {where} runs {images[0].rpartition(':')[2]}")
    return Finding("bad", f"{what}, and no operator acts on it", fix)


def _crd(api: Api, name: str) -> Object | None:
    try:
        return api("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    except NotFound:
        return None
    except Forbidden:
        return {}  # no permission to read CRDs: the launch reports a problem


def _node_findings(api: Api, options: Options, job: Job) -> Iterator[Finding]:
    """Check whether any node could run the job."""
    try:
        items = api("GET", "/api/v1/nodes").get("items") or []
    except Forbidden:
        yield Finding("note", "may not look at the cluster's nodes")
        return
    yield Finding("ok", f"{len(items)} node{'s' if len(items) != 1 else ''}")
    yield from capacity.findings(api, options, job, items)
    wanted_gpus = job.resources.accelerator
    if wanted_gpus is None:
        return
    label = pod.accelerator(wanted_gpus.kind) if options.platform == "gke" else None
    matching = [item for item in items if label is None or _label(item, pod.ACCELERATOR) == label]
    shown = label or pod.GPU
    if label is not None and not matching:
        yield Finding("bad", f"no node has {shown}", _node_pool(options, job, label))
        return
    gpus_by_node = {item["metadata"]["name"]: int(capacity.allocatable(item, pod.GPU)) for item in matching}
    without_driver = [name for name, count in gpus_by_node.items() if count == 0]
    if label is not None and without_driver:
        yield Finding(
            "bad", f"{', '.join(without_driver)} has {shown} and 0 allocatable GPUs: the driver is missing", DRIVER
        )
    enough = [name for name, count in gpus_by_node.items() if count >= wanted_gpus.count]
    if len(enough) < job.resources.nodes:
        what = f"{job.resources.nodes} nodes with {wanted_gpus.count} × {shown} are wanted, and {len(enough)} are there"
        yield Finding("note", f"{what}: the rest must come from an autoscaler", _resize(options, job))
    else:
        yield Finding("ok", f"{len(enough)} node{'s' if len(enough) != 1 else ''} with {wanted_gpus.count} × {shown}")


def _label(item: Object, name: str) -> str:
    return str((item["metadata"].get("labels") or {}).get(name, ""))


def _node_pool(options: Options, job: Job, label: str) -> str:
    accelerator = job.resources.accelerator
    assert accelerator is not None
    machine = job.resources.machine or "n1-standard-8"
    spot = " --spot" if job.resources.spot else ""
    return (
        f"gcloud container node-pools create gpus --cluster {options.cluster or 'CLUSTER'} "
        f"--location {options.location or 'LOCATION'} --project {options.project or 'PROJECT'} "
        f"--machine-type {machine} --accelerator type={label},count={accelerator.count} "
        f"--num-nodes 0 --enable-autoscaling --min-nodes 0 --max-nodes {job.resources.nodes}{spot} "
        "--workload-metadata=GKE_METADATA"
    )


def _resize(options: Options, job: Job) -> str:
    where = f"--location {options.location or 'LOCATION'} --project {options.project or 'PROJECT'}"
    return (
        f"gcloud container clusters resize {options.cluster or 'CLUSTER'} --node-pool POOL "
        f"--num-nodes {job.resources.nodes} {where}"
    )


def _account_findings(api: Api, options: Options, job: Job, context: str) -> Iterator[Finding]:
    """Check the pods' service account and its binding to a Google service account."""
    name = options.service_account
    if name is None:
        return
    found = client.read(api, "ServiceAccount", options.namespace, name)
    if found is None:
        fix = f"kubectl -n {options.namespace} create serviceaccount {name}"
        yield Finding("bad", f"there is no service account {name}", fix)
        return
    yield Finding("ok", f"service account {name}")
    if options.token:
        yield _view_finding(api, options)
    if options.platform != "gke":
        return
    project = status.gke_cluster(options, context)[0] or "PROJECT"
    google = client.annotation(found, "iam.gke.io/gcp-service-account")
    if google:
        member = f"serviceAccount:{project}.svc.id.goog[{options.namespace}/{name}]"
        bind = f"gcloud iam service-accounts add-iam-policy-binding {google} --role roles/iam.workloadIdentityUser"
        fix = f'{bind} --member "{member}"'
        yield Finding("note", f"{name} acts as {google} if this binding is there", fix)
        return
    subject = f"{project}.svc.id.goog/subject/ns/{options.namespace}/sa/{name}"
    number = f"$(gcloud projects describe {project} --format='value(projectNumber)')"
    member = f"principal://iam.googleapis.com/projects/{number}/locations/global/workloadIdentityPools/{subject}"
    for bucket in _buckets(job):
        bind = f"gcloud storage buckets add-iam-policy-binding {bucket} --role roles/storage.objectUser"
        yield Finding("note", f"{name} reaches {bucket} if this binding is there", f'{bind} --member "{member}"')


def _buckets(job: Job) -> list[str]:
    """Return the Google buckets that the job reads or writes."""
    sources = [source.source for part in (job.data.train, job.data.val, job.data.test) for source in part]
    urls = [job.outputs, job.export.to or "", job.init_from or "", *sources]
    return sorted({f"gs://{url.split('/')[2]}" for url in urls if url.startswith("gs://")})


def _view_finding(api: Api, options: Options) -> Finding:
    """Check that code in a pod that asks the cluster with its token may view pods and services."""
    fix = checks.view_role_commands(options)
    user = f"system:serviceaccount:{options.namespace}:{options.service_account}"
    try:
        missing = [what for what in ("pods", "services") if not _account_may_list(api, options, user, what)]
    except (Forbidden, NotFound):
        return Finding("note", f"may not look whether {options.service_account} may view pods and services", fix)
    if missing:
        return Finding("bad", f"token: {options.service_account} may not list {' and '.join(missing)}", fix)
    return Finding("ok", f"token: {options.service_account} may view pods and services")


def _account_may_list(api: Api, options: Options, user: str, resource: str) -> bool:
    asked = {"namespace": options.namespace, "group": "", "resource": resource, "verb": "list"}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": asked},
    }
    answer = api("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=body)
    return bool(answer.get("status", {}).get("allowed"))


def _reference_findings(api: Api, options: Options, job: Job) -> Iterator[Finding]:
    """Check the secrets, claims and priority class that the job and the target's options refer to."""
    for name, secret in job.secrets.items():
        reference = parse(secret.ref)
        if reference.kind == "k8s":
            yield from _secret_findings(api, options, name, *reference.name.split("/", 1))
    for name in options.pull_secrets:
        if client.read(api, "Secret", options.namespace, name) is None:
            fix = f"kubectl -n {options.namespace} create secret docker-registry {name} --docker-server=…"
            yield Finding("bad", f"there is no pull secret {name}", fix)
    for claim in sorted({mount.pvc for mount in job.mounts if mount.pvc}):
        try:
            api("GET", f"/api/v1/namespaces/{options.namespace}/persistentvolumeclaims/{claim}")
            yield Finding("ok", f"volume claim {claim}")
        except NotFound:
            yield Finding("bad", f"there is no volume claim {claim}", f"kubectl -n {options.namespace} get pvc")
    if options.priority:
        try:
            api("GET", f"/apis/scheduling.k8s.io/v1/priorityclasses/{options.priority}")
        except NotFound:
            yield Finding("bad", f"there is no priority class {options.priority}", "kubectl get priorityclasses")
        except Forbidden:
            pass  # no permission to look: the launch reports a problem


def _secret_findings(api: Api, options: Options, variable: str, name: str, key: str) -> Iterator[Finding]:
    try:
        found = client.read(api, "Secret", options.namespace, name)
    except Forbidden:
        yield Finding("note", f"secret {variable}: may not look whether {name} is there")
        return
    if found is None or key not in (found.get("data") or {}):
        fix = f"kubectl -n {options.namespace} create secret generic {name} --from-literal={key}=…"
        yield Finding("bad", f"secret {variable}: there is no {name} with a key {key}", fix)
    else:
        yield Finding("ok", f"secret {variable} is there ({name}/{key})")


# Billable GPU node pools


POOL, ZONE = "cloud.google.com/gke-nodepool", "topology.kubernetes.io/zone"


def billable_resources(api: Api, options: Options) -> list[str]:
    """Return one line per GKE node pool with GPU nodes, idle or not: cost, and the command that shrinks it.

    Empty if listing nodes is forbidden.
    """
    if options.platform != "gke":
        return []
    try:
        items = api("GET", "/api/v1/nodes").get("items") or []
    except Forbidden:
        return []
    pools: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        labels = item["metadata"].get("labels") or {}
        if labels.get(pod.ACCELERATOR) and labels.get(POOL):
            pools.setdefault(str(labels[POOL]), []).append(item)
    return [_pool_line(name, nodes, options) for name, nodes in sorted(pools.items())]


def _pool_line(pool: str, nodes: list[dict[str, Any]], options: Options) -> str:
    prices = [_price(node) for node in nodes]
    known = [price for price in prices if price is not None]
    cost = f", ${sum(known):.2f}/h" if len(known) == len(prices) else ""
    count = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    where = f"--location {options.location or 'LOCATION'} --project {options.project or 'PROJECT'}"
    shrink = f"gcloud container clusters resize {options.cluster or 'CLUSTER'} --node-pool {pool} --num-nodes 0 {where}"
    return f"{count} with GPUs in pool {pool}{cost}; one that does not shrink by itself: {shrink}"


def _price(node: dict[str, Any]) -> float | None:
    """Return the dollars per hour of one node, by its labels; None if the price table lacks it."""
    labels = node["metadata"].get("labels") or {}
    kinds = {label: kind for kind, label in pod.ACCELERATORS.items()}
    kind = kinds.get(str(labels.get(pod.ACCELERATOR)))
    count = int(((node.get("status") or {}).get("capacity") or {}).get(pod.GPU, 0)) or 1
    region, table = region_of({"zone": labels.get(ZONE)}), load()
    body = table.price(MACHINE, str(labels.get(pod.MACHINE)), region)
    extra = table.price(ACCELERATOR, kind, region, count) if kind else None
    if body is None or extra is None:
        return None
    whole: Price = body + extra
    return whole.spot_usd if labels.get(pod.SPOT) == "true" else whole.usd
