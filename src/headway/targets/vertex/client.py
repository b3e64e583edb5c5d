"""Google's own HTTP interfaces, with google-auth for the credentials: the one seam to the cloud.

What they refuse comes out as our errors, with what to type. google-auth is imported when something is first asked.
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
from headway.core.retry import RetryPolicy, keep_trying
from headway.core.types import LogLine
from headway.rundir.layout import SUPERVISOR

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ANSWER_S = 60.0
HICCUP = RetryPolicy(tries=4, total_s=30.0)
# The same variables by which gcloud is sent elsewhere.
OVERRIDES = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"


class ApiError(TargetError):
    """Google said no. `status` is its word for it: INVALID_ARGUMENT, PERMISSION_DENIED."""

    def __init__(self, what: str, *, status: str = "", said: str = "", fix: str = "") -> None:
        super().__init__(what, fix=fix)
        self.status, self.said = status, said


class OutOfCapacity(ApiError):
    """No quota, or no such machine, in this place. Another may have both."""


class NotFound(ApiError):
    """There is no such thing, any more or at all."""


class Unreachable(ApiError):
    """No answer, or one that says to try again. What was asked for may have been done all the same."""


@dataclass(slots=True)
class Client:
    """Asks Vertex AI and Cloud Logging for one project."""

    project: str
    patience: RetryPolicy = HICCUP
    _session: Any = field(default=None, repr=False)

    def vertex(self, region: str) -> str:
        """Where Vertex AI answers for a region."""
        override = os.environ.get(f"{OVERRIDES}AIPLATFORM")
        host = override.rstrip("/") if override else f"https://{region}-aiplatform.googleapis.com"
        return f"{host}/v1/projects/{self.project}/locations/{region}/customJobs"

    def logging(self) -> str:
        return os.environ.get(f"{OVERRIDES}LOGGING", "https://logging.googleapis.com").rstrip("/") + "/v2/entries:list"

    def create(self, region: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Asked once: an answer that is lost may be of a job that was made."""
        return self._asked("POST", self.vertex(region), body, None)

    def read(self, name: str) -> dict[str, Any]:
        return self._patiently("GET", self._named(name))

    def cancel(self, name: str) -> None:
        self._patiently("POST", f"{self._named(name)}:cancel", {})

    def listed(self, region: str, where: str) -> Iterator[dict[str, Any]]:
        """Every job for which Google's filter holds."""
        query = {"filter": where, "pageSize": "100"}
        while True:
            page = self._patiently("GET", self.vertex(region), None, query)
            yield from page.get("customJobs", [])
            if not page.get("nextPageToken"):
                return
            query = {**query, "pageToken": page["nextPageToken"]}

    def one(self, region: str) -> None:
        """The smallest question: whether this region answers us at all."""
        self._patiently("GET", self.vertex(region), None, {"pageSize": "1"})

    def image(self, project: str, location: str, repository: str, name: str, kind: str, version: str) -> None:
        """Whether Artifact Registry has it; Gone where it has not. `kind` is tags, or versions for a digest."""
        host = os.environ.get(f"{OVERRIDES}ARTIFACTREGISTRY", "https://artifactregistry.googleapis.com").rstrip("/")
        folder = f"{host}/v1/projects/{project}/locations/{location}/repositories/{repository}"
        # Asked once: whoever does not answer here is no reason not to train.
        self._asked("GET", f"{folder}/packages/{quote(name, safe='')}/{kind}/{version}", None, None)

    def entries(self, where: str, *, limit: int = 10_000, newest: bool = False) -> Iterator[dict[str, Any]]:
        """What Cloud Logging holds, the oldest first unless the newest are asked for."""
        body: dict[str, Any] = {
            "resourceNames": [f"projects/{self.project}"],
            "filter": where,
            "orderBy": "timestamp desc" if newest else "timestamp asc",
            "pageSize": min(limit, 1000),
        }
        while limit > 0:
            page = self._patiently("POST", self.logging(), body)
            found = page.get("entries", [])[:limit]
            yield from found
            limit -= len(found)
            if not page.get("nextPageToken"):
                return
            body = {**body, "pageToken": page["nextPageToken"]}

    def _named(self, name: str) -> str:
        """projects/P/locations/R/customJobs/ID, where it is answered for."""
        parts = name.split("/")
        return f"{self.vertex(parts[3])}/{parts[5]}"

    def _patiently(
        self, method: str, url: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            try:
                return self._asked(method, url, body, query)
            except Unreachable as error:
                raise Transient(error.problem.what) from error

        try:
            return keep_trying(ask, self.patience)
        except Transient as error:
            raise Unreachable(error.problem.what, fix="look again in a while") from None

    def _asked(
        self, method: str, url: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None
    ) -> dict[str, Any]:
        session = self._authorized()
        failures, requests = import_module("google.auth.exceptions"), import_module("requests")
        try:
            answer = session.request(method, url, json=body, params=query, timeout=ANSWER_S)
        except failures.RefreshError as error:
            fix = "gcloud auth application-default login"
            raise ApiError(f"Google refuses the credentials: {error}", status="UNAUTHENTICATED", fix=fix) from error
        except (failures.TransportError, requests.ConnectionError, requests.Timeout) as error:
            raise Unreachable(f"Google does not answer: {_short(str(error))}") from error
        if answer.status_code == 200:
            told: dict[str, Any] = answer.json()
            return told
        raise refusal(answer.status_code, answer.text, self.project)

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


def refusal(code: int, text: str, project: str) -> ApiError:
    """Google's answer as an error that says what to type."""
    status, said = _told(text)
    if code in (408, 500, 502, 503, 504):
        return Unreachable(f"Google answers {code}: {_short(said)}", status=status, said=said)
    for pattern, kind, what, fix in _KNOWN:
        if re.search(pattern, f"{code} {status} {said}", re.IGNORECASE):
            shown = what or f"Vertex AI: {_short(said)}"
            return kind(shown, status=status, said=said, fix=fix.format(project=project))
    return ApiError(f"Vertex AI answers {code}: {_short(said)}", status=status, said=said)


_ROLE = "gcloud projects add-iam-policy-binding {project} --member=user:$(gcloud config get account) --role=roles/"
_QUOTAS = "https://console.cloud.google.com/iam-admin/quotas?project={project}&service=aiplatform.googleapis.com"
# (what it says, kind of error, what happened, what to type). The first that fits.
_KNOWN: tuple[tuple[str, type[ApiError], str, str], ...] = (
    (r"^404 ", NotFound, "", ""),
    (
        r"^401 ",
        ApiError,
        "Google does not know who we are",
        "gcloud auth application-default login",
    ),
    (
        r"SERVICE_DISABLED|has not been used in project|it is disabled",
        ApiError,
        "this project has not switched the service on",
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


def _told(text: str) -> tuple[str, str]:
    """Google's status and message, of an answer that may be no JSON at all."""
    import json

    try:
        error = json.loads(text)["error"]
        details = " ".join(str(detail.get("reason", "")) for detail in error.get("details", []))
        return str(error.get("status", "")), f"{error.get('message', '')} {details}".strip()
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", text.strip()


def _short(text: str) -> str:
    return " ".join(text.split())[:400]


# What Cloud Logging holds of a job: what the machines printed before the supervisor could write, and Vertex AI's own
# words. Once the supervisor runs, the run folder has every line, and this is asked no more.


LOOK_S = 1.0  # between looks into the folder
ASK_S = 10.0  # Google lets a project read sixty times a minute, all its users together


class CloudLogReader:
    """The lines of one job, each once, in order. What cannot be read is said once, and is no error."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client, self._job_id = client, job_id
        self._since, self._seen = "", set[str]()
        self._complained = False

    def fresh(self) -> Iterator[LogLine]:
        since = f' AND timestamp>="{self._since}"' if self._since else ""
        try:
            for entry in self._client.entries(_of_job(self._job_id) + since):
                key = str(entry.get("insertId", ""))
                if key not in self._seen:
                    self._seen.add(key)
                    self._since = str(entry.get("timestamp", self._since))
                    yield line_of(entry)
        except HeadwayError as error:  # a nicety is missing, not the run: it is said, and training goes on
            if not self._complained:
                self._complained = True
                yield LogLine(rank=SUPERVISOR, time="", text=f"Cloud Logging cannot be read: {error}")


def followed(
    preamble: CloudLogReader, begun: Callable[[], bool], *, sleep: Callable[[float], None]
) -> Iterator[LogLine]:
    """Until the supervisor has begun to write, or nothing more will come."""
    waited = ASK_S
    while True:
        last = begun()
        if last or waited >= ASK_S:
            yield from preamble.fresh()
            waited = 0.0
        if last:
            return
        sleep(LOOK_S)
        waited += LOOK_S


def last_words(client: Client, job_id: str) -> str:
    """The last line that a machine of the job printed, for a reader who wonders why it ended."""
    where = f'{_of_job(job_id)} AND resource.labels.task_name!="service"'
    try:
        for entry in client.entries(where, limit=5, newest=True):
            text = line_of(entry).text.strip()
            if text:
                return text[:300]
    except HeadwayError:  # a nicety is missing, not the answer
        return ""
    return ""


def line_of(entry: Mapping[str, Any]) -> LogLine:
    payload = entry.get("jsonPayload")
    text = payload.get("message", payload) if isinstance(payload, Mapping) else entry.get("textPayload", "")
    task = str(entry.get("resource", {}).get("labels", {}).get("task_name", ""))
    said = f"{task}: {text}" if task else str(text)
    return LogLine(rank=SUPERVISOR, time=str(entry.get("timestamp", "")), text=said.rstrip("\n"))


def _of_job(job_id: str) -> str:
    return f'resource.type="ml_job" AND resource.labels.job_id="{job_id}"'
