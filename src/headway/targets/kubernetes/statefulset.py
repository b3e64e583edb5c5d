"""Manifests of a StatefulSet that ends by itself, on a cluster without an operator. Pure.

The reaper is a small Job, and the only part with access to the API server, limited to this one StatefulSet. It owns
everything else, so that Kubernetes deletes the rest when the reaper ends for any reason. The StatefulSet is created
with 0 replicas and scaled up by the running reaper, so that no worker ever runs without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.core.plan import RUN
from headway.core.types import RUN_LABEL, Request
from headway.packaging import supervisor_image
from headway.targets.kubernetes import pod
from headway.targets.kubernetes.options import (
    FOLDER,
    FOLDER_LABEL,
    MASTER_PORT,
    PART_LABEL,
    REAPER,
    Options,
    metadata,
    owned_by,
    url_of,
)

if TYPE_CHECKING:
    from headway.core.plan import Plan

Object = dict[str, Any]
OWNER = "batch/v1", "Job", REAPER
START: Object = {"parallelism": 1}
TTL_S = 60  # after the reaper ends, its Job is deleted with everything it owns
REAPER_MARGIN_S = 600  # after the reaper's own timer, the Job's deadline deletes everything
REAPER_RETRIES = 1000  # of the reaper, which must survive any failure
WORKER = {PART_LABEL: "worker"}


def requests(plan: Plan, options: Options, spent_s: float = 0.0) -> list[Request]:
    rights = (
        [] if options.service_account else [Request(name="serviceaccount.json", body=_service_account(plan, options))]
    )
    return [
        Request(name="reaper.json", body=_reaper(plan, options, pod.plan_lifetime_s(plan, spent_s))),
        *rights,
        Request(name="role.json", body=_role(plan, options)),
        Request(name="rolebinding.json", body=_binding(plan, options)),
        Request(name="service.json", body=_service(plan, options)),
        Request(name="statefulset.json", body=_stateful_set(plan, options)),
    ]


def _owned_metadata(plan: Plan, options: Options, name: str) -> Object:
    return {**metadata(plan, options, name), "ownerReferences": owned_by(*OWNER)}


def _stateful_set(plan: Plan, options: Options) -> Object:
    env = {
        "HEADWAY_STATEFULSET": RUN,
        "HEADWAY_SERVICE": RUN,
        "HEADWAY_NAMESPACE": options.namespace,
        "HEADWAY_REPLICAS": str(plan.nodes),
        "HEADWAY_AFTER_END": "idle",  # containers are always restarted: a finished run must not train again
    }
    template = {
        "metadata": {key: metadata(plan, options, RUN, part="worker")[key] for key in ("labels", "annotations")},
        "spec": pod.pod_spec(plan, options, container="worker", restart="Always", env=env),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _owned_metadata(plan, options, RUN),
        "spec": {
            "replicas": 0,  # until the reaper runs
            "serviceName": RUN,
            "podManagementPolicy": "Parallel",  # an ordered start would deadlock in the rendezvous
            "selector": {"matchLabels": _pod_selector()},
            "template": template,
        },
    }


def _pod_selector() -> dict[str, str]:
    return {RUN_LABEL: RUN, FOLDER_LABEL: FOLDER, **WORKER}


def _service(plan: Plan, options: Options) -> Object:
    """Build the headless Service that gives every pod a DNS name before it is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _owned_metadata(plan, options, RUN),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _pod_selector(),
            "ports": [{"name": "ranks", "port": MASTER_PORT}, {"name": "supervisors", "port": MASTER_PORT + 1}],
        },
    }


def _service_account(plan: Plan, options: Options) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _owned_metadata(plan, options, REAPER),
        "automountServiceAccountToken": False,
    }


def _role(plan: Plan, options: Options) -> Object:
    """Build the reaper's Role: get, delete and scale this one StatefulSet, but not change its pods."""
    run_only = {"apiGroups": ["apps"], "resourceNames": [RUN]}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": _owned_metadata(plan, options, REAPER),
        "rules": [
            {**run_only, "resources": ["statefulsets"], "verbs": ["get", "delete"]},
            {**run_only, "resources": ["statefulsets/scale"], "verbs": ["patch"]},
        ],
    }


def _binding(plan: Plan, options: Options) -> Object:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _owned_metadata(plan, options, REAPER),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": REAPER},
        "subjects": [{"kind": "ServiceAccount", "name": _user(options), "namespace": options.namespace}],
    }


def _user(options: Options) -> str:
    """Return the reaper's account: that of the workers if they have one, because it reads the run folder as they do."""
    return options.service_account or REAPER


def _reaper(plan: Plan, options: Options, seconds: int | None) -> Object:
    spec: Object = {
        "parallelism": 0,  # until everything that its pod needs exists
        "backoffLimit": REAPER_RETRIES,
        "ttlSecondsAfterFinished": TTL_S,
        "template": {
            "metadata": {key: metadata(plan, options, REAPER, part="reaper")[key] for key in ("labels", "annotations")},
            "spec": _reaper_pod(plan, options, seconds),
        },
    }
    if seconds is not None:
        spec["activeDeadlineSeconds"] = seconds + REAPER_MARGIN_S
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(plan, options, REAPER), "spec": spec}


def _supervisor_image(plan: Plan, options: Options, arguments: list[str]) -> Object:
    """Return image and command of a reaper whose run's image has no Headway inside; empty for other runs."""
    if not plan.code.runtime:
        return {}
    name = supervisor_image.image_name(str(options.supervisor), plan.code)
    return {"image": name, "command": pod.supervisor_words(pod.REAPER, *arguments)}


def _reaper_pod(plan: Plan, options: Options, seconds: int | None) -> Object:
    """Build the reaper's pod, without a GPU or node selector: it runs where waiting is cheap."""
    arguments = ["--run", url_of(plan), "--namespace", options.namespace, "--set", RUN, "--workers", str(plan.nodes)]
    if seconds is not None:
        arguments += ["--lifetime", str(seconds)]
    if plan.limits.max_wait_s is not None:
        arguments += ["--max-wait", f"{plan.limits.max_wait_s:g}"]
    container: Object = {
        "name": "reaper",
        "image": pod.image(plan),
        "command": pod.command(plan, options, pod.REAPER, *arguments),
        **_supervisor_image(plan, options, arguments),
        "env": pod.environment(plan, {"HEADWAY_RUN": RUN, "HEADWAY_RUN_URL": url_of(plan)}),
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": pod.container_security(),
        "volumeMounts": pod.mounts(plan),
    }
    spec: Object = {
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "restartPolicy": "OnFailure",
        "securityContext": pod.security(options),
        "serviceAccountName": _user(options),
        "terminationGracePeriodSeconds": 5,  # it has nothing to save
        "containers": [container],
        "volumes": pod.volumes(plan, options),
    }
    if options.tolerations:  # all nodes may be tainted, and it must run on one of them
        spec["tolerations"] = [dict(each) for each in options.tolerations]
    if options.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    return spec
