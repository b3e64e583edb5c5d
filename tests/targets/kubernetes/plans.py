"""Plans of a known job, the same wherever a test runs."""

from __future__ import annotations

import json
from typing import Any

from headway.core.plan import Code, Plan
from headway.core.types import Request
from headway.spec import dump
from headway.spec.model import (
    Accelerator,
    Budget,
    Cache,
    Data,
    Image,
    Job,
    Mount,
    Resources,
    Secret,
    Source,
)
from headway.targets.kubernetes import manifests, pod
from headway.targets.kubernetes.options import Options

FULL: dict[str, Any] = {
    "data": Data(train=(Source(source="gs://bucket/coco"),)),
    "outputs": "gs://bucket/runs",
    "resources": Resources(
        accelerator=Accelerator(kind="T4", count=4),
        machine="n1-standard-8",
        nodes=3,
        cpus=8,
        memory=30_000_000_000,
        disk=100_000_000_000,
        spot=True,
    ),
    "budget": Budget(hours=8),
    "max_wait": 3600.0,
    "secrets": {
        "WANDB_API_KEY": Secret(ref="env:MY_WANDB_KEY"),
        "TOKEN": Secret(ref="k8s://hub/token"),
        "KEY": Secret(ref="k8s://hub/key.pem", as_="file"),
        "OTHER": Secret(ref="gcp-sm://other"),
    },
    "env": {"OMP_NUM_THREADS": "4"},
    "cache": Cache(dir="/cache", size=500_000_000_000),
    "mounts": (
        Mount(nfs="server:/export", at="/data", read_only=True),
        Mount(pvc="scratch", at="/scratch"),
    ),
}
FULL_OPTIONS: dict[str, Any] = {
    "namespace": "ml",
    "service_account": "gcs-access",
    "pull_secrets": ("registry",),
    "priority": "training",
    "labels": {"team": "vision"},
    "node_selector": {"disk": "ssd"},
    "tolerations": ({"key": "night", "operator": "Exists"},),
}


def job_of(**changes: Any) -> Job:
    plain = {
        "name": "captions",
        "script": "train.py",
        "outputs": "gs://bucket/runs",
        "image": Image(uri="gcr.io/p/i:1"),
    }
    return Job(**{**plain, **changes})


def plan_of(options: Options, **changes: Any) -> Plan:
    job = job_of(**changes)
    ranks = job.resources.accelerator.count if job.resources.accelerator else 1
    return Plan(
        headway="0.1.0",
        job=dump(job),
        target="gke",
        kind="kubernetes",
        options={},
        code=Code(sha256="2" * 64, files=1, bytes=1, biggest=(), wheel="headway-0.1.0-0abc.whl", wheel_sha256="1" * 64),
        data={source.source: "unresolved" for source in job.data.train},
        nodes=job.resources.nodes,
        processes=ranks,
        limits=pod.limits(job, options),
        environment={"python": "3.12.1"},
        price={},
    )


def rendered(options: Options, **changes: Any) -> dict[str, dict[str, Any]]:
    """Every object of the plan, by the name of its file."""
    requests: list[Request] = manifests.requests(plan_of(options, **changes), options)
    return {request.name: json.loads(json.dumps(request.body)) for request in requests}
