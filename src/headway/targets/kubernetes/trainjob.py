"""Manifest of a TrainJob for the installed release of Kubeflow Trainer (trainer.kubeflow.org/v1alpha1). Pure.

Releases differ in how a job overrides its runtime's pods: 2.0 podSpecOverrides, 2.1 podTemplateOverrides, since 2.2
runtimePatches. The plan's notes list the settings that a release cannot express.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.core.plan import RUN
from headway.core.types import Request
from headway.targets.kubernetes import pod
from headway.targets.kubernetes.options import Options, Trainer, labels, metadata, owned_by

if TYPE_CHECKING:
    from headway.core.plan import Plan

Object = dict[str, Any]
API_VERSION, KIND = "trainer.kubeflow.org/v1alpha1", "TrainJob"
OWNER = API_VERSION, KIND, RUN
START: Object = {"suspend": False}
CRD = "trainjobs.trainer.kubeflow.org"
JOB, CONTAINER = "node", "node"  # in Kubeflow's own torch runtimes
MANAGER = "headway.io/launcher"
POD_LABEL = "jobset.sigs.k8s.io/jobset-name"
MAX_NAME = 63 - len("-node-0-") - len("-abcde")  # names of JobSet's pods: its name, an index and five characters


def requests(plan: Plan, options: Options, release: Trainer, spent_s: float = 0.0) -> list[Request]:
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata(plan, options, RUN),
        "spec": _spec(plan, options, release, spent_s),
    }
    found = [Request(name="trainjob.json", body=body)]
    if options.service_account is None and not options.token:
        found.append(Request(name="serviceaccount.json", body=_account(plan, options)))
    return found


def release_of(schema: Mapping[str, Any]) -> Trainer | None:
    """Return the release of an installed CRD, by the fields in its schema; None if unknown."""
    spec = schema.get("properties", {}).get("spec", {}).get("properties", {})
    if "runtimePatches" in spec:
        return "2.3" if "terminationGracePeriodSeconds" in _pod_fields(spec) else "2.2"
    if "podTemplateOverrides" in spec:
        return "2.1"
    return "2.0" if "podSpecOverrides" in spec else None


def unsupported_fields(options: Options, release: Trainer) -> list[str]:
    """List the settings that this release cannot express, for which the runtime's own apply."""
    missing = []
    if release in ("2.0", "2.1"):
        missing.append("non-root and read-only pods (the runtime decides)")
    if release == "2.0" and options.pull_secrets:
        missing.append("pull_secrets (put them on the service account)")
    if release != "2.3":
        missing.append("the grace period (Kubernetes gives 30 s)")
    if options.priority:
        missing.append("priority")
    return missing


def _pod_fields(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pod spec's fields from the schema of a runtime patch."""
    node: Mapping[str, Any] = spec["runtimePatches"]["items"]
    for name in ("trainingRuntimeSpec", "template", "spec", "replicatedJobs", "template", "spec", "template", "spec"):
        node = node.get("properties", {}).get(name, {})
        node = node.get("items", node)
    found: Mapping[str, Any] = node.get("properties", {})
    return found


def _spec(plan: Plan, options: Options, release: Trainer, spent_s: float) -> Object:
    worker = pod.worker(plan, options, CONTAINER, {})
    spec: Object = {
        "suspend": True,  # until everything that its pods need exists
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": options.runtime},
        "trainer": {
            "image": worker["image"],
            "command": worker["command"],
            "env": worker["env"],
            "numNodes": plan.nodes,
            "numProcPerNode": plan.processes,
        },
    }
    if worker["resources"]:
        spec["trainer"]["resourcesPerNode"] = worker["resources"]
    if release in ("2.0", "2.1"):
        spec["labels"] = labels(plan, options, part="worker")
    seconds = pod.plan_lifetime_s(plan, spent_s)
    if seconds is not None and release in pod.WITH_DEADLINE:
        spec["activeDeadlineSeconds"] = seconds
    return {**spec, **_overrides(plan, options, release, worker)}


def _overrides(plan: Plan, options: Options, release: Trainer, worker: Object) -> Object:
    changed: Object = {"volumes": pod.volumes(plan, options), **pod.placement(plan, options)}
    container = {"name": CONTAINER, "volumeMounts": worker["volumeMounts"]}
    if not options.token:
        changed.setdefault("serviceAccountName", RUN)  # our own account, with automountServiceAccountToken: false
    if release == "2.0":
        changed.pop("imagePullSecrets", None)
        return {"podSpecOverrides": [{"targetJobs": [{"name": JOB}], **changed, "containers": [container]}]}
    meta = {"labels": labels(plan, options, part="worker")}
    if release == "2.1":
        spec = {**changed, "containers": [container]}
        return {"podTemplateOverrides": [{"targetJobs": [{"name": JOB}], "metadata": meta, "spec": spec}]}
    changed["securityContext"] = pod.security(options)
    changed["containers"] = [{**container, "securityContext": pod.container_security()}]
    if release == "2.3":
        changed["terminationGracePeriodSeconds"] = pod.grace_period_s(plan)
    template = {"spec": {"template": {"metadata": meta, "spec": changed}}}
    jobs = {"replicatedJobs": [{"name": JOB, "template": template}]}
    return {"runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": jobs}}}]}


def _account(plan: Plan, options: Options) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {**metadata(plan, options, RUN), "ownerReferences": owned_by(*OWNER)},
        "automountServiceAccountToken": False,
    }
