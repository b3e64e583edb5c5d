"""Where each kind of object lives in the API, and the verbs on them. What is not there is a Gone, nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.targets.base import RUN_LABEL
from headway.targets.kubernetes.api import Api, Forbidden, Gone, Object

PAGE = 500
# In this order a run is taken down: what trains first, what the others depend on last.
PLACES: dict[str, tuple[str, str]] = {
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "PyTorchJob": ("/apis/kubeflow.org/v1", "pytorchjobs"),
    "TrainJob": ("/apis/trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "Job": ("/apis/batch/v1", "jobs"),
    "Service": ("/api/v1", "services"),
    "Secret": ("/api/v1", "secrets"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "Pod": ("/api/v1", "pods"),
}
KINDS_OF = {
    "statefulset": ("StatefulSet", "Job", "Service", "Secret", "RoleBinding", "Role", "ServiceAccount", "Pod"),
    "pytorchjob": ("PyTorchJob", "Job", "Secret", "Pod"),
    "trainjob": ("TrainJob", "Job", "Secret", "ServiceAccount", "Pod"),
}


def path(kind: str, namespace: str, name: str = "") -> str:
    group, plural = PLACES[kind]
    return f"{group}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def create(api: Api, body: Object) -> Object:
    return api("POST", path(body["kind"], body["metadata"]["namespace"]), body=body)


def change(api: Api, body: Object) -> Object:
    """A merge patch of one object, which it names itself."""
    metadata = body["metadata"]
    return api("PATCH", path(body["kind"], metadata["namespace"], metadata["name"]), body=body)


def scale(api: Api, kind: str, namespace: str, name: str, replicas: int) -> None:
    """Its number alone: a right to that is no right to what its pods are."""
    api("PATCH", f"{path(kind, namespace, name)}/scale", body={"spec": {"replicas": replicas}})


def read(api: Api, kind: str, namespace: str, name: str) -> Object | None:
    try:
        return api("GET", path(kind, namespace, name))
    except Gone:
        return None


def delete(
    api: Api, kind: str, namespace: str, name: str, *, policy: str = "Background", grace_s: int | None = None
) -> None:
    """What is gone already is success."""
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    try:
        api("DELETE", path(kind, namespace, name), body=options)
    except Gone:
        pass


def listed(api: Api, kind: str, namespace: str, selector: str = RUN_LABEL) -> list[Object]:
    """All objects of a kind with these labels. A kind that the cluster does not have has none."""
    found: list[Object] = []
    query = {"labelSelector": selector, "limit": str(PAGE)}
    while True:
        try:
            answer = api("GET", path(kind, namespace), query=query)
        except Gone:
            return found
        found += [{**item, "kind": kind} for item in answer.get("items") or ()]
        more = answer.get("metadata", {}).get("continue")
        if not more:
            return found
        query["continue"] = str(more)


def everything(api: Api, namespace: str, selector: str, *, needed: Iterable[str]) -> list[Object]:
    """Objects of every kind we ever make. Being forbidden to look at a kind that is not `needed` is no hindrance."""
    found: list[Object] = []
    for kind in PLACES:
        try:
            found += listed(api, kind, namespace, selector)
        except Forbidden:
            if kind in needed:
                raise
    return found


def label(item: Object, name: str) -> str:
    return str((item["metadata"].get("labels") or {}).get(name, ""))


def annotation(item: Object, name: str) -> str:
    return str((item["metadata"].get("annotations") or {}).get(name, ""))


def shown(item: Object) -> str:
    """How a receipt names it: as one would type it after `kubectl get`."""
    return f"{item['kind'].lower()}/{item['metadata']['name']}"
