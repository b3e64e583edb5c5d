"""Submit, list and take down custom jobs.

Submit uploads the package or image, then creates one custom job in the first region with capacity.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headway.core.errors import BadInput, Conflict, HeadwayError, TargetError
from headway.core.retry import Backoff, RetryPolicy, poll_while, retry, wait_until
from headway.core.types import ORIGIN, Handle, Receipt, State
from headway.packaging import build
from headway.packaging.engine import Engine
from headway.rundir import lease
from headway.rundir.layout import STOP
from headway.rundir.status import END_RECORD_S, folder_of, grace_s, read_status_inputs
from headway.rundir.submission import owner, user_at_host, utc_now
from headway.storage import ABSENT, join, open_store
from headway.storage.google import GoogleError, NotFound, OutOfCapacity, Unreachable
from headway.storage.secrets import parse
from headway.targets.local import processes
from headway.targets.vertex import package, render
from headway.targets.vertex.checks import secret_problem
from headway.targets.vertex.client import Client
from headway.targets.vertex.machines import Placement, job_placements
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
STATE_TEXT = {
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
FINAL_STATES = tuple(
    f"JOB_STATE_{word}" for word in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED")
)
RUNNING_STATES = ("JOB_STATE_RUNNING", "JOB_STATE_UPDATING", "JOB_STATE_CANCELLING")
_LIVE_FILTER = " AND ".join(f'state!="{state}"' for state in FINAL_STATES)


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
        return self.state not in FINAL_STATES

    @property
    def state_text(self) -> str:
        return STATE_TEXT.get(self.state, self.state.removeprefix("JOB_STATE_").lower())


def console_link(name: str, project: str) -> str:
    parts = name.split("/")
    return f"https://console.cloud.google.com/vertex-ai/locations/{parts[3]}/training/{parts[5]}?project={project}"


def logs_link(name: str, project: str) -> str:
    """Return the link to Cloud Logging with the job's filter filled in."""
    where = quote(f'resource.type="ml_job"\nresource.labels.job_id="{name.rpartition("/")[2]}"', safe="")
    return f"https://console.cloud.google.com/logs/query;query={where}?project={project}"


def parse_job(body: Mapping[str, Any]) -> Job:
    labels: Mapping[str, str] = body.get("labels", {})
    return Job(
        name=str(body["name"]),
        state=str(body.get("state", "JOB_STATE_UNSPECIFIED")),
        error=str(body.get("error", {}).get("message", "")),
        run=labels.get(RUN_LABEL, ""),
        url=_env_value(body, "HEADWAY_RUN_URL"),
        expires=labels.get(EXPIRES_LABEL, ""),
        owner=labels.get(OWNER_LABEL, ""),
        owner_name=labels.get(OWNER_NAME_LABEL, ""),
        created=str(body.get("createTime", "")),
        start=labels.get(START_LABEL, ""),
    )


def read(client: Client, name: str) -> Job | None:
    try:
        return parse_job(client.read(name))
    except NotFound:
        return None


def read_run_job(client: Client, name: str, url: str) -> Job | None:
    """Return the recorded job of the run at `url`; None if it is gone or belongs to another folder."""
    job = read(client, name) if name else None
    return job if job is not None and job.url == url else None


def jobs_of_run(client: Client, regions: list[str], url: str) -> list[Job]:
    """List the jobs of one run in all its regions, newest last."""
    where = f'labels.{FOLDER_LABEL}="{folder_label(url)}"'
    jobs = [parse_job(body) for region in regions for body in client.list_jobs(region, where)]
    return sorted((job for job in jobs if job.url == url), key=lambda job: job.created)


def job_of_submission(client: Client, region: str, start: str) -> Job | None:
    """Return the job that one submission created; None if it created none."""
    found = [parse_job(body) for body in client.list_jobs(region, f'labels.{START_LABEL}="{start}"')]
    return found[0] if found else None


def live_jobs(client: Client, regions: list[str]) -> list[Job]:
    """List all live jobs created by Headway."""
    where = f"labels.{RUN_LABEL}:* AND {_LIVE_FILTER}"
    found = [parse_job(body) for region in regions for body in client.list_jobs(region, where)]
    return [job for job in found if job.live and job.url]


def _env_value(body: Mapping[str, Any], name: str) -> str:
    pools = body.get("jobSpec", {}).get("workerPoolSpecs") or [{}]
    program = pools[0].get("containerSpec") or pools[0].get("pythonPackageSpec") or {}
    return next((str(pair.get("value", "")) for pair in program.get("env", []) if pair.get("name") == name), "")


# Teardown. An ended job stays in Vertex AI's list as a record, which is not billed.


LEAVING_S = 60.0  # wait for the job of a finished run to end by itself
FORCE_S = 300.0  # wait for a cancelled job to end, with its machines
FIRST_POLL_S, LONGEST_POLL_S = 0.2, 5.0
ListJobs = Callable[[], list[Job]]
Sleep = Callable[[float], None]


def take_down(client: Client, handle: Handle, list_jobs: ListJobs, sleep: Sleep) -> Receipt:
    """Ask a training run to checkpoint, wait for its grace period, then cancel its jobs.

    The receipt comes from a listing made at the end.
    """
    seen: dict[str, Job] = {}
    cancelled: set[str] = set()

    def remaining() -> list[Job]:
        found = list_jobs()
        seen.update({job.name: job for job in found})
        return [job for job in found if job.live]

    if any(job.state in RUNNING_STATES for job in remaining()):
        if _is_training(handle):
            _request_stop(handle)
            wait_s = _stop_wait_s(handle)
            wait_until(lambda: not (_is_training(handle) and remaining()), _backoff(), within_s=wait_s, sleep=sleep)
        if _ended_well(handle):  # its job is about to succeed by itself: do not record it as cancelled
            wait_until(lambda: not remaining(), _backoff(), within_s=LEAVING_S, sleep=sleep)
    recorded = str(handle.details.get("job", "")) if not handle.details.get(ORIGIN) else ""
    unseen = [recorded] if recorded and recorded not in seen else []
    for name in unseen:
        _cancel_unseen(client, name)
    for left, _ in poll_while(remaining, _backoff(), within_s=FORCE_S, sleep=sleep):
        for job in left:
            if job.name not in cancelled and job.state != "JOB_STATE_CANCELLING":
                cancelled.add(job.name)
                _cancel(client, job)
    still_live = {job.name for job in remaining()}
    return Receipt(
        run=handle.run,
        created=tuple(map(str, seen.values())),
        removed=tuple(str(job) for name, job in seen.items() if name not in still_live),
        left=tuple(f"{job} ({job.state_text})" for name, job in seen.items() if name in still_live),
        unverified=tuple(f"Vertex AI job {name}" for name in unseen if name not in seen),
    )


def _cancel_unseen(client: Client, name: str) -> None:
    """Cancel a recorded job that neither a list nor a read shows: Vertex AI keeps jobs long after their end."""
    if read(client, name) is not None:  # another folder's by now
        return
    try:
        client.cancel(name)
    except NotFound:
        pass
    except GoogleError as error:
        if error.code != 400:  # it has ended, or cannot be cancelled any more
            raise


def _request_stop(handle: Handle) -> None:
    """Write the stop request into the run folder: the only way to reach the supervisor, short of a cancel."""
    folder = folder_of(handle)
    try:
        folder.write_json(STOP, {"by": user_at_host(), "reason": "taken down", "at": utc_now()}, when=ABSENT)
    except Conflict:
        pass  # a stop was requested already, with its own reason
    except HeadwayError:
        pass  # folder unreachable: the cancel stops it too, less gracefully


def _is_training(handle: Handle) -> bool:
    """Return whether an attempt is running that can still write its `ended` event."""
    try:
        inputs = read_status_inputs(folder_of(handle))
    except HeadwayError:  # folder missing or unreachable
        return False
    return inputs.started and inputs.end is None and inputs.lease is not None and inputs.lease.holder is not None


def _ended_well(handle: Handle) -> bool:
    """Return whether the run ended with exit code 0: finished, or out of budget. A failed job would be restarted."""
    try:
        end = read_status_inputs(folder_of(handle)).end
    except HeadwayError:  # folder missing or unreachable
        return False
    return end is not None and end.state in (State.FINISHED, State.BUDGET)


def _stop_wait_s(handle: Handle) -> float:
    """Return the time to wait for a requested stop: a supervisor reads the request when it renews its lease."""
    return lease.RENEW_S + grace_s(handle) + END_RECORD_S


def _backoff() -> Backoff:
    return Backoff(FIRST_POLL_S, LONGEST_POLL_S, factor=1.3)


def _cancel(client: Client, job: Job) -> None:
    try:
        client.cancel(job.name)
    except NotFound:
        pass
    except GoogleError:
        current = read(client, job.name)
        if current is not None and current.live:
            raise


TRIES = 3  # of one creation whose response is lost
QUEUE_POLL_S = 10.0  # poll interval of a queued job, before the next region is tried


def refuse_secrets(plan: Plan, options: Options) -> None:
    """Raise BadInput for secrets that Vertex AI cannot provide, including those added at launch."""
    for name, secret in plan.job.get("secrets", {}).items():
        problem = secret_problem(name, parse(str(secret["ref"])), options)
        if problem is not None:
            raise BadInput(problem.what, where=problem.where, fix=problem.fix)


def upload(plan: Plan, options: Options, engine: Engine) -> None:
    """Upload what the machines will fetch. Names are content-addressed: existing objects are not sent again."""
    outputs = str(plan.job["outputs"])
    image = render.image_to_build(plan, options)
    if image is not None:
        build.push(engine, "docker", image, outputs)
    if options.mode == "package":
        store, name = open_store(join(outputs, "code")), package.file_name(plan)
        try:
            store.write(name, package.sdist(plan, package.planned_code(plan, outputs)), when=ABSENT)
        except Conflict:
            pass  # same content, uploaded earlier


def create(client: Client, plan: Plan, options: Options, run: str, sleep: Sleep) -> tuple[Job, Placement]:
    """Create the job in the first region with capacity. `plan` holds what is left of the budget."""
    refusals: list[str] = []
    placements = job_placements(plan.job, options)
    for placement in placements:
        last = placement == placements[-1]
        try:
            job = _create_in(client, placement, _body(plan, options, placement, run))
            if last or options.switch_after is None or _wait_until_dequeued(client, job, options.switch_after, sleep):
                return job, placement
            client.cancel(job.name)
            refusals.append(f"{placement}: still {job.state_text} after {options.switch_after:g} s")
        except OutOfCapacity as error:
            refusals.append(f"{placement}: {error.problem.what}")
            if last:
                raise _no_capacity(refusals, error) from error
    raise TargetError("; ".join(refusals))  # unreachable: the last region returns or raises


def lifetime_s(plan: Plan, options: Options) -> float:
    """Return the age after which a job may be removed in any case."""
    return render.timeout_s(plan, options) + (plan.limits.max_wait_s or 86_400.0) + 3600.0


def _body(plan: Plan, options: Options, placement: Placement, run: str) -> dict[str, Any]:
    """Return the rendered job with the run's name, owner, expiry and submission ID filled in."""
    current_owner = owner()
    body: dict[str, Any] = processes.fill_run_name(render.custom_job(plan, options, placement), run)
    run_labels = {
        render.EXPIRES_LABEL: str(int(time.time() + lifetime_s(plan, options))),
        render.OWNER_LABEL: current_owner.id,
        render.OWNER_NAME_LABEL: re.sub(r"[^a-z0-9_-]", "-", current_owner.name.lower())[:63],
        render.START_LABEL: secrets.token_hex(8),
    }
    return {**body, "labels": {**body["labels"], **run_labels}}


def _create_in(client: Client, placement: Placement, body: Mapping[str, Any]) -> Job:
    """Create the job; after a lost response, retry only if a listing shows that no job was created."""
    start = str(body["labels"][render.START_LABEL])

    def create() -> Job:
        try:
            return parse_job(client.create(placement.region, body))
        except Unreachable as error:
            created = job_of_submission(client, placement.region, start)  # if this fails too, nothing is retried
            if created is None:
                raise _NotCreated(error.problem.what, fix=error.problem.fix) from error
            return created

    return retry(create, RetryPolicy(tries=TRIES), on=_NotCreated)


class _NotCreated(GoogleError):
    """The response was lost, and a listing shows that no job was created."""


def _wait_until_dequeued(client: Client, job: Job, within_s: float, sleep: Sleep) -> bool:
    def dequeued() -> bool:
        now = read(client, job.name)
        return now is not None and now.state not in ("JOB_STATE_QUEUED", "JOB_STATE_PENDING")

    return wait_until(dequeued, QUEUE_POLL_S, within_s=within_s, sleep=sleep)


def _no_capacity(refusals: list[str], error: OutOfCapacity) -> OutOfCapacity:
    if len(refusals) == 1:
        return error
    what = "no region has capacity: " + "; ".join(refusals)
    return OutOfCapacity(what, status=error.status, message=error.message, fix=error.problem.fix)
