"""The rules by which an API server and the webhooks of Kubeflow reject an object: for tests without a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.plan import RUN
from headway.targets.kubernetes import client, trainjob
from headway.targets.kubernetes.checks import label_problem
from headway.targets.kubernetes.client import ApiError, Client
from headway.targets.kubernetes.lifecycle import MAX_STATEFULSET_NAME

Object = Mapping[str, Any]
_DNS_1035 = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?")
_TRAINER_VARIABLES = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")


@dataclass
class Admitting(Client):
    """An API server that answers dry runs by these rules, and creates nothing."""

    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    refuses: ApiError | None = None  # raised instead

    def __call__(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: client.Object | None = None
    ) -> client.Object:
        self.requests.append((method, path, dict(query or {})))
        if self.refuses is not None:
            raise self.refuses
        assert body is not None
        problems = admission_problems(body)
        if problems:
            raise ApiError(f"{body['kind']} is invalid: {problems[0]}", code=422, message=problems[0])
        return body


def admission_problems(body: Object) -> list[str]:
    """Describe why a cluster would reject one object; empty if it would accept it."""
    found = [*_metadata_problems(body["metadata"])]
    kind = body["kind"]
    if kind == "PyTorchJob":
        found += _pytorch_job_problems(body)
    elif kind == "TrainJob":
        found += _train_job_problems(body)
    elif kind == "StatefulSet":
        found += _stateful_set_problems(body)
    for where, template in pods(body):
        found += [f"{where}: {what}" for what in _pod_problems(template)]
    return found


def pods(body: Object) -> Iterator[tuple[str, Object]]:
    """Yield the pod templates of an object, each with its role."""
    spec = body.get("spec", {})
    if body["kind"] in ("StatefulSet", "Job"):
        yield "template", spec["template"]["spec"]
    for role, replica in spec.get("pytorchReplicaSpecs", {}).items():
        yield role, replica["template"]["spec"]


def _metadata_problems(metadata: Object) -> Iterator[str]:
    name = str(metadata["name"]).replace(RUN, "run")
    if len(name) > 63 or not _DNS_1035.fullmatch(name):
        yield f"{name!r} cannot be a name: lower case letters, digits and dashes, at most 63, starting with a letter"
    for key, value in metadata.get("labels", {}).items():
        problem = label_problem(key, re.sub(r"\{[A-Z_]+\}", "x", str(value)))
        if problem:
            yield problem


def _pytorch_job_problems(body: Object) -> Iterator[str]:
    """Check the webhook's rules: at most one Master, and in each role a container named pytorch with an image."""
    replicas = body["spec"].get("pytorchReplicaSpecs") or {}
    if not replicas:
        yield "a PyTorchJob needs replicas"
    for role, spec in replicas.items():
        if role not in ("Master", "Worker"):
            yield f"a PyTorchJob has no role {role}: only Master and Worker"
        containers = spec["template"]["spec"].get("containers") or []
        named = [each for each in containers if each["name"] == "pytorch"]
        if not named or not all(each.get("image") for each in containers):
            yield f"{role} needs a container named pytorch, with an image"
        if spec.get("restartPolicy", "OnFailure") not in ("Always", "OnFailure", "Never", "ExitCode"):
            yield f"{role} has no restart policy {spec['restartPolicy']}"
    if replicas.get("Master", {}).get("replicas", 1) != 1:
        yield "a PyTorchJob has one Master"
    if "elasticPolicy" in body["spec"] and "Worker" not in replicas:
        yield "an elastic PyTorchJob needs a Worker"


def _train_job_problems(body: Object) -> Iterator[str]:
    spec, name = body["spec"], str(body["metadata"]["name"])
    if not spec.get("runtimeRef", {}).get("name"):
        yield "a TrainJob needs a runtimeRef with a name"
    trainer = spec.get("trainer", {})
    for variable in trainer.get("env", ()):
        if variable["name"] in _TRAINER_VARIABLES:
            yield f"{variable['name']} is set by Kubeflow Trainer"
    longest = trainjob.MAX_NAME - len(str(trainer.get("numNodes", 1) - 1))
    if name != RUN and len(name) > longest:
        yield f"a TrainJob's name has at most {longest} characters here: its pods' names are made of it"
    if trainer.get("numNodes", 1) < 1 or trainer.get("numProcPerNode", 1) < 1:
        yield "a TrainJob has at least one node and one process on each"
    if spec.get("managedBy") not in (
        None,
        "trainer.kubeflow.org/trainjob-controller",
        "kueue.x-k8s.io/multikueue",
    ):
        yield "managedBy is trainer.kubeflow.org/trainjob-controller or kueue.x-k8s.io/multikueue"
    if spec.get("activeDeadlineSeconds", 1) < 1:
        yield "activeDeadlineSeconds is at least 1"
    managers = [patch["manager"] for patch in spec.get("runtimePatches", ())]
    if len(set(managers)) < len(managers):
        yield "each runtime patch has a manager of its own"


def _stateful_set_problems(body: Object) -> Iterator[str]:
    spec, name = body["spec"], str(body["metadata"]["name"])
    template = spec["template"]
    if name != RUN and len(name) > MAX_STATEFULSET_NAME:
        yield f"a StatefulSet's name has at most {MAX_STATEFULSET_NAME} characters: its pods carry it in a label"
    labels = template["metadata"]["labels"]
    if not spec["selector"]["matchLabels"].items() <= labels.items():
        yield "the selector does not match the template's labels"
    if template["spec"].get("restartPolicy", "Always") != "Always":
        yield "a StatefulSet's pods are always started again: restartPolicy Always"
    if "activeDeadlineSeconds" in template["spec"]:
        yield "a StatefulSet's pods may have no activeDeadlineSeconds"


def _pod_problems(pod: Object) -> Iterator[str]:
    volumes = [volume["name"] for volume in pod.get("volumes", ())]
    if len(set(volumes)) < len(volumes):
        yield "two volumes have the same name"
    for container in pod["containers"]:
        paths = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
        for path in sorted({path for path in paths if paths.count(path) > 1}):
            yield f"two volumes are mounted at {path}"
        for mount in container.get("volumeMounts", ()):
            if mount["name"] not in volumes:
                yield f"no volume is called {mount['name']}"
            if ":" in mount["mountPath"]:
                yield f"{mount['mountPath']} has a colon, which no path of a mount may have"
        names = [variable["name"] for variable in container.get("env", ())]
        if len(set(names)) < len(names):
            yield "a variable is set twice"
        resources = container.get("resources", {})
        for name, amount in resources.get("limits", {}).items():
            asked = resources.get("requests", {}).get(name, amount)
            if "/" in name and asked != amount:
                yield f"{name}: what is asked for and its limit must be equal"
