"""Calls of Vertex AI's custom jobs, Cloud Logging and Artifact Registry. Raises GoogleError."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from headway.core.errors import HeadwayError
from headway.core.retry import poll
from headway.core.types import LogLine
from headway.rundir.layout import SUPERVISOR
from headway.storage.google import ARTIFACT_REGISTRY, LOGGING, VERTEX, GoogleClient


@dataclass
class Client(GoogleClient):
    """A client for the custom jobs, logs and images of one project."""

    needed_for: str = "Vertex AI as a target"

    def vertex(self, region: str) -> str:
        """Return the URL of a region's custom jobs."""
        return VERTEX.url(f"v1/projects/{self.project}/locations/{region}/customJobs", region=region)

    def create(self, region: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create a custom job, without retries: after a lost response the job may exist."""
        return self.request(VERTEX, "POST", self.vertex(region), body)

    def read(self, name: str) -> dict[str, Any]:
        return self.request(VERTEX, "GET", self._named(name))

    def cancel(self, name: str) -> None:
        self.request(VERTEX, "POST", f"{self._named(name)}:cancel", {}, idempotent=True)

    def list_jobs(self, region: str, where: str) -> Iterator[dict[str, Any]]:
        """Yield every job that matches a filter in Google's syntax."""
        for page in self.pages(VERTEX, self.vertex(region), query={"filter": where, "pageSize": "100"}):
            yield from page.get("customJobs", [])

    def probe(self, region: str) -> None:
        """Check that the region accepts requests, by listing at most one job."""
        self.request(VERTEX, "GET", self.vertex(region), query={"pageSize": "1"})

    def image(self, project: str, location: str, repository: str, name: str, kind: str, version: str) -> None:
        """Raise NotFound unless Artifact Registry has the image. `kind` is tags, or versions for a digest."""
        folder = f"v1/projects/{project}/locations/{location}/repositories/{repository}"
        url = ARTIFACT_REGISTRY.url(f"{folder}/packages/{quote(name, safe='')}/{kind}/{version}")
        # No retries: an unreachable registry must not delay training.
        self.request(ARTIFACT_REGISTRY, "GET", url, idempotent=False)

    def entries(self, where: str, *, limit: int = 10_000, newest: bool = False) -> Iterator[dict[str, Any]]:
        """Yield entries of Cloud Logging, oldest first unless `newest`."""
        body: dict[str, Any] = {
            "resourceNames": [f"projects/{self.project}"],
            "filter": where,
            "orderBy": "timestamp desc" if newest else "timestamp asc",
            "pageSize": min(limit, 1000),
        }
        for page in self.pages(LOGGING, LOGGING.url("v2/entries:list"), body=body):
            found = page.get("entries", [])[:limit]
            yield from found
            limit -= len(found)
            if limit <= 0:
                return

    def _named(self, name: str) -> str:
        """Return the URL of a job, given its name projects/P/locations/R/customJobs/ID."""
        parts = name.split("/")
        return f"{self.vertex(parts[3])}/{parts[5]}"


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
    queried_at = -QUERY_S
    for waited_s in poll(POLL_S, sleep=sleep):
        last = until()
        if last or waited_s - queried_at >= QUERY_S:
            yield from reader.read_new()
            queried_at = waited_s
        if last:
            return


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
    line = f"{task}: {text}" if task else str(text)
    return LogLine(rank=SUPERVISOR, time=str(entry.get("timestamp", "")), text=line.rstrip("\n"))


def _job_filter(job_id: str) -> str:
    return f'resource.type="ml_job" AND resource.labels.job_id="{job_id}"'
