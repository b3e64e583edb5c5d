"""Options of a Kubernetes target in the job file, and the names and labels of a run's objects."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from headway.core.plan import RUN
from headway.core.types import EXPIRES_LABEL, OWNER, OWNER_LABEL, OWNER_NAME, OWNER_NAME_LABEL, RUN_LABEL
from headway.spec.model import Bytes, ReferenceString, Seconds, Text
from headway.storage import join

if TYPE_CHECKING:
    from headway.core.plan import Plan


Engine = Literal["statefulset", "pytorchjob", "trainjob"]
Trainer = Literal["2.0", "2.1", "2.2", "2.3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    engine: Engine = "statefulset"  # pytorchjob and trainjob need Kubeflow's operator; statefulset needs nothing
    context: str | None = None  # context of the kubeconfig; by default its current one
    namespace: str = "default"  # namespace of all objects; by default that of the kubeconfig's context
    service_account: str | None = None  # service account of the pods; with Workload Identity it can access buckets
    token: bool = False  # give the pods the service account's token for the cluster's own API
    platform: Literal["gke", "plain"] = "gke"  # gke: accelerator and spot select nodes by Google's labels
    project: str | None = None  # Google Cloud project, for links and for the commands that `doctor` prints
    cluster: str | None = None  # the cluster's name in Google Cloud, for the same
    location: str | None = None  # its zone or region, for the same and for prices: us-east1-c
    node_selector: Mapping[str, Text] = field(default_factory=dict)  # more labels that nodes must have
    tolerations: tuple[Mapping[str, Any], ...] = ()  # more taints that pods tolerate
    labels: Mapping[str, Text] = field(default_factory=dict)  # more labels of all objects: a cost centre, a queue
    priority: str | None = None  # a PriorityClass
    pull_secrets: tuple[str, ...] = ()  # for a private registry
    shm: Bytes = 8_000_000_000  # size of the shared memory, which data loaders use to pass batches
    grace: Seconds = 30.0  # from SIGTERM to SIGKILL; on GKE's spot nodes at most 15 s
    keep: Seconds = 3600.0  # how long to keep a finished PyTorchJob, for kubectl
    user: Annotated[int, ">= 1"] = 1000  # the pods' user and group; never root
    price: Annotated[float, ">= 0"] | None = None  # USD per hour of one node; by default Google's price of the machine
    python: str = "python3"  # the interpreter inside the image
    supervisor: ReferenceString | None = None  # where the supervisor's image is pushed to, for any image.uri
    trainer: Trainer | None = None  # Kubeflow Trainer's release; by default the installed one's
    runtime: str = "torch-distributed"  # the ClusterTrainingRuntime of a TrainJob


# Names and labels of a run's objects in a cluster, and the placeholders in their manifests. Pure.


KIND = "kubernetes"
URL_ANNOTATION = "headway.url"  # a label's value may not be a URL …
FOLDER_LABEL = "headway.folder"  # … so a label holds its hash: two folders may each hold a run of the same name
PART_LABEL = "headway.part"  # worker, reaper or fuse

# Placeholders in a plan, filled in at launch.
OWNER_UID, GUARD_UID, EXPIRES, FOLDER = "{OWNER_UID}", "{FUSE_UID}", "{EXPIRES}", "{FOLDER}"
REAPER = f"{RUN}-reaper"

# Paths and port inside a pod.
CODE, NODE, HOME, WHEEL = "/headway/code", "/headway/node", "/home/headway", "/headway/wheel"
SECRETS, WORK = "/headway/secrets", "/run/headway"
MASTER_PORT = 29500


def url_of(plan: Plan, run: str = RUN) -> str:
    return join(str(plan.job["outputs"]), run)


def folder_hash(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:12]


def metadata(plan: Plan, options: Options, name: str, *, part: str | None = None) -> dict[str, Any]:
    """Return the metadata of an object; `down` finds all objects of a run by its labels."""
    return {
        "name": name,
        "namespace": options.namespace,
        "labels": labels(plan, options, part=part),
        "annotations": {URL_ANNOTATION: url_of(plan), OWNER_NAME_LABEL: OWNER_NAME},
    }


def labels(plan: Plan, options: Options, *, part: str | None = None) -> dict[str, str]:
    result = {
        **{str(key): str(value) for key, value in options.labels.items()},
        "app.kubernetes.io/managed-by": "headway",
        RUN_LABEL: RUN,
        FOLDER_LABEL: FOLDER,
        OWNER_LABEL: OWNER,
    }
    if plan.limits.budget_s is not None:
        result[EXPIRES_LABEL] = EXPIRES
    if part is not None:
        result[PART_LABEL] = part
    return result


def selector(run: str, url: str) -> str:
    """Return the label selector of all objects of a run."""
    return f"{RUN_LABEL}={run},{FOLDER_LABEL}={folder_hash(url)}"


def owned_by(api_version: str, kind: str, name: str) -> list[dict[str, Any]]:
    """Return ownerReferences: Kubernetes deletes the object together with its owner."""
    return [{"apiVersion": api_version, "kind": kind, "name": name, "uid": OWNER_UID}]


def fill_placeholders(body: Any, values: Mapping[str, str]) -> Any:
    """Replace the placeholders in a rendered object by their values."""
    if isinstance(body, str):
        for name, value in values.items():
            body = body.replace(name, value)
        return body
    if isinstance(body, Mapping):
        return {key: fill_placeholders(value, values) for key, value in body.items()}
    if isinstance(body, list | tuple):
        return [fill_placeholders(value, values) for value in body]
    return body
