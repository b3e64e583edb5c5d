"""Cloud Run, and Vertex AI's models and endpoints, for tests: strict, and only the calls that deploying makes.

Vertex AI's requests are read with Google's own message types. Cloud Run's services are held to the keys, sizes and
names that its reference lists. What this server does not know it refuses with 501. Operations end at the second look.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.servers import vertex_messages
from tests.servers.loopback import Answer, LoopbackServer, Request
from tests.servers.vertex import PROJECT, REGIONS, Refusal

_RUN = re.compile(r"/apis/serving\.knative\.dev/v1/namespaces/([^/]+)/services(?:/([^/]+))?")
_POLICY = re.compile(r"/v1/projects/([^/]+)/locations/([^/]+)/services/([^/]+):setIamPolicy")
_VERTEX = re.compile(r"/v1/projects/([^/]+)/locations/([^/]+)/(models|endpoints)(:upload)?(?:/(\d+)(:\w+)?)?")
_OPERATION = re.compile(r"/v1/projects/[^/]+/locations/[^/]+/operations/(\d+)")
_CPU_MEMORY = {"1": (1, 4), "2": (1, 8), "4": (2, 16), "6": (4, 24), "8": (4, 32)}
_TEMPLATE = {
    "autoscaling.knative.dev/minScale",
    "autoscaling.knative.dev/maxScale",
    "run.googleapis.com/startup-cpu-boost",
    "run.googleapis.com/execution-environment",
    "run.googleapis.com/cpu-throttling",
    "run.googleapis.com/gpu-zonal-redundancy-disabled",
}


class ServingServer(LoopbackServer):
    def __init__(self, tokens: set[str]) -> None:
        super().__init__(self._serve)
        self.tokens = tokens
        self.images: set[str] = set()  # those that start
        self.services: dict[str, dict[str, Any]] = {}
        self.public: set[str] = set()
        self.models: dict[str, dict[str, Any]] = {}
        self.endpoints: dict[str, dict[str, Any]] = {}
        self.operations: dict[str, dict[str, Any]] = {}
        self.full = False  # no machines for a model
        self.forbidden = False
        self.stuck = False  # what is deleted stays
        self._number = 1000

    def __enter__(self) -> ServingServer:
        super().__enter__()
        return self

    def _serve(self, request: Request) -> Answer:
        try:
            if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
                raise Refusal(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
            if self.forbidden:
                raise Refusal(403, "PERMISSION_DENIED", "Permission denied on resource.")
            return _json(self._answered(request))
        except Refusal as refusal:
            error = {"code": refusal.code, "message": refusal.message, "status": refusal.status}
            return _json({"error": error}, refusal.code)

    def _answered(self, request: Request) -> Any:
        body = json.loads(request.body) if request.body else None
        if found := _RUN.fullmatch(request.path):
            _known_place(found[1])
            return self._run(request.method, found[2], body)
        if found := _POLICY.fullmatch(request.path):
            _known_place(found[1], found[2])
            return self._policy(found[3], body)
        if found := _OPERATION.fullmatch(request.path):
            return self._operation(found[1])
        if found := _VERTEX.fullmatch(request.path):
            _known_place(found[1], found[2])
            return self._vertex(request, found[3], found[4] or found[6] or "", found[5], body)
        raise Refusal(501, "UNIMPLEMENTED", f"this server does not know {request.method} {request.path}")

    # ── Cloud Run ────────────────────────────────────────────────────────────

    def _run(self, method: str, name: str | None, body: Any) -> Any:
        if method == "POST" and name is None:
            if body["metadata"]["name"] in self.services:
                raise Refusal(409, "ALREADY_EXISTS", "Resource already exists.")
            return self._kept(body, generation=1)
        if name not in self.services:
            raise Refusal(404, "NOT_FOUND", f"Resource '{name}' of kind 'SERVICE' does not exist.")
        known = self.services[name]
        if method == "GET":
            return self._looked_at(known)
        if method == "PUT":
            if body["metadata"].pop("resourceVersion", None) != known["metadata"]["resourceVersion"]:
                raise Refusal(409, "ABORTED", "Conflict for resource: version does not match.")
            return self._kept(body, generation=known["metadata"]["generation"] + 1)
        if method == "DELETE":
            if not self.stuck:
                del self.services[name]
            return {"kind": "Status", "status": "Success"}
        raise Refusal(501, "UNIMPLEMENTED", method)

    def _kept(self, body: Any, *, generation: int) -> Any:
        faults = list(_service_faults(body))
        if faults:
            raise Refusal(400, "INVALID_ARGUMENT", " ".join(faults))
        made = json.loads(json.dumps(body))
        made["metadata"] |= {"generation": generation, "resourceVersion": f"v{generation}"}
        made["status"] = {"observedGeneration": generation - 1, "conditions": []}
        self.services[made["metadata"]["name"]] = made
        return made

    def _looked_at(self, service: dict[str, Any]) -> Any:
        answer = json.loads(json.dumps(service))
        image = service["spec"]["template"]["spec"]["containers"][0]["image"]
        ready = {"type": "Ready", "status": "True"}
        if image not in self.images:
            ready = {"type": "Ready", "status": "False", "message": f"Image '{image}' not found."}
        name = service["metadata"]["name"]
        service["status"] = {"observedGeneration": service["metadata"]["generation"], "conditions": [ready],
                             "url": f"https://{name}-xyz.a.run.app"}  # fmt: skip
        return answer

    def _policy(self, name: str, body: Any) -> Any:
        if name not in self.services:
            raise Refusal(404, "NOT_FOUND", f"Resource '{name}' does not exist.")
        if set(body) != {"policy"} or set(body["policy"]) != {"bindings"}:
            raise Refusal(400, "INVALID_ARGUMENT", "unknown fields")
        if body["policy"]["bindings"] == [{"role": "roles/run.invoker", "members": ["allUsers"]}]:
            self.public.add(name)
        return body["policy"]

    # ── Vertex AI ────────────────────────────────────────────────────────────

    def _vertex(self, request: Request, kind: str, verb: str, number: str | None, body: Any) -> Any:
        held = self.models if kind == "models" else self.endpoints
        name = f"projects/{PROJECT}/locations/us-central1/{kind}/{number}"
        if request.method == "POST" and number is None:
            return self._make(kind, verb, body)
        if request.method == "GET" and number is None:
            wanted = re.fullmatch(r"labels\.([a-z_]+)=([a-z0-9-]+)", request.query.get("filter", ""))
            if wanted is None:
                raise Refusal(400, "INVALID_ARGUMENT", f"Invalid filter: {request.query.get('filter')}")
            return {kind: [each for each in held.values() if each["labels"].get(wanted[1]) == wanted[2]]}
        if name not in held:
            raise Refusal(404, "NOT_FOUND", f"{name} does not exist")
        if request.method == "GET":
            return held[name]
        if request.method == "DELETE":
            if kind == "endpoints" and held[name]["deployedModels"]:
                raise Refusal(400, "FAILED_PRECONDITION", "Endpoint has deployed or being-deployed DeployedModel(s)")
            if kind == "models" and any(
                d["model"] == name for e in self.endpoints.values() for d in e["deployedModels"]
            ):
                raise Refusal(400, "FAILED_PRECONDITION", "The Model is deployed")
            if not self.stuck:
                del held[name]
            return self._started({})
        if kind == "endpoints" and verb == ":deployModel":
            return self._deploy(held[name], body)
        if kind == "endpoints" and verb == ":undeployModel":
            _read("endpoint_service", "UndeployModelRequest", {"endpoint": name, **body})
            held[name]["deployedModels"] = [
                d for d in held[name]["deployedModels"] if d["id"] != body["deployedModelId"]
            ]
            return self._started({})
        raise Refusal(501, "UNIMPLEMENTED", f"{request.method} {request.path}")

    def _make(self, kind: str, verb: str, body: Any) -> Any:
        self._number += 1
        name = f"projects/{PROJECT}/locations/us-central1/{kind}/{self._number}"
        parent = f"projects/{PROJECT}/locations/us-central1"
        if kind == "models" and verb == ":upload":
            read = _read("model_service", "UploadModelRequest", {"parent": parent, **body})
            spec = read["model"].get("containerSpec", {})
            if not spec.get("imageUri") or not spec.get("predictRoute", "").startswith("/"):
                raise Refusal(400, "INVALID_ARGUMENT", "container_spec needs an image and routes")
            if not read["model"].get("artifactUri", "gs://").startswith("gs://"):
                raise Refusal(400, "INVALID_ARGUMENT", "artifact_uri must be in Cloud Storage")
            self.models[name] = {**read["model"], "name": name}
            return self._started({"model": name, "modelVersionId": "1"})
        if kind == "endpoints" and not verb:
            read = _read("endpoint", "Endpoint", body)
            self.endpoints[name] = {**read, "name": name, "deployedModels": []}
            return self._started({"name": name})
        raise Refusal(501, "UNIMPLEMENTED", verb)

    def _deploy(self, endpoint: dict[str, Any], body: Any) -> Any:
        read = _read("endpoint_service", "DeployModelRequest", {"endpoint": endpoint["name"], **body})
        model = read["deployedModel"]["model"]
        resources = read["deployedModel"].get("dedicatedResources", {})
        if model not in self.models or resources.get("minReplicaCount", 0) < 1:
            raise Refusal(400, "INVALID_ARGUMENT", "no such model, or min_replica_count is not at least 1")
        if read["trafficSplit"] != {"0": 100}:
            raise Refusal(400, "INVALID_ARGUMENT", "the traffic split must add up to 100")
        if self.full:
            error = {"code": 8, "message": "Machine type temporarily unavailable, please retry later."}
            return self._started({}, error=error)
        if self.models[model]["containerSpec"]["imageUri"] not in self.images:
            return self._started({}, error={"code": 9, "message": "Model server never became ready."})
        self._number += 1
        endpoint["deployedModels"].append({"id": str(self._number), "model": model, **resources})
        return self._started({"deployedModel": {"id": str(self._number)}})

    def _started(self, response: Any, error: Any = None) -> Any:
        self._number += 1
        name = f"projects/{PROJECT}/locations/us-central1/operations/{self._number}"
        self.operations[str(self._number)] = {
            "name": name, "done": True, **({"error": error} if error else {"response": response})
        }  # fmt: skip
        return {"name": name}

    def _operation(self, number: str) -> Any:
        if number not in self.operations:
            raise Refusal(404, "NOT_FOUND", f"operation {number} does not exist")
        return self.operations[number]


def _known_place(project: str, region: str = REGIONS[0]) -> None:
    if project != PROJECT or region not in REGIONS:
        raise Refusal(404, "NOT_FOUND", f"projects/{project}/locations/{region} was not found")


def _read(module: str, kind: str, body: Any) -> Any:
    try:
        return vertex_messages.read(module, kind, body)
    except vertex_messages.Unreadable as error:
        raise Refusal(400, "INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from error


def _service_faults(body: Mapping[str, Any]) -> Any:
    """What Cloud Run says no to, of a Service of Knative's."""
    if (body.get("apiVersion"), body.get("kind")) != ("serving.knative.dev/v1", "Service"):
        yield "apiVersion and kind must be those of a Knative Service."
    yield from _unknown("", body, {"apiVersion", "kind", "metadata", "spec"})
    meta, spec = body["metadata"], body["spec"]
    yield from _unknown("metadata", meta, {"name", "namespace", "labels", "annotations"})
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,47}[a-z0-9])?", meta["name"]):
        yield "metadata.name must be at most 49 lower case letters, digits and dashes."
    if meta.get("namespace") != PROJECT:
        yield "metadata.namespace must be the project."
    for name, value in meta.get("labels", {}).items():
        if not name.startswith("cloud.googleapis.com/") and not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", name):
            yield f"label {name} is invalid."
        if not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
            yield f"label value {value} is invalid."
    yield from _unknown("spec", spec, {"template", "traffic"})
    template = spec["template"]
    yield from _unknown("spec.template.metadata.annotations", template["metadata"]["annotations"], _TEMPLATE)
    inner = template["spec"]
    yield from _unknown("spec.template.spec", inner, {"containerConcurrency", "timeoutSeconds", "serviceAccountName",
                                                      "nodeSelector", "containers"})  # fmt: skip
    if not 1 <= inner.get("containerConcurrency", 80) <= 1000 or not 1 <= inner.get("timeoutSeconds", 300) <= 3600:
        yield "containerConcurrency is 1 to 1000, timeoutSeconds 1 to 3600."
    if len(inner["containers"]) != 1:
        yield "one container."
    yield from _container_faults(inner["containers"][0])


def _container_faults(container: Mapping[str, Any]) -> Any:
    yield from _unknown("container", container, {"image", "args", "ports", "env", "resources", "startupProbe",
                                                 "livenessProbe"})  # fmt: skip
    limits = container["resources"]["limits"]
    low, high = _CPU_MEMORY.get(limits["cpu"], (0, 0))
    if not low <= int(limits["memory"].removesuffix("Gi")) <= high:
        yield f"{limits} is no size of an instance."
    for variable in container.get("env", []):
        if variable["name"] in ("PORT", "K_SERVICE", "K_REVISION", "K_CONFIGURATION"):
            yield f"The following reserved env names were provided: {variable['name']}."
    probe = container["startupProbe"]
    if probe["timeoutSeconds"] > probe["periodSeconds"] or probe["periodSeconds"] * probe["failureThreshold"] > 240:
        yield "a start-up probe lasts at most 240 s, and its time-out is not longer than its period."


def _unknown(where: str, body: Mapping[str, Any], known: set[str]) -> Any:
    for name in sorted(set(body) - known):
        yield f"unknown field {where}.{name}."


def _json(content: Any, status: int = 200) -> Answer:
    return Answer(status=status, headers={"Content-Type": "application/json"}, body=json.dumps(content).encode())
