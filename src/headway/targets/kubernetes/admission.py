"""Client-side admission checks: names, labels, and the rules of Kubeflow's webhooks and CRDs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from headway.core.plan import RUN
from headway.targets.kubernetes.engines import trainjob

Object = Mapping[str, Any]
LONGEST_SET = 52  # its pods carry a label of its name, a dash and a ten-character hash
LONGEST_LABEL = 63
_DNS_1035 = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_OPERATORS_OWN = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")


def problems(body: Object) -> list[str]:
    """Describe why a cluster would reject one object; empty if it would accept it."""
    found = [*_metadata(body["metadata"])]
    kind = body["kind"]
    if kind == "PyTorchJob":
        found += _pytorch_job(body)
    elif kind == "TrainJob":
        found += _train_job(body)
    elif kind == "StatefulSet":
        found += _stateful_set(body)
    for where, pod in pods(body):
        found += [f"{where}: {what}" for what in _pod(pod)]
    return found


def pods(body: Object) -> Iterator[tuple[str, Object]]:
    """Yield the pod templates of an object, each with its role."""
    spec = body.get("spec", {})
    if body["kind"] in ("StatefulSet", "Job"):
        yield "template", spec["template"]["spec"]
    for role, replica in spec.get("pytorchReplicaSpecs", {}).items():
        yield role, replica["template"]["spec"]


def label_problem(key: str, value: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _DNS_SUBDOMAIN.fullmatch(prefix)):
        return f"{prefix!r} cannot be the prefix of a label"
    if len(name) > LONGEST_LABEL or not _LABEL_NAME.fullmatch(name):
        return f"{key!r} cannot be a label"
    if len(value) > LONGEST_LABEL or not _LABEL_VALUE.fullmatch(value):
        return f"{value!r} cannot be the value of the label {key}"
    return None


def is_name(text: str) -> bool:
    """Return whether the text is a DNS label, as namespaces' names must be."""
    return len(text) <= 63 and re.fullmatch(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", text) is not None


def is_subdomain(text: str) -> bool:
    """Return whether the text is a DNS subdomain, as most other objects' names must be."""
    return len(text) <= 253 and _DNS_SUBDOMAIN.fullmatch(text) is not None


def _metadata(metadata: Object) -> Iterator[str]:
    name = str(metadata["name"]).replace(RUN, "run")
    if len(name) > 63 or not _DNS_1035.fullmatch(name):
        yield f"{name!r} cannot be a name: lower case letters, digits and dashes, at most 63, starting with a letter"
    for key, value in metadata.get("labels", {}).items():
        wrong = label_problem(key, re.sub(r"\{[A-Z_]+\}", "x", str(value)))
        if wrong:
            yield wrong


def _pytorch_job(body: Object) -> Iterator[str]:
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


def _train_job(body: Object) -> Iterator[str]:
    spec, name = body["spec"], str(body["metadata"]["name"])
    if not spec.get("runtimeRef", {}).get("name"):
        yield "a TrainJob needs a runtimeRef with a name"
    trainer = spec.get("trainer", {})
    for variable in trainer.get("env", ()):
        if variable["name"] in _OPERATORS_OWN:
            yield f"{variable['name']} is set by Kubeflow Trainer"
    longest = trainjob.LONGEST - len(str(trainer.get("numNodes", 1) - 1))
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


def _stateful_set(body: Object) -> Iterator[str]:
    spec, name = body["spec"], str(body["metadata"]["name"])
    template = spec["template"]
    if name != RUN and len(name) > LONGEST_SET:
        yield f"a StatefulSet's name has at most {LONGEST_SET} characters: its pods carry it in a label"
    labels = template["metadata"]["labels"]
    if not spec["selector"]["matchLabels"].items() <= labels.items():
        yield "the selector does not match the template's labels"
    if template["spec"].get("restartPolicy", "Always") != "Always":
        yield "a StatefulSet's pods are always started again: restartPolicy Always"
    if "activeDeadlineSeconds" in template["spec"]:
        yield "a StatefulSet's pods may have no activeDeadlineSeconds"


def _pod(pod: Object) -> Iterator[str]:
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
