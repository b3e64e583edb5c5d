"""HTTP client of Vertex AI, Cloud Logging and Artifact Registry: the only access to Google Cloud.

Refused requests raise ApiError, with a command that helps. google-auth is imported on the first request.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import quote

from headway.core.errors import Denied, HeadwayError, MissingExtra, TargetError, Transient
from headway.core.retry import RetryPolicy, retry_transient
from headway.core.types import LogLine
from headway.rundir.layout import SUPERVISOR

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
REQUEST_TIMEOUT_S = 60.0
RETRY = RetryPolicy(tries=4, total_s=30.0)
# gcloud's own variables for alternative API endpoints.
HOST_OVERRIDES = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"


class ApiError(TargetError):
    """A request that Google refused. `status` is the canonical code, such as PERMISSION_DENIED."""

    def __init__(self, what: str, *, status: str = "", message: str = "", fix: str = "") -> None:
        super().__init__(what, fix=fix)
        self.status, self.message = status, message


class OutOfCapacity(ApiError):
    """No quota or no such machine in this region. Another region may have both."""


class NotFound(ApiError):
    """The resource does not exist, or no longer."""


class Unreachable(ApiError):
    """No response, or a retryable one. The request may have taken effect all the same."""


@dataclass(slots=True)
class Client:
    """A client for one project."""

    project: str
    retry: RetryPolicy = RETRY
    _session: Any = field(default=None, repr=False)

    def vertex(self, region: str) -> str:
        """Return the URL of a region's custom jobs."""
        override = os.environ.get(f"{HOST_OVERRIDES}AIPLATFORM")
        host = override.rstrip("/") if override else f"https://{region}-aiplatform.googleapis.com"
        return f"{host}/v1/projects/{self.project}/locations/{region}/customJobs"

    def logging(self) -> str:
        return (
            os.environ.get(f"{HOST_OVERRIDES}LOGGING", "https://logging.googleapis.com").rstrip("/")
            + "/v2/entries:list"
        )

    def create(self, region: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create a custom job, without retries: after a lost response the job may exist."""
        return self._request("POST", self.vertex(region), body, None)

    def read(self, name: str) -> dict[str, Any]:
        return self._with_retry("GET", self._named(name))

    def cancel(self, name: str) -> None:
        self._with_retry("POST", f"{self._named(name)}:cancel", {})

    def list_jobs(self, region: str, where: str) -> Iterator[dict[str, Any]]:
        """Yield every job that matches a filter in Google's syntax."""
        query = {"filter": where, "pageSize": "100"}
        while True:
            page = self._with_retry("GET", self.vertex(region), None, query)
            yield from page.get("customJobs", [])
            if not page.get("nextPageToken"):
                return
            query = {**query, "pageToken": page["nextPageToken"]}

    def probe(self, region: str) -> None:
        """Check that the region accepts requests, by listing at most one job."""
        self._with_retry("GET", self.vertex(region), None, {"pageSize": "1"})

    def image(self, project: str, location: str, repository: str, name: str, kind: str, version: str) -> None:
        """Raise NotFound unless Artifact Registry has the image. `kind` is tags, or versions for a digest."""
        host = os.environ.get(f"{HOST_OVERRIDES}ARTIFACTREGISTRY", "https://artifactregistry.googleapis.com").rstrip(
            "/"
        )
        folder = f"{host}/v1/projects/{project}/locations/{location}/repositories/{repository}"
        # No retries: an unreachable registry must not delay training.
        self._request("GET", f"{folder}/packages/{quote(name, safe='')}/{kind}/{version}", None, None)

    def entries(self, where: str, *, limit: int = 10_000, newest: bool = False) -> Iterator[dict[str, Any]]:
        """Yield entries of Cloud Logging, oldest first unless `newest`."""
        body: dict[str, Any] = {
            "resourceNames": [f"projects/{self.project}"],
            "filter": where,
            "orderBy": "timestamp desc" if newest else "timestamp asc",
            "pageSize": min(limit, 1000),
        }
        while limit > 0:
            page = self._with_retry("POST", self.logging(), body)
            found = page.get("entries", [])[:limit]
            yield from found
            limit -= len(found)
            if not page.get("nextPageToken"):
                return
            body = {**body, "pageToken": page["nextPageToken"]}

    def _named(self, name: str) -> str:
        """Return the URL of a job, given its name projects/P/locations/R/customJobs/ID."""
        parts = name.split("/")
        return f"{self.vertex(parts[3])}/{parts[5]}"

    def _with_retry(
        self, method: str, url: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            try:
                return self._request(method, url, body, query)
            except Unreachable as error:
                raise Transient(error.problem.what) from error

        try:
            return retry_transient(ask, self.retry)
        except Transient as error:
            raise Unreachable(error.problem.what, fix="try again in a few minutes") from None

    def _request(
        self, method: str, url: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None
    ) -> dict[str, Any]:
        session = self._authorized()
        failures, requests = import_module("google.auth.exceptions"), import_module("requests")
        try:
            answer = session.request(method, url, json=body, params=query, timeout=REQUEST_TIMEOUT_S)
        except failures.RefreshError as error:
            fix = "gcloud auth application-default login"
            raise ApiError(f"Google refuses the credentials: {error}", status="UNAUTHENTICATED", fix=fix) from error
        except (failures.TransportError, requests.ConnectionError, requests.Timeout) as error:
            raise Unreachable(f"Google does not answer: {_shorten(str(error))}") from error
        if answer.status_code == 200:
            content: dict[str, Any] = answer.json()
            return content
        raise api_error(answer.status_code, answer.text, self.project)

    def _authorized(self) -> Any:
        if self._session is None:
            try:
                transport = import_module("google.auth.transport.requests")
            except ImportError:
                raise MissingExtra("gcp", needed_for="Vertex AI as a target") from None
            from headway.storage.gcs import google_credentials

            try:
                credentials, _ = google_credentials(SCOPE)
            except Denied as error:
                raise ApiError(error.problem.what, status="UNAUTHENTICATED", fix=error.problem.fix) from error
            self._session = transport.AuthorizedSession(credentials)
        return self._session


def api_error(code: int, text: str, project: str) -> ApiError:
    """Turn an HTTP error response into an ApiError with a command that helps."""
    status, message = _error_body(text)
    if code in (408, 500, 502, 503, 504):
        return Unreachable(f"Google answers {code}: {_shorten(message)}", status=status, message=message)
    for pattern, kind, what, fix in _ERROR_RULES:
        if re.search(pattern, f"{code} {status} {message}", re.IGNORECASE):
            short = what or f"Vertex AI: {_shorten(message)}"
            return kind(short, status=status, message=message, fix=fix.format(project=project))
    return ApiError(f"Vertex AI answers {code}: {_shorten(message)}", status=status, message=message)


_ROLE = "gcloud projects add-iam-policy-binding {project} --member=user:$(gcloud config get account) --role=roles/"
_QUOTAS = "https://console.cloud.google.com/iam-admin/quotas?project={project}&service=aiplatform.googleapis.com"
# (pattern in the response, error class, message, fix). The first match wins.
_ERROR_RULES: tuple[tuple[str, type[ApiError], str, str], ...] = (
    (r"^404 ", NotFound, "", ""),
    (
        r"^401 ",
        ApiError,
        "no Google credentials were found",
        "gcloud auth application-default login",
    ),
    (
        r"SERVICE_DISABLED|has not been used in project|it is disabled",
        ApiError,
        "the API is not enabled in this project",
        "gcloud services enable aiplatform.googleapis.com logging.googleapis.com --project={project}",
    ),
    (
        r"iam\.serviceAccounts\.actAs|act as service account",
        ApiError,
        "",
        _ROLE + "iam.serviceAccountUser",
    ),
    (r"^403 .*logging\.", ApiError, "", _ROLE + "logging.viewer"),
    (r"^403 ", ApiError, "", _ROLE + "aiplatform.user"),
    (
        r"^429 |RESOURCE_EXHAUSTED|quota",
        OutOfCapacity,
        "",
        f"ask for more at {_QUOTAS}; or give the target's entry a `fallback`",
    ),
    (
        r"(?:machine|accelerator)[^.]*not (?:supported|available)|not available in (?:this )?(?:region|location|zone)",
        OutOfCapacity,
        "",
        "another region or machine; or give the target's entry a `fallback`",
    ),
    (
        r"image.*(?:not found|not exist)|(?:not found|not exist).*image",
        ApiError,
        "",
        "headway image --push; or mend image.uri",
    ),
)


def _error_body(text: str) -> tuple[str, str]:
    """Parse status and message from a response that may not be JSON."""
    import json

    try:
        error = json.loads(text)["error"]
        details = " ".join(str(detail.get("reason", "")) for detail in error.get("details", []))
        return str(error.get("status", "")), f"{error.get('message', '')} {details}".strip()
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", text.strip()


def _shorten(text: str) -> str:
    return " ".join(text.split())[:400]


# Cloud Logging: output from before the supervisor runs, and Vertex AI's own messages. From then on the run folder has
# every line, and Cloud Logging is not read any more.


POLL_S = 1.0  # poll interval of the run folder
QUERY_S = 10.0  # Google's quota is 60 reads per minute and project, shared by all its users


class CloudLogReader:
    """Reader of one job's lines, each once, in order. It reports a read failure once, as a line, and does not raise."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client, self._job_id = client, job_id
        self._since, self._seen = "", set[str]()
        self._reported_error = False

    def read_new(self) -> Iterator[LogLine]:
        since = f' AND timestamp>="{self._since}"' if self._since else ""
        try:
            for entry in self._client.entries(_job_filter(self._job_id) + since):
                key = str(entry.get("insertId", ""))
                if key not in self._seen:
                    self._seen.add(key)
                    self._since = str(entry.get("timestamp", self._since))
                    yield line_of(entry)
        except HeadwayError as error:  # optional output: report it and carry on
            if not self._reported_error:
                self._reported_error = True
                yield LogLine(rank=SUPERVISOR, time="", text=f"Cloud Logging cannot be read: {error}")


def follow(reader: CloudLogReader, until: Callable[[], bool], *, sleep: Callable[[float], None]) -> Iterator[LogLine]:
    """Follow the lines until `until`: the supervisor has started to write, or no more lines will come."""
    waited = QUERY_S
    while True:
        last = until()
        if last or waited >= QUERY_S:
            yield from reader.read_new()
            waited = 0.0
        if last:
            return
        sleep(POLL_S)
        waited += POLL_S


def last_output(client: Client, job_id: str) -> str:
    """Return the last line that a machine of the job printed, to explain why it ended; empty if unreadable."""
    where = f'{_job_filter(job_id)} AND resource.labels.task_name!="service"'
    try:
        for entry in client.entries(where, limit=5, newest=True):
            text = line_of(entry).text.strip()
            if text:
                return text[:300]
    except HeadwayError:  # optional output
        return ""
    return ""


def line_of(entry: Mapping[str, Any]) -> LogLine:
    payload = entry.get("jsonPayload")
    text = payload.get("message", payload) if isinstance(payload, Mapping) else entry.get("textPayload", "")
    task = str(entry.get("resource", {}).get("labels", {}).get("task_name", ""))
    said = f"{task}: {text}" if task else str(text)
    return LogLine(rank=SUPERVISOR, time=str(entry.get("timestamp", "")), text=said.rstrip("\n"))


def _job_filter(job_id: str) -> str:
    return f'resource.type="ml_job" AND resource.labels.job_id="{job_id}"'
