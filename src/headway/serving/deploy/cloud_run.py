"""The Cloud Run service as `gcloud run services replace` accepts it, and its price. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.core.errors import Problem
from headway.serving.deploy.image import BUNDLE, PORT
from headway.serving.deploy.model import LABEL, Bill, Deployment, Request

# USD per second: Google's list prices as of 2026-11, billed while a request is being answered.
CPU_S, GIB_S, IDLE_CPU_S, MILLION_REQUESTS = 0.000024, 0.0000025, 0.0000025, 0.40
# With a GPU, the whole lifetime of an instance is billed, at other prices.
GPU_CPU_S, GPU_GIB_S, L4_S = 0.000018, 0.000002, 0.0001867
TIER_2_FACTOR = 1.4  # factor for tier 2 regions
TIER_1 = {
    *("asia-east1", "asia-northeast1", "asia-northeast2", "asia-south1", "europe-north1", "europe-southwest1"),
    *("europe-west1", "europe-west4", "europe-west8", "europe-west9", "me-west1"),
    *("us-central1", "us-east1", "us-east4", "us-east5", "us-south1", "us-west1"),
}
_MEMORY = {1: (1, 4), 2: (1, 8), 4: (2, 16), 6: (4, 24), 8: (4, 32)}  # CPUs: minimum and maximum GiB
CONCURRENCY = 64  # requests at once per instance, matched to its queue and batches


def problems(d: Deployment) -> Iterator[Problem]:
    if d.cpus not in _MEMORY:
        yield Problem(what=f"Cloud Run does not offer {d.cpus} CPUs per instance", fix="--cpus 1, 2, 4, 6 or 8")
    elif not _MEMORY[d.cpus][0] <= d.memory_gib <= _MEMORY[d.cpus][1]:
        low, high = _MEMORY[d.cpus]
        yield Problem(
            what=f"with {d.cpus} CPUs an instance has {low} to {high} GiB, not {d.memory_gib}",
            fix=f"--memory {min(max(d.memory_gib, low), high)}GiB, or other --cpus",
        )
    if d.accelerator not in (None, ("L4", 1)):
        yield Problem(what="Cloud Run offers only one L4 GPU per instance", fix="--accelerator L4, or --to vertex")
    elif d.accelerator and (d.cpus < 4 or d.memory_gib < 16):
        yield Problem(what="a GPU needs at least 4 CPUs and 16 GiB", fix="--cpus 4 --memory 16GiB")


def service(d: Deployment) -> dict[str, Any]:
    """Return the Knative Service manifest for Cloud Run."""
    annotations = {
        "autoscaling.knative.dev/minScale": str(d.min_instances),
        "autoscaling.knative.dev/maxScale": str(d.max_instances),
        "run.googleapis.com/startup-cpu-boost": "true",
        "run.googleapis.com/execution-environment": "gen2",
    }
    if d.accelerator:
        annotations["run.googleapis.com/cpu-throttling"] = "false"
        annotations["run.googleapis.com/gpu-zonal-redundancy-disabled"] = "true"
    spec: dict[str, Any] = {
        "containerConcurrency": CONCURRENCY,
        "timeoutSeconds": 60,
        **({"serviceAccountName": d.account} if d.account else {}),
        **({"nodeSelector": {"run.googleapis.com/accelerator": "nvidia-l4"}} if d.accelerator else {}),
        "containers": [_container(d)],
    }
    labels = {LABEL: d.name}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {
            "name": d.name,
            "namespace": d.project,
            "labels": {**labels, "cloud.googleapis.com/location": d.region},
            "annotations": {"run.googleapis.com/ingress": "all"},
        },
        "spec": {
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec},
            "traffic": [{"latestRevision": True, "percent": 100}],
        },
    }


def _container(d: Deployment) -> dict[str, Any]:
    env: list[dict[str, Any]] = []
    args: list[str] = []
    if d.model:
        env.append({"name": "AIP_STORAGE_URI", "value": d.model})
    if d.token:
        env.append({"name": "HEADWAY_TOKEN", "valueFrom": {"secretKeyRef": {"name": d.token, "key": "latest"}}})
        args = [*([] if d.model else [BUNDLE]), "--token", "env:HEADWAY_TOKEN"]  # replaces the image's own arguments
    gpu = {"nvidia.com/gpu": "1"} if d.accelerator else {}
    return {
        "image": d.image,
        **({"args": args} if args else {}),
        "ports": [{"name": "http1", "containerPort": PORT}],
        **({"env": env} if env else {}),
        "resources": {"limits": {"cpu": str(d.cpus), "memory": f"{d.memory_gib}Gi", **gpu}},
        "startupProbe": {"httpGet": {"path": "/ready", "port": PORT}, "periodSeconds": 5, "timeoutSeconds": 4,
                         "failureThreshold": 48},
        "livenessProbe": {"httpGet": {"path": "/live", "port": PORT}, "periodSeconds": 30, "timeoutSeconds": 10},
    }  # fmt: skip


def requests(d: Deployment) -> list[Request]:
    url = f"apis/serving.knative.dev/v1/namespaces/{d.project}/services"
    made = [Request(file="service.yaml", method="POST", url=url, body=service(d))]
    if d.public:
        policy = {"policy": {"bindings": [{"role": "roles/run.invoker", "members": ["allUsers"]}]}}
        url = f"v1/projects/{d.project}/locations/{d.region}/services/{d.name}:setIamPolicy"
        made.append(Request(file="public.json", method="POST", url=url, body=policy))
    return made


def script(d: Deployment) -> str:
    """Return a script that does the same by hand, to run in the folder of the rendered files."""
    where = f"--project {d.project} --region {d.region}"
    lines = [f"gcloud run services replace service.yaml {where}"]
    if d.public:
        lines.append(
            f"gcloud run services add-iam-policy-binding {d.name} {where} --member allUsers --role roles/run.invoker"
        )
    return "\n".join(lines)


def bill(d: Deployment) -> Bill:
    factor = 1.0 if d.region in TIER_1 else TIER_2_FACTOR
    cpu, gib = (GPU_CPU_S, GPU_GIB_S) if d.accelerator else (CPU_S, GIB_S)
    gpu = L4_S if d.accelerator else 0.0
    instance_usd = 3600 * factor * (d.cpus * cpu + d.memory_gib * gib + gpu)
    idle_instance_usd = instance_usd if d.accelerator else 3600 * factor * (d.cpus * IDLE_CPU_S + d.memory_gib * GIB_S)
    when = "while it runs" if d.accelerator else "while it handles requests"
    explanation = (
        f"${instance_usd:.3f} per instance-hour {when} ({d.cpus} CPUs, {d.memory_gib} GiB{', L4' if gpu else ''})"
    )
    explanation += f"; at most {d.max_instances}: ${instance_usd * d.max_instances:.2f} an hour"
    explanation += (
        f"; {d.min_instances} always on: ${idle_instance_usd * d.min_instances:.3f} an hour"
        if d.min_instances
        else "; nothing while there are no requests"
    )
    besides = (f"${MILLION_REQUESTS:.2f} per million requests", "traffic out, logs, and the image in its registry")
    return Bill(
        idle_usd_per_hour=idle_instance_usd * d.min_instances,
        busy_usd_per_hour=instance_usd * d.max_instances,
        text=explanation,
        besides=besides,
    )
