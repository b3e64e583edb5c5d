"""Submit, list and take down custom jobs.

Submit uploads the package or image, then creates one custom job in the first region with capacity.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headway.core.errors import BadInput, Conflict, HeadwayError, TargetError
from headway.core.types import Handle, Receipt, State
from headway.packaging import build
from headway.packaging.engine import Engine
from headway.rundir import lease
from headway.rundir.layout import STOP
from headway.rundir.status import END_RECORD_S, folder_of, grace_s, read_status_inputs
from headway.rundir.submission import owner, user_at_host, utc_now
from headway.storage import ABSENT, join, open_store
from headway.storage.secrets import parse
from headway.targets.local import processes
from headway.targets.vertex import package, render
from headway.targets.vertex.checks import secret_problem
from headway.targets.vertex.client import ApiError, Client, NotFound, OutOfCapacity, Unreachable
from headway.targets.vertex.machines import Region, of_job
from headway.targets.vertex.options import Options
from headway.targets.vertex.render import (
    EXPIRES_LABEL,
    FOLDER_LABEL,
    OWNER_LABEL,
    OWNER_NAME_LABEL,
    RUN_LABEL,
    START_LABEL,
    folder_label,
)

if TYPE_CHECKING:
    from headway.core.plan import Plan


# Listing jobs (read-only). Labels hold the run; the folder's URL, which no label can hold, is in the job's environment.


# Every state of the API, in words. A state that is not listed here counts as live.
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
    """A custom job of ours, as Vertex AI describes it."""

    name: str  # projects/P/locations/R/customJobs/ID
    state: str
    error: str = ""
    run: str = ""
    url: str = ""
    expires: str = ""
    owner: str = ""  # empty: submitted by a version of Headway that did not record it
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
    """Return the link to Cloud Logging with the job's filter filled in."""
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
    except NotFound:
        return None


def recorded(client: Client, name: str, url: str) -> Job | None:
    """Return the recorded job of the run at `url`; None if it is gone or belongs to another folder."""
    job = read(client, name) if name else None
    return job if job is not None and job.url == url else None


def of_run(client: Client, regions: list[str], url: str) -> list[Job]:
    """List the jobs of one run in all its regions, newest last."""
    where = f'labels.{FOLDER_LABEL}="{folder_label(url)}"'
    found = [job_of(told) for region in regions for told in client.listed(region, where)]
    return sorted((job for job in found if job.url == url), key=lambda job: job.created)


def of_start(client: Client, region: str, start: str) -> Job | None:
    """Return the job that one submission created; None if it created none."""
    found = [job_of(told) for told in client.listed(region, f'labels.{START_LABEL}="{start}"')]
    return found[0] if found else None


def live(client: Client, regions: list[str]) -> list[Job]:
    """List all live jobs created by Headway."""
    where = f"labels.{RUN_LABEL}:* AND {_LIVE}"
    found = [job_of(told) for region in regions for told in client.listed(region, where)]
    return [job for job in found if job.live and job.url]


def _variable(told: Mapping[str, Any], name: str) -> str:
    pools = told.get("jobSpec", {}).get("workerPoolSpecs") or [{}]
    program = pools[0].get("containerSpec") or pools[0].get("pythonPackageSpec") or {}
    return next((str(pair.get("value", "")) for pair in program.get("env", []) if pair.get("name") == name), "")


# Teardown. An ended job stays in Vertex AI's list as a record, which is not billed.


LEAVING_S = 60.0  # wait for the job of a finished run to end by itself
FORCE_S = 300.0  # wait for a cancelled job to end, with its machines
FIRST_LOOK_S, LONGEST_LOOK_S = 0.2, 5.0
Listing = Callable[[], list[Job]]
Sleep = Callable[[float], None]


def take_down(client: Client, handle: Handle, listing: Listing, sleep: Sleep) -> Receipt:
    """Ask a training run to checkpoint, wait for its grace period, then cancel its jobs.

    The receipt comes from a listing made at the end.
    """
    seen: dict[str, Job] = {}
    cancelled: set[str] = set()

    def remaining() -> list[Job]:
        found = listing()
        seen.update({job.name: job for job in found})
        return [job for job in found if job.live]

    if any(job.state in UNDER_WAY for job in remaining()):
        if _trains(handle):
            _ask(handle)
            for _ in _looks(lambda: _trains(handle) and remaining(), _patience_s(handle), sleep):
                pass
        if _is_done(handle):  # its job is about to succeed by itself: do not record it as cancelled
            for _ in _looks(remaining, LEAVING_S, sleep):
                pass
    for left in _looks(remaining, FORCE_S, sleep):
        for job in left:
            if job.name not in cancelled and job.state != "JOB_STATE_CANCELLING":
                cancelled.add(job.name)
                _cancel(client, job)
    stayed = {job.name for job in remaining()}
    return Receipt(
        run=handle.run,
        created=tuple(map(str, seen.values())),
        removed=tuple(str(job) for name, job in seen.items() if name not in stayed),
        left=tuple(f"{job} ({job.words})" for name, job in seen.items() if name in stayed),
    )


def _ask(handle: Handle) -> None:
    """Write the stop request into the run folder: the only way to reach the supervisor, short of a cancel."""
    folder = folder_of(handle)
    try:
        folder.write_json(STOP, {"by": user_at_host(), "reason": "taken down", "at": utc_now()}, when=ABSENT)
    except Conflict:
        pass  # a stop was requested already, with its own reason
    except HeadwayError:
        pass  # folder unreachable: the cancel stops it too, less gracefully


def _trains(handle: Handle) -> bool:
    """Return whether an attempt is running that can still write its `ended` event."""
    try:
        seen = read_status_inputs(folder_of(handle))
    except HeadwayError:  # folder missing or unreachable
        return False
    return seen.started and seen.end is None and seen.lease is not None and seen.lease.holder is not None


def _is_done(handle: Handle) -> bool:
    """Return whether the run ended with exit code 0: finished, or out of budget. A failed job would be restarted."""
    try:
        end = read_status_inputs(folder_of(handle)).end
    except HeadwayError:  # folder missing or unreachable
        return False
    return end is not None and end.state in (State.FINISHED, State.BUDGET)


def _patience_s(handle: Handle) -> float:
    """Return the time to wait for a requested stop: a supervisor reads the request when it renews its lease."""
    return lease.RENEW_S + grace_s(handle) + END_RECORD_S


def _looks(remaining: Callable[[], object], within_s: float, sleep: Sleep) -> Iterator[list[Job]]:
    began, pause = time.monotonic(), FIRST_LOOK_S
    while time.monotonic() - began < within_s and (left := remaining()):
        yield left if isinstance(left, list) else []
        sleep(pause)
        pause = min(LONGEST_LOOK_S, pause * 1.3)


def _cancel(client: Client, job: Job) -> None:
    try:
        client.cancel(job.name)
    except NotFound:
        pass
    except ApiError:
        current = read(client, job.name)
        if current is not None and current.live:
            raise


TRIES = 3  # of one creation whose response is lost
LOOK_S = 10.0  # poll interval of a queued job, before the next region is tried


def refuse_secrets(plan: Plan, options: Options) -> None:
    """Raise BadInput for secrets that Vertex AI cannot provide, including those added at launch."""
    for name, secret in plan.job.get("secrets", {}).items():
        problem = secret_problem(name, parse(str(secret["ref"])), options)
        if problem is not None:
            raise BadInput(problem.what, where=problem.where, fix=problem.fix)


def lay_ready(plan: Plan, options: Options, engine: Engine) -> None:
    """Upload what the machines will fetch. Names are content-addressed: existing objects are not sent again."""
    outputs = str(plan.job["outputs"])
    image = render.to_be_built(plan, options)
    if image is not None:
        build.push(engine, "docker", image, outputs)
    if options.mode == "package":
        store, name = open_store(join(outputs, "code")), package.file_name(plan)
        try:
            store.write(name, package.sdist(plan, package.planned_code(plan, outputs)), when=ABSENT)
        except Conflict:
            pass  # same content, uploaded earlier


def create(client: Client, plan: Plan, options: Options, run: str, sleep: Sleep) -> tuple[Job, Region]:
    """Create the job in the first region with capacity. `plan` holds what is left of the budget."""
    refused: list[str] = []
    wanted = of_job(plan.job, options)
    for place in wanted:
        last = place == wanted[-1]
        try:
            job = _create_in(client, place, _body(plan, options, place, run))
            if last or options.switch_after is None or _leaves_the_queue(client, job, options.switch_after, sleep):
                return job, place
            client.cancel(job.name)
            refused.append(f"{place}: still {job.words} after {options.switch_after:g} s")
        except OutOfCapacity as error:
            refused.append(f"{place}: {error.problem.what}")
            if last:
                raise _nowhere(refused, error) from error
    raise TargetError("; ".join(refused))  # unreachable: the last region returns or raises


def expected_s(plan: Plan, options: Options) -> float:
    """Return the age after which a job may be removed in any case."""
    return render.timeout_s(plan, options) + (plan.limits.max_wait_s or 86_400.0) + 3600.0


def _body(plan: Plan, options: Options, place: Region, run: str) -> dict[str, Any]:
    """Return the rendered job with the run's name, owner, expiry and submission ID filled in."""
    us = owner()
    body: dict[str, Any] = processes.named(render.custom_job(plan, options, place), run)
    own = {
        render.EXPIRES_LABEL: str(int(time.time() + expected_s(plan, options))),
        render.OWNER_LABEL: us.id,
        render.OWNER_NAME_LABEL: re.sub(r"[^a-z0-9_-]", "-", us.name.lower())[:63],
        render.START_LABEL: secrets.token_hex(8),
    }
    return {**body, "labels": {**body["labels"], **own}}


def _create_in(client: Client, place: Region, body: Mapping[str, Any]) -> Job:
    """Create the job; after a lost response, retry only if a listing shows that no job was created."""
    start = str(body["labels"][render.START_LABEL])
    for tried in range(1, TRIES + 1):
        try:
            return job_of(client.create(place.region, body))
        except Unreachable as error:
            made = of_start(client, place.region, start)
            if made is not None:
                return made
            if tried == TRIES:
                raise ApiError(error.problem.what, fix="look again in a while") from error
    raise AssertionError("the last try returns or raises")


def _leaves_the_queue(client: Client, job: Job, within_s: float, sleep: Sleep) -> bool:
    waited = 0.0
    while waited < within_s:
        pause = min(LOOK_S, within_s - waited)
        sleep(pause)
        waited += pause
        now = read(client, job.name)
        if now is not None and now.state not in ("JOB_STATE_QUEUED", "JOB_STATE_PENDING"):
            return True
    return False


def _nowhere(refused: list[str], error: OutOfCapacity) -> OutOfCapacity:
    if len(refused) == 1:
        return error
    what = "no place has room: " + "; ".join(refused)
    return OutOfCapacity(what, status=error.status, said=error.said, fix=error.problem.fix)
