"""A strict Vertex AI, Cloud Logging and Artifact Registry for tests: the calls that are made of them, and no others.

Requests are read with Google's own message types, then held against what the API refuses; a job that is accepted is
run for real, as processes. What this server does not know it refuses with 501.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from tests.servers import vertex_messages, vertex_rules
from tests.servers.loopback import Answer, LoopbackServer, Request
from tests.servers.vertex_machines import JOB_RETRIES, WORKER_RESTARTS, Image, Machines

PROJECT = "my-project"
REGIONS = ("us-central1", "us-east1", "europe-west4")
_JOBS = re.compile(r"/v1/projects/([^/]+)/locations/([^/]+)/customJobs(?:/(\d+))?(:cancel)?")
_IMAGES = re.compile(
    r"/v1/projects/([^/]+)/locations/([^/]+)/repositories/([^/]+)/packages/([^/]+)/(tags|versions)/([^/]+)"
)
_CLAUSE = re.compile(r'(?P<field>state|displayName|display_name|labels\.[a-z0-9_-]+)(?P<op>!=|=|:)"?(?P<value>[^"]*)"?')


class Refusal(Exception):
    def __init__(self, code: int, status: str, message: str, **detail: str) -> None:
        super().__init__(message)
        self.code, self.status, self.message, self.detail = code, status, message, detail


class VertexServer(LoopbackServer):
    """`images` are those that its registry has; `environment` is what its machines find around them."""

    def __init__(self, tokens: set[str], fetch: Callable[[str], bytes]) -> None:
        super().__init__(self._serve)
        self.tokens, self._fetch = tokens, fetch
        self.images: dict[str, Image] = {}
        self.environment: dict[str, str] = {}
        self.exhausted: set[str] = set()  # regions without quota: refused at once
        self.full: set[str] = set()  # regions where a job waits in the queue for ever
        self.lacking: set[tuple[str, str]] = set()  # regions that do not have a machine
        self.forbidden = ""  # a permission that is missing
        self.page = 100
        self.restarts, self.retries = WORKER_RESTARTS, JOB_RETRIES  # of a worker, and then of the whole job
        self.jobs: dict[str, dict[str, Any]] = {}
        self.machines: dict[str, Machines] = {}
        self.entries: list[dict[str, Any]] = []
        self.log_forbidden = self.images_forbidden = False
        self._number = 5_000_000_000
        self._guard = threading.RLock()

    def __enter__(self) -> VertexServer:
        super().__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        for machines in self.machines.values():
            machines.cancel()
        for machines in self.machines.values():
            machines.thread.join(60)
        super().__exit__(*failure)

    def live(self) -> list[str]:
        return [name for name, machines in self.machines.items() if machines.thread.is_alive()]

    def parsed_spec(self, text: str) -> Any:
        """A job's spec in YAML as Google's types read it."""
        import yaml

        return vertex_messages.parsed({"displayName": "x", "jobSpec": yaml.safe_load(text)})["jobSpec"]

    # ── the wire ─────────────────────────────────────────────────────────────

    def _serve(self, request: Request) -> Answer:
        try:
            if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
                raise Refusal(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
            return _json(self._answered(request))
        except Refusal as refusal:
            details = (
                [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", **refusal.detail}] if refusal.detail else []
            )
            error = {"code": refusal.code, "message": refusal.message, "status": refusal.status, "details": details}
            return _json({"error": error}, refusal.code)

    def _answered(self, request: Request) -> Any:
        if request.path == "/v2/entries:list" and request.method == "POST":
            return self._entries(json.loads(request.body))
        image = _IMAGES.fullmatch(request.path)
        if image is not None and request.method == "GET":
            return self._image(*image.groups())
        found = _JOBS.fullmatch(request.path)
        if found is None:
            raise Refusal(501, "UNIMPLEMENTED", f"this server does not know {request.method} {request.path}")
        project, region, number, cancel = found.groups()
        if project != PROJECT or region not in REGIONS:
            raise Refusal(404, "NOT_FOUND", f"projects/{project}/locations/{region} was not found")
        if self.forbidden:
            message = f"Permission '{self.forbidden}' denied on resource '//aiplatform.googleapis.com/{project}'."
            raise Refusal(403, "PERMISSION_DENIED", message, reason="IAM_PERMISSION_DENIED")
        with self._guard:
            if number is None:
                if request.method == "POST":
                    return self._create(region, json.loads(request.body))
                if request.method == "GET":
                    return self._list(region, request.query)
            name = f"projects/{project}/locations/{region}/customJobs/{number}"
            if name not in self.jobs:
                raise Refusal(404, "NOT_FOUND", f"The CustomJob does not exist: {name}")
            if cancel and request.method == "POST":
                if request.body not in (b"{}", b""):
                    raise Refusal(400, "INVALID_ARGUMENT", "cancel takes no body")
                self.machines[name].cancel()
                return {}
            if not cancel and request.method == "GET":
                return dict(self.jobs[name])
        raise Refusal(501, "UNIMPLEMENTED", f"this server does not know {request.method} {request.path}")

    def _image(self, project: str, location: str, repository: str, name: str, kind: str, version: str) -> Any:
        if self.images_forbidden:
            raise Refusal(403, "PERMISSION_DENIED", "Permission 'artifactregistry.tags.get' denied on resource.")
        sign = ":" if kind == "tags" else "@"
        if f"{location}-docker.pkg.dev/{project}/{repository}/{unquote(name)}{sign}{version}" not in self.images:
            raise Refusal(404, "NOT_FOUND", "Requested entity was not found.")
        return {"name": f"projects/{project}/locations/{location}/repositories/{repository}/packages/{name}"}

    def _create(self, region: str, body: Any) -> Any:
        try:
            job = vertex_messages.parsed(body)
        except vertex_messages.Unreadable as error:
            raise Refusal(400, "INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from error
        faults = list(vertex_rules.faults(job))
        if faults:
            raise Refusal(400, "INVALID_ARGUMENT", "List of found errors: " + " ".join(faults))
        for pool in job["jobSpec"]["workerPoolSpecs"]:
            self._refuse_pool(region, pool)
        if region in self.exhausted:
            what = "The following quotas are exceeded: CustomModelTrainingT4GPUsPerProjectPerRegion"
            raise Refusal(429, "RESOURCE_EXHAUSTED", what)
        self._number += 1
        name = f"projects/{PROJECT}/locations/{region}/customJobs/{self._number}"
        created = f"2026-11-16T00:00:00.{self._number % 10**6:06d}Z"
        self.jobs[name] = {**job, "name": name, "state": "JOB_STATE_QUEUED", "createTime": created}
        self.machines[name] = Machines(
            self.jobs[name],
            images=self.images,
            environment=self.environment,
            fetch=self._fetch,
            log=lambda task, severity, text: self._log(name, task, severity, text),
            may_start=lambda: region not in self.full,
            restarts=self.restarts,
            retries=self.retries,
        )
        return dict(self.jobs[name])

    def _refuse_pool(self, region: str, pool: Mapping[str, Any]) -> None:
        machine = pool["machineSpec"]["machineType"]
        if (region, machine) in self.lacking:
            raise Refusal(400, "INVALID_ARGUMENT", f"Machine type {machine} is not available in region {region}.")
        program = pool.get("containerSpec") or pool["pythonPackageSpec"]
        image = program.get("imageUri") or program["executorImageUri"]
        if image not in self.images:
            raise Refusal(400, "INVALID_ARGUMENT", f"Image {image} does not exist or is not accessible.")

    def _list(self, region: str, query: Mapping[str, str]) -> Any:
        unknown = set(query) - {"filter", "pageSize", "pageToken", "alt"}
        if unknown:
            raise Refusal(400, "INVALID_ARGUMENT", f"unknown parameters {sorted(unknown)}")
        found = [
            job
            for name, job in sorted(self.jobs.items(), reverse=True)
            if f"/locations/{region}/" in name and holds(query.get("filter", ""), job)
        ]
        start, size = int(query.get("pageToken") or 0), min(self.page, int(query.get("pageSize") or 100))
        page: dict[str, Any] = {"customJobs": [dict(job) for job in found[start : start + size]]}
        if len(found) > start + size:
            page["nextPageToken"] = str(start + size)
        return page

    # ── Cloud Logging ────────────────────────────────────────────────────────

    def _log(self, name: str, task: str, severity: str, text: str) -> None:
        payload: dict[str, Any] = {"jsonPayload": {"message": text, "levelname": severity}}
        if text.startswith("{"):  # a line of JSON with these two is taken apart
            try:
                told = json.loads(text)
                if {"severity", "message"} <= told.keys():
                    severity, payload = told["severity"], {"jsonPayload": told}
            except ValueError:
                pass
        number = time.time_ns()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(number // 10**9)) + f".{number % 10**9:09d}Z"
        entry = {
            "insertId": f"{number:x}-{len(self.entries)}",
            "logName": f"projects/{PROJECT}/logs/ml.googleapis.com%2F{task}",
            "resource": {
                "type": "ml_job",
                "labels": {"job_id": name.rpartition("/")[2], "task_name": task, "project_id": PROJECT},
            },
            "timestamp": stamp,
            "severity": severity,
            **payload,
        }
        self.entries.append(entry)

    def _entries(self, body: Mapping[str, Any]) -> Any:
        unknown = set(body) - {"resourceNames", "filter", "orderBy", "pageSize", "pageToken"}
        if unknown or body.get("resourceNames") != [f"projects/{PROJECT}"]:
            raise Refusal(400, "INVALID_ARGUMENT", f"unknown fields {sorted(unknown)}, or no resource of ours")
        if self.log_forbidden:
            message = "Permission denied for all log views: logging.logEntries.list"
            raise Refusal(403, "PERMISSION_DENIED", message)
        if body.get("orderBy", "timestamp asc") not in ("timestamp asc", "timestamp desc"):
            raise Refusal(400, "INVALID_ARGUMENT", "order_by is timestamp asc or timestamp desc")
        found = [entry for entry in list(self.entries) if _matches(body.get("filter", ""), entry)]
        found.sort(key=lambda entry: entry["timestamp"], reverse=body.get("orderBy") == "timestamp desc")
        start, size = int(body.get("pageToken") or 0), int(body.get("pageSize", 50))
        if not 0 < size <= 1000:
            raise Refusal(400, "INVALID_ARGUMENT", "page_size must be 1 to 1000")
        page: dict[str, Any] = {"entries": found[start : start + size]}
        if len(found) > start + size:
            page["nextPageToken"] = str(start + size)
        return page


def holds(text: str, job: Mapping[str, Any]) -> bool:
    """Whether Google's filter holds for a job. What is not understood is refused."""
    return all(_clause(part, job) for part in text.split(" AND ") if part)


def _clause(part: str, job: Mapping[str, Any]) -> bool:
    found = _CLAUSE.fullmatch(part.strip())
    if found is None:
        raise Refusal(400, "INVALID_ARGUMENT", f"Invalid filter: {part}")
    field, op, value = found["field"], found["op"], found["value"]
    labels: Mapping[str, str] = job.get("labels", {})
    if field.startswith("labels."):
        name = field.removeprefix("labels.")
        if op == ":":
            return name in labels if value == "*" else labels.get(name) == value
        return (labels.get(name) == value) == (op == "=")
    if op == ":":
        raise Refusal(400, "INVALID_ARGUMENT", f"Invalid filter: {part}")
    actual: str = job["state"] if field == "state" else job["displayName"]
    return (actual == value) == (op == "=")


def _matches(text: str, entry: Mapping[str, Any]) -> bool:
    for part in text.split(" AND "):
        found = re.fullmatch(
            r'(resource\.type|resource\.labels\.\w+|timestamp|severity)(=|!=|>=|<)"([^"]*)"', part.strip()
        )
        if found is None:
            raise Refusal(400, "INVALID_ARGUMENT", f"Unparseable filter: {part}")
        field, op, value = found.groups()
        if field.startswith("resource.labels."):
            actual = entry["resource"]["labels"].get(field.rpartition(".")[2], "")
        else:
            actual = entry["resource"]["type"] if field == "resource.type" else entry[field]
        truth = {"=": actual == value, "!=": actual != value, ">=": actual >= value, "<": actual < value}
        if not truth[op]:
            return False
    return True


def _json(content: Any, status: int = 200) -> Answer:
    return Answer(status=status, headers={"Content-Type": "application/json"}, body=json.dumps(content).encode())
