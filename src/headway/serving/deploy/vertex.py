"""Requests that create a model and an endpoint on Vertex AI and deploy one to the other, and the price. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from headway.core.errors import Problem
from headway.pricing.quote import VERTEX_FACTOR
from headway.pricing.table import ACCELERATOR, MACHINE, load
from headway.serving.deploy.image import PORT
from headway.serving.deploy.model import LABEL, Bill, Deployment, Request
from headway.targets.vertex.machines import ACCELERATORS, MACHINES

MODEL, ENDPOINT = "{MODEL}", "{ENDPOINT}"
PREDICT, HEALTH = "/predict", "/health"
# Vertex AI's filters do not accept a dash in a label's key.
KEY = LABEL.replace("-", "_")


def problems(d: Deployment) -> Iterator[Problem]:
    if d.min_instances < 1:
        yield Problem(what="a Vertex AI endpoint needs at least one machine at all times", fix="--min 1")
    if d.token:
        yield Problem(what="Vertex AI endpoints already require Google credentials", fix="leave out --token")
    if d.public:
        yield Problem(what="a Vertex AI endpoint cannot be public", fix="leave out --public")
    if d.model is not None and not d.model.startswith("gs://"):
        yield Problem(
            what="Vertex AI reads models from gs:// only",
            fix="publish the bundle to a bucket: headway export RUN --to gs://BUCKET/PATH",
        )
    machine = MACHINES.get(d.machine)
    if machine is None:
        yield Problem(what=f"{d.machine!r} is not a known Vertex AI machine type", fix="--machine n1-standard-4")
    elif d.accelerator is not None and d.accelerator[0] not in ACCELERATORS:
        yield Problem(what=f"Vertex AI has no accelerator {d.accelerator[0]!r}", fix="--accelerator T4:1")


def model(d: Deployment) -> dict[str, Any]:
    return {
        "model": {
            "displayName": d.name,
            "labels": {KEY: d.name, "headway_recipe": d.recipe},
            **({"artifactUri": d.model} if d.model else {}),
            "containerSpec": {
                "imageUri": d.image,
                "ports": [{"containerPort": PORT}],
                "predictRoute": PREDICT,
                "healthRoute": HEALTH,
            },
        }
    }


def endpoint(d: Deployment) -> dict[str, Any]:
    return {"displayName": d.name, "labels": {KEY: d.name}}


def deployed(d: Deployment, model_name: str = MODEL) -> dict[str, Any]:
    machine: dict[str, Any] = {"machineType": d.machine}
    if d.accelerator:
        machine |= {"acceleratorType": ACCELERATORS[d.accelerator[0]], "acceleratorCount": d.accelerator[1]}
    resources = {"machineSpec": machine, "minReplicaCount": d.min_instances, "maxReplicaCount": d.max_instances}
    return {
        "deployedModel": {
            "model": model_name,
            "displayName": d.name,
            "dedicatedResources": resources,
            **({"serviceAccount": d.account} if d.account else {}),
        },
        "trafficSplit": {"0": 100},  # "0" is the model being deployed: it gets all traffic
    }


def requests(d: Deployment) -> list[Request]:
    parent = f"v1/projects/{d.project}/locations/{d.region}"
    return [
        Request(file="1-upload-model.json", method="POST", url=f"{parent}/models:upload", body=model(d)),
        Request(file="2-create-endpoint.json", method="POST", url=f"{parent}/endpoints", body=endpoint(d)),
        Request(file="3-deploy-model.json", method="POST", url=f"v1/{ENDPOINT}:deployModel", body=deployed(d)),
    ]


def script(d: Deployment) -> str:
    """Return a script that does the same by hand: gcloud makes the same requests."""
    where = f"--project {d.project} --region {d.region}"
    artifact = f" --artifact-uri {d.model}" if d.model else ""
    gpu = (
        f" --accelerator type={ACCELERATORS[d.accelerator[0]].lower().replace('_', '-')},count={d.accelerator[1]}"
        if d.accelerator
        else ""
    )
    account = f" --service-account {d.account}" if d.account else ""
    return "\n".join(
        [
            f"MODEL=$(gcloud ai models upload {where} --display-name {d.name} --labels {KEY}={d.name}{artifact} \\",
            f"  --container-image-uri {d.image} --container-ports {PORT} --container-predict-route {PREDICT} \\",
            f"  --container-health-route {HEALTH} --format 'value(model)')",
            f"ENDPOINT=$(gcloud ai endpoints create {where} --display-name {d.name} --labels {KEY}={d.name} \\",
            "  --format 'value(name)')",
            f'gcloud ai endpoints deploy-model "$ENDPOINT" {where} --model "$MODEL" --display-name {d.name} \\',
            f"  --machine-type {d.machine}{gpu} --min-replica-count {d.min_instances} "
            f"--max-replica-count {d.max_instances}{account} \\",
            f"  --traffic-split {json.dumps({'0': 100})[1:-1].replace(chr(34), '').replace(': ', '=')}",
        ]
    )


def bill(d: Deployment) -> Bill:
    """Compute the price from Compute Engine's dated price table plus Vertex AI's fee."""
    table = load()
    body = table.price(MACHINE, d.machine, d.region)
    if body is None:
        return _unknown(f"{d.machine} in {d.region} is not in the price table")
    one, what = body.usd, d.machine
    if d.accelerator:
        gpu = table.price(ACCELERATOR, d.accelerator[0], d.region, d.accelerator[1])
        if gpu is None:
            return _unknown(f"{d.accelerator[0]} in {d.region} is not in the price table")
        one, what = one + gpu.usd, f"{what} with {d.accelerator[1]} × {d.accelerator[0]}"
    one *= VERTEX_FACTOR
    idle, busy = one * d.min_instances, one * d.max_instances
    text = f"${one:.3f} per machine-hour ({what}, × {VERTEX_FACTOR} management fee, prices of "
    text += f"{table.dated}); {d.min_instances} always on: ${idle:.2f} an hour, ${idle * 730:.0f} a month"
    text += f"; at most {d.max_instances}: ${busy:.2f} an hour"
    return Bill(idle_usd_per_hour=idle, busy_usd_per_hour=busy, text=text,
                besides=("traffic out, logs, and the image in its registry",))  # fmt: skip


def _unknown(why: str) -> Bill:
    return Bill(idle_usd_per_hour=0.0, busy_usd_per_hour=0.0, text=f"unknown: {why}", missing=why)
