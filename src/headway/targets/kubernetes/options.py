"""What a kubernetes target's entry in the job file may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from headway.spec.model import Bytes, Seconds, Text

Engine = Literal["statefulset", "pytorchjob", "trainjob"]
Trainer = Literal["2.0", "2.1", "2.2", "2.3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    engine: Engine = "statefulset"  # pytorchjob and trainjob need Kubeflow's operator; statefulset needs nothing
    context: str | None = None  # of the kubeconfig; by default its current one
    namespace: str = "default"  # where everything is made
    service_account: str | None = None  # who the pods are: one with Workload Identity reads and writes buckets
    token: bool = False  # give the pods the service account's token for the cluster's own API
    platform: Literal["gke", "plain"] = "gke"  # gke: accelerators and spot choose nodes by Google's labels
    project: str | None = None  # Google's project: for links, and what `doctor` prints
    cluster: str | None = None  # Google's name of the cluster, for the same
    location: str | None = None  # its zone or region, for the same and for prices: us-east1-c
    node_selector: Mapping[str, Text] = field(default_factory=dict)  # labels that nodes must have, besides ours
    tolerations: tuple[Mapping[str, Any], ...] = ()  # taints that are put up with, besides ours
    labels: Mapping[str, Text] = field(default_factory=dict)  # on everything that is made: a cost centre, a queue
    priority: str | None = None  # a PriorityClass
    pull_secrets: tuple[str, ...] = ()  # for a private registry
    shm: Bytes = 8_000_000_000  # shared memory, through which data loaders hand over batches: at most this much
    grace: Seconds = 30.0  # from SIGTERM to SIGKILL; spot nodes of GKE give 15 s whatever is asked
    keep: Seconds = 3600.0  # a finished PyTorchJob stays this long for kubectl
    user: Annotated[int, ">= 1"] = 1000  # the pods' user and group; never root
    price: Annotated[float, ">= 0"] | None = None  # USD an hour of one node; by default Google's for the machine
    python: str = "python3"  # the interpreter inside the image
    trainer: Trainer | None = None  # Kubeflow Trainer's release; by default the installed one's
    runtime: str = "torch-distributed"  # the ClusterTrainingRuntime of a TrainJob
