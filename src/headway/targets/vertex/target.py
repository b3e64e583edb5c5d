"""Vertex AI target: one custom job per run, one supervisor per machine. Google bills for what runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, ClassVar

from headway.core.errors import BadInput, HeadwayError, Problem, RunBusy
from headway.core.plan import Limits
from headway.core.types import ORIGIN, Finding, Handle, LogLine, Receipt, Request, State, Status, Target
from headway.packaging.dockerfile import PLATFORM
from headway.packaging.engine import Engine
from headway.packaging.engine import run as run_command
from headway.rundir.lease import spent_s, with_remaining_budget
from headway.rundir.logs import tail
from headway.rundir.status import (
    FINAL_STATES,
    StatusInputs,
    end_check,
    folder_of,
    next_start_clause,
    read_status_inputs,
    release_dead_lease,
    run_url,
    status_without_target,
)
from headway.storage.google import GoogleError
from headway.targets.vertex import checks, client, lifecycle, machines, render
from headway.targets.vertex.client import Client
from headway.targets.vertex.lifecycle import RUNNING_STATES
from headway.targets.vertex.machines import placements, regions
from headway.targets.vertex.options import Options
from headway.targets.vertex.render import KIND

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job


# Project checks (read-only)


SERVICE_AGENT = "service-PROJECT-NUMBER@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"


def region_problems(client: Client, where: list[str]) -> Iterator[Problem]:
    """Yield a problem for each region in which Vertex AI refuses our requests."""
    for region in where:
        try:
            client.probe(region)
        except GoogleError as error:
            yield Problem(what=error.problem.what, where=f"targets.region {region}", fix=error.problem.fix)


def findings(client: Client, options: Options, job: Job) -> Iterator[Finding]:
    for problem in checks.problems(job, options):
        yield Finding("bad", f"{problem.where}: {problem.what}", problem.fix)
    for region in regions(options):
        try:
            client.probe(region)
            running = lifecycle.live_jobs(client, [region])
            yield Finding("ok", f"Vertex AI answers for {client.project} in {region}; {len(running)} live runs there")
        except GoogleError as error:
            yield Finding("bad", f"{region}: {error.problem.what}", error.problem.fix)
    yield _logging_finding(client)
    yield Finding("ok", "it would go to " + ", then ".join(map(str, placements(job.resources, options))))
    yield _account_finding(client, options, job)


def _logging_finding(client: Client) -> Finding:
    try:
        list(client.entries('resource.type="ml_job"', limit=1))
        return Finding("ok", "Cloud Logging can be read")
    except HeadwayError as error:
        return Finding("note", f"Cloud Logging cannot be read: {error.problem.what}", error.problem.fix)


def _account_finding(client: Client, options: Options, job: Job) -> Finding:
    """Name the account that the job runs as and the role it needs. Only Google knows whether it has it."""
    member = options.service_account or SERVICE_AGENT
    bucket = job.outputs.removeprefix("gs://").partition("/")[0]
    fix = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=serviceAccount:{member}"
    what = (
        f"the job runs as {options.service_account or 'Vertex AI’s own agent'}, which needs write access to the bucket"
    )
    return Finding("note", what, f"{fix} --role=roles/storage.objectUser")


DEFAULTS = Options()
POLL_S = 2.0  # poll interval of the run folder while following a log …
QUERY_S = 15.0  # … and of Vertex AI


@dataclass(frozen=True, slots=True)
class VertexTarget(Target):
    options_class: ClassVar[type[Any]] = Options
    list_price_factor: ClassVar[float | None] = 1.15
    scheduler_env: ClassVar[bool] = True
    options: Options = DEFAULTS
    engine: Engine = run_command  # builds and pushes images
    today: Callable[[], date] = date.today
    sleep: Callable[[float], None] = time.sleep
    _clients: list[Client] = field(default_factory=list, compare=False, repr=False)

    def check(self, job: Job) -> list[Problem]:
        return list(checks.problems(job, self.options))

    def notes(self, job: Job, ranks: int) -> list[str]:
        """Return remarks for the plan that do not stop the job."""
        return [*checks.notes(job, self.options, self.today()), *machines.notes(job, self.options)]

    def online(self, plan: Plan) -> list[Problem]:
        """Find problems that only Google can report: refused access in a region of the run, and a missing image."""
        uri = (plan.job.get("image") or {}).get("uri")
        refusals = list(region_problems(self._client(), regions(self.options)))
        missing_image = checks.image_problem(self._client(), uri) if uri and not refusals else None
        return refusals if missing_image is None else [missing_image]

    def doctor(self, job: Job) -> Iterator[Finding]:
        """Check the project's setup; each finding has the command that fixes it."""
        return findings(self._client(), self.options, job)

    def links(self, handle: Handle) -> dict[str, str]:
        """Return links to the run's job and logs in the Google Cloud console, without a request."""
        name = "" if handle.details.get(ORIGIN) else str(handle.details.get("job", ""))
        project = self.options.project or ""
        return (
            {"console": lifecycle.console_link(name, project), "logs": lifecycle.logs_link(name, project)}
            if name
            else {}
        )

    def evidence(self, handle: Handle) -> list[str]:
        """Return, for `headway why`, the last line its machines printed and the error of its job in Vertex AI."""
        job = self._newest(handle)
        if job is None:
            return []
        return [line for line in (client.last_output(self._client(), job.id), job.error) if line]

    def limits(self, job: Job) -> Limits:
        """Return the durations that apply on Vertex AI. Its own timeout, always set, is the backstop of the budget."""
        hours = machines.hours(job, self.options)
        budget_s = None if hours is None else hours * 3600
        limit = self.options.timeout if budget_s is None else budget_s + self.options.grace + render.ENDING_S
        second = f"Vertex AI's own timeout of {limit / 3600:.4g} h, each submission"
        return Limits(budget_s=budget_s, max_wait_s=job.max_wait, grace_s=self.options.grace, second=second)

    def image_platform(self, job: Job) -> str:
        return PLATFORM if self.options.mode == "container" else ""

    def cpus(self, job: Job, ranks: int) -> int:
        """Return the CPUs per node that the ranks' threads share."""
        return machines.cpus_of(placements(job.resources, self.options)[0].machine)

    def render(self, plan: Plan) -> list[Request]:
        """Return the package or image, and the custom job per candidate region. No request contains a secret."""
        return render.requests(plan, self.options)

    def submit(self, plan: Plan, run: str) -> Handle:
        """Upload what the machines will fetch, then create one job. A failed submit leaves no job."""
        lifecycle.refuse_secrets(plan, self.options)
        url = run_url(str(plan.job["outputs"]), run)
        handle = Handle(target=plan.target, run=run, url=url)
        live = [job for job in self._jobs(handle) if job.live]
        if live:
            raise RunBusy(f"{run}: {live[-1]} is {live[-1].state_text}", fix=f"headway stop {run}")
        lifecycle.upload(plan, self.options, self.engine)
        try:
            # Vertex AI's timeout starts anew with each submission, so set it from the rest of the budget.
            left = with_remaining_budget(plan, spent_s(folder_of(handle)))
            job, placement = lifecycle.create(self._client(), left, self.options, run, self.sleep)
        except BaseException:  # Ctrl-C too: a queued job would run eventually
            self._cancel_quietly(handle)
            raise
        return Handle(target=plan.target, run=run, url=url, details={"job": job.name, "place": str(placement)})

    def status(self, handle: Handle) -> Status:
        # Query Vertex AI before reading the folder: a job that has ended by then writes nothing more.
        try:
            job: lifecycle.Job | None = self._newest(handle)
        except GoogleError as error:
            return read_status_inputs(folder_of(handle)).end or status_without_target(handle, str(error.problem.what))
        inputs = read_status_inputs(folder_of(handle))
        if inputs.end is not None and inputs.end.state in FINAL_STATES:
            return inputs.end
        if job is not None and job.live:
            return self._live_status(handle, job, inputs)
        return inputs.end or self._lost_status(handle, job, inputs)

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        """Yield the lines of the run folder; until the supervisor starts, those of Cloud Logging."""
        ended = self._end_check(handle) if follow else None
        if rank is None:
            yield from self._startup_logs(handle, ended)
        yield from tail(folder_of(handle), spool=None, ended=ended, rank=rank)

    def down(self, handle: Handle) -> Receipt:
        """Request a stop through the run folder, wait for the grace period, cancel the job, and list again."""
        receipt = lifecycle.take_down(self._client(), handle, lambda: self._jobs(handle), self.sleep)
        if not receipt.left:
            release_dead_lease(handle)
        return receipt

    def list_runs(self) -> list[Handle]:
        live = {(job.url, job.owner): job for job in lifecycle.live_jobs(self._client(), regions(self.options))}
        return [
            Handle(target=KIND, run=job.run, url=job.url, details=_job_details(job)) for _, job in sorted(live.items())
        ]

    def _client(self) -> Client:
        if not self._clients:
            if not self.options.project:
                raise BadInput("the target's entry names no project", where="targets", fix="project: YOUR-PROJECT")
            self._clients.append(Client(self.options.project))
        return self._clients[0]

    def _jobs(self, handle: Handle) -> list[lifecycle.Job]:
        """List the run's jobs by label in all regions, and the recorded one in case a label is lost."""
        found = lifecycle.jobs_of_run(self._client(), regions(self.options), handle.url)
        recorded_name = str(handle.details.get("job", ""))
        if recorded_name and recorded_name not in {job.name for job in found}:
            recorded = lifecycle.read_run_job(self._client(), recorded_name, handle.url)
            found = [recorded, *found] if recorded is not None else found
        return found

    def _newest(self, handle: Handle) -> lifecycle.Job | None:
        recorded_name = str(handle.details.get("job", ""))
        recorded = lifecycle.read_run_job(self._client(), recorded_name, handle.url)
        if recorded is not None and recorded.live:
            return recorded
        found = self._jobs(handle)
        return next((job for job in reversed(found) if job.live), found[-1] if found else None)

    def _cancel_quietly(self, handle: Handle) -> None:
        try:
            for job in self._jobs(handle):
                if job.live:
                    self._client().cancel(job.name)
        except HeadwayError:
            pass  # the launcher lists and reports what is left

    def _live_status(self, handle: Handle, job: lifecycle.Job, inputs: StatusInputs) -> Status:
        """Return the status of a run with a live job. A preempted run that Vertex AI restarts has not ended."""
        reason = f"{job} is {job.state_text}"
        if job.state in RUNNING_STATES and inputs.started and inputs.end is None:
            return Status(state=State.RUNNING, reason=reason)
        restart = next_start_clause(handle, started=inputs.started)
        return Status(state=State.PENDING, reason=reason + restart)

    def _lost_status(self, handle: Handle, job: lifecycle.Job | None, inputs: StatusInputs) -> Status:
        """Return the status of a run without a live job or an `ended` event."""
        recorded = "" if handle.details.get(ORIGIN) else str(handle.details.get("job", ""))
        if job is None and recorded and not inputs.started:  # Vertex AI keeps jobs long after their end
            return Status(state=State.UNKNOWN, reason=f"Vertex AI does not show its job {recorded}")
        if job is None:
            reason = "its job no longer exists in Vertex AI" if inputs.started else "was never submitted"
            return Status(state=State.LOST, reason=reason)
        reason = f"{job} {job.state_text}" + (f": {job.error}" if job.error else "")
        if inputs.started:
            return Status(state=State.LOST, reason=reason)
        if job.state in ("JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED"):
            return Status(state=State.STOPPED, reason=f"{reason} before its first attempt")
        last_line = client.last_output(self._client(), job.id)
        last_output = f"; last output: {last_line}" if last_line else ""
        link = lifecycle.console_link(job.name, self._client().project)
        return Status(
            state=State.FAILED, reason=f"{reason}, before the supervisor started{last_output} ({link})", exit_code=1
        )

    def _startup_logs(self, handle: Handle, ended: Callable[[], bool] | None) -> Iterator[LogLine]:
        """Yield what Cloud Logging has from before the first attempt of this submission."""
        if read_status_inputs(folder_of(handle)).started:
            return
        try:
            job = self._newest(handle)
        except GoogleError:
            return  # the run folder is read next
        if job is None:
            return
        reader = client.CloudLogReader(self._client(), job.id)
        if ended is None:
            yield from reader.read_new()
        else:

            def started() -> bool:
                return ended() or read_status_inputs(folder_of(handle)).started

            yield from client.follow(reader, started, sleep=self.sleep)

    def _end_check(self, handle: Handle) -> Callable[[], bool]:
        return end_check(handle, self.status, folder_poll_s=POLL_S, status_poll_s=QUERY_S)


def _job_details(job: lifecycle.Job) -> dict[str, str]:
    return {"job": job.name, "expires": job.expires, "owner": job.owner, "owner_name": job.owner_name}
