"""What Vertex AI says of our jobs. Reads, never changes.

A job carries its run in labels; its folder's URL, which no label can hold, is among the variables of its machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from headway.targets.vertex.api import Client, Gone
from headway.targets.vertex.rendering import (
    EXPIRES_LABEL,
    FOLDER_LABEL,
    OWNER_LABEL,
    OWNER_NAME_LABEL,
    RUN_LABEL,
    START_LABEL,
    folder_label,
)

# Every state of the interface, in words. One that a later Vertex AI invents is of a job that lives.
WORDS = {
    "JOB_STATE_UNSPECIFIED": "in a state that Vertex AI does not name",
    "JOB_STATE_QUEUED": "queued",
    "JOB_STATE_PENDING": "being prepared",
    "JOB_STATE_RUNNING": "running",
    "JOB_STATE_SUCCEEDED": "succeeded",
    "JOB_STATE_FAILED": "failed",
    "JOB_STATE_CANCELLING": "being cancelled",
    "JOB_STATE_CANCELLED": "cancelled",
    "JOB_STATE_PAUSED": "paused",
    "JOB_STATE_EXPIRED": "expired",
    "JOB_STATE_UPDATING": "being updated",
    "JOB_STATE_PARTIALLY_SUCCEEDED": "partly succeeded",
}
ENDED = tuple(f"JOB_STATE_{word}" for word in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED"))
UNDER_WAY = ("JOB_STATE_RUNNING", "JOB_STATE_UPDATING", "JOB_STATE_CANCELLING")
_LIVE = " AND ".join(f'state!="{state}"' for state in ENDED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One of our jobs as Vertex AI describes it."""

    name: str  # projects/P/locations/R/customJobs/ID
    state: str
    error: str = ""
    run: str = ""
    url: str = ""
    expires: str = ""
    owner: str = ""  # empty: submitted by a Headway that did not say
    owner_name: str = ""
    created: str = ""
    start: str = ""

    def __str__(self) -> str:
        return f"Vertex AI job {self.id} in {self.region}"

    @property
    def id(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def region(self) -> str:
        return self.name.split("/")[3]

    @property
    def live(self) -> bool:
        return self.state not in ENDED

    @property
    def words(self) -> str:
        return WORDS.get(self.state, self.state.removeprefix("JOB_STATE_").lower())


def console_link(name: str, project: str) -> str:
    parts = name.split("/")
    return f"https://console.cloud.google.com/vertex-ai/locations/{parts[3]}/training/{parts[5]}?project={project}"


def logs_link(name: str, project: str) -> str:
    """Cloud Logging, with the filter filled in."""
    where = quote(f'resource.type="ml_job"\nresource.labels.job_id="{name.rpartition("/")[2]}"', safe="")
    return f"https://console.cloud.google.com/logs/query;query={where}?project={project}"


def job_of(told: Mapping[str, Any]) -> Job:
    labels: Mapping[str, str] = told.get("labels", {})
    return Job(
        name=str(told["name"]),
        state=str(told.get("state", "JOB_STATE_UNSPECIFIED")),
        error=str(told.get("error", {}).get("message", "")),
        run=labels.get(RUN_LABEL, ""),
        url=_variable(told, "HEADWAY_RUN_URL"),
        expires=labels.get(EXPIRES_LABEL, ""),
        owner=labels.get(OWNER_LABEL, ""),
        owner_name=labels.get(OWNER_NAME_LABEL, ""),
        created=str(told.get("createTime", "")),
        start=labels.get(START_LABEL, ""),
    )


def read(client: Client, name: str) -> Job | None:
    try:
        return job_of(client.read(name))
    except Gone:
        return None


def recorded(client: Client, name: str, url: str) -> Job | None:
    """The job that was recorded for the run at `url`; None where it is gone, or is another folder's."""
    job = read(client, name) if name else None
    return job if job is not None and job.url == url else None


def of_run(client: Client, regions: list[str], url: str) -> list[Job]:
    """The jobs of one run, in every region it may be in, the newest last."""
    where = f'labels.{FOLDER_LABEL}="{folder_label(url)}"'
    found = [job_of(told) for region in regions for told in client.listed(region, where)]
    return sorted((job for job in found if job.url == url), key=lambda job: job.created)


def of_start(client: Client, region: str, start: str) -> Job | None:
    """The job that one submission has made, if it has."""
    found = [job_of(told) for told in client.listed(region, f'labels.{START_LABEL}="{start}"')]
    return found[0] if found else None


def live(client: Client, regions: list[str]) -> list[Job]:
    """Everything of ours that Vertex AI has not ended."""
    where = f"labels.{RUN_LABEL}:* AND {_LIVE}"
    found = [job_of(told) for region in regions for told in client.listed(region, where)]
    return [job for job in found if job.live and job.url]


def _variable(told: Mapping[str, Any], name: str) -> str:
    pools = told.get("jobSpec", {}).get("workerPoolSpecs") or [{}]
    program = pools[0].get("containerSpec") or pools[0].get("pythonPackageSpec") or {}
    return next((str(pair.get("value", "")) for pair in program.get("env", []) if pair.get("name") == name), "")
