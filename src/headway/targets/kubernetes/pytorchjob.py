"""Manifest of a PyTorchJob for Kubeflow's training operator (kubeflow.org/v1). Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from headway.core.plan import RUN
from headway.core.types import Request
from headway.targets.kubernetes import pod
from headway.targets.kubernetes.options import Options, metadata

if TYPE_CHECKING:
    from headway.core.plan import Plan

Object = dict[str, Any]
API_VERSION, KIND = "kubeflow.org/v1", "PyTorchJob"
OWNER = API_VERSION, KIND, RUN
START: Object = {"runPolicy": {"suspend": False}}
CONTAINER = "pytorch"  # the operator looks for a container of this name
POD_LABEL = "training.kubeflow.org/job-name"


def requests(plan: Plan, options: Options, spent_s: float = 0.0) -> list[Request]:
    replicas = {"Master": _replica(plan, options, 1)}
    if plan.nodes > 1:
        replicas["Worker"] = _replica(plan, options, plan.nodes - 1)
    policy: Object = {
        "suspend": True,  # until everything that its pods need exists
        "cleanPodPolicy": "Running",  # delete workers that outlive the master; keep ended pods for kubectl
        "ttlSecondsAfterFinished": math.ceil(options.keep),
    }
    seconds = pod.plan_lifetime_s(plan, spent_s)
    if seconds is not None:
        policy["activeDeadlineSeconds"] = seconds
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata(plan, options, RUN),
        "spec": {"runPolicy": policy, "pytorchReplicaSpecs": replicas},
    }
    return [Request(name="pytorchjob.json", body=body)]


def _replica(plan: Plan, options: Options, count: int) -> Object:
    template = {
        "metadata": {key: metadata(plan, options, RUN, part="worker")[key] for key in ("labels", "annotations")},
        "spec": pod.pod_spec(plan, options, container=CONTAINER, restart=None, env={}),
    }
    # ExitCode: the operator treats 0 to 127 as final and restarts 128 and above (143 after a preemption).
    return {"replicas": count, "restartPolicy": "ExitCode", "template": template}
