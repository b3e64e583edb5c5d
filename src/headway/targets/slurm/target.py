"""Slurm target: one batch job per run, one supervisor per node. Needs Slurm's commands and a shared folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headway.core.command import CommandError
from headway.core.errors import Problem, RunBusy
from headway.core.plan import RUN, Limits
from headway.core.types import ORIGIN, Handle, LogLine, Receipt, Request, State, Status, Target
from headway.rundir.lease import spent_s, with_remaining_budget
from headway.rundir.logs import tail
from headway.rundir.status import (
    FINAL_STATES,
    StatusInputs,
    end_check,
    folder_of,
    has_ended,
    local_dir,
    next_start_clause,
    output_problems,
    read_status_inputs,
    release_dead_lease,
    run_url,
    status_without_target,
)
from headway.spec.loading import undump
from headway.storage import join, local_path
from headway.targets.local import processes
from headway.targets.slurm import checks, client, lifecycle, sbatch
from headway.targets.slurm.client import COMPLETING, RUNNING_STATES, CommandRunner
from headway.targets.slurm.options import Options
from headway.targets.slurm.sbatch import KIND, SCRIPT

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job

DEFAULTS = Options()
POLL_S = 1.0  # poll interval of the run folder while following a log …
QUERY_S = 10.0  # … and of the controller, which all users share


@dataclass(frozen=True, slots=True)
class SlurmTarget(Target):
    options_class: ClassVar[type[Any]] = Options
    scheduler_env: ClassVar[bool] = True
    shared_workdir: ClassVar[Literal["no", "yes", "ready-image"]] = "yes"
    sees_local_paths: ClassVar[bool] = True  # the cluster's file system is shared
    options: Options = DEFAULTS
    run_command: CommandRunner = client.run  # the only access to a cluster

    def check(self, job: Job) -> list[Problem]:
        return [*checks.problems(job, self.options), *output_problems(job.outputs)]

    def online(self, plan: Plan) -> list[Problem]:
        """Find problems that only the cluster can report: called at launch and by `plan --online`."""
        return list(checks.online(undump(plan.job), self.options, self.run_command))

    def online_notes(self, job: Job) -> list[str]:
        return list(checks.online_notes(self.options, self.run_command))

    def notes(self, job: Job, ranks: int) -> list[str]:
        """Return remarks for the plan that do not stop the job."""
        return list(checks.notes(job, ranks, self.options))

    def limits(self, job: Job) -> Limits:
        """Return the durations that apply on a cluster. Slurm's own limit, per start, is the backstop of the budget."""
        hours = job.budget.hours
        budget_s = None if hours is None else hours * 3600
        limit = sbatch.time_s(budget_s, self.options)
        second = (
            "none but the partition's own"
            if limit is None
            else f"Slurm's --time={sbatch.format_time(limit)}, each start"
        )
        return Limits(budget_s=budget_s, max_wait_s=job.max_wait, grace_s=self.options.grace, second=second)

    def cpus(self, job: Job, ranks: int) -> int:
        """Return the CPUs per node that the ranks' threads share."""
        return job.resources.cpus or ranks

    def render(self, plan: Plan) -> list[Request]:
        """Return the batch script and the sbatch call, with references to secrets but never their values."""
        outputs = str(plan.job["outputs"])
        run_dir = str(local_dir(run_url(outputs, RUN), KIND))
        body = {
            "argv": ["sbatch", "--parsable", SCRIPT],
            "cwd": run_dir,
            "code": {"from": join(outputs, f"code/{plan.code.sha256}.tar.gz"), "to": f"{run_dir}/code"},
            "headway": {"from": join(outputs, f"code/{plan.code.wheel}"), "to": f"{run_dir}/headway"},
            "secrets": {name: str(secret["ref"]) for name, secret in plan.job.get("secrets", {}).items()},
        }
        return [Request(name=SCRIPT, body={"text": self._script(plan)}), Request(name="sbatch.json", body=body)]

    def submit(self, plan: Plan, run: str) -> Handle:
        """Stage code and secrets in the shared folder, then call sbatch once."""
        url = run_url(str(plan.job["outputs"]), run)
        run_dir = local_dir(url, KIND)
        with processes.start_lock(run_dir):
            live = [
                job
                for job in client.jobs_of(self.run_command, url, lifecycle.read_job_id(run_dir), run_dir=run_dir)
                if job.live
            ]
            if live:
                raise RunBusy(f"{run} is {live[0]}", fix=f"headway stop {run}")
            lifecycle.stage(plan, run_dir)
            # Slurm's limit starts anew with each submission, so set it from the rest of the budget.
            left = with_remaining_budget(plan, spent_s(folder_of(Handle(target=plan.target, run=run, url=url))))
            job_id = lifecycle.submit(plan, run, run_dir, self._script(left), self.options, self.run_command)
        details = {"dir": str(run_dir), "job": job_id, **self._cluster()}
        return Handle(target=plan.target, run=run, url=url, details=details)

    def _cluster(self) -> dict[str, str]:
        """Return the record of the cluster; empty if it does not say its name."""
        try:
            name = client.cluster_name(self.run_command)
        except CommandError:
            return {}
        return {"cluster": name} if name else {}

    def status(self, handle: Handle) -> Status:
        # Query Slurm before reading the folder: a job that is gone by then writes nothing more.
        starting_now = processes.is_starting(local_dir(handle.url, KIND))
        try:
            listed: list[client.Job] | None = self._jobs(handle)
        except CommandError as error:
            listed, slurm_error = None, error
        inputs = read_status_inputs(folder_of(handle))
        if listed is None:
            return inputs.end or status_without_target(handle, str(slurm_error.problem.what))
        live = next((job for job in listed if job.live), None)
        if live is not None:
            return _queued_status(handle, live, inputs)
        if inputs.end is not None:
            return inputs.end
        if starting_now:
            return Status(state=State.PENDING, reason="is being submitted")
        return self._lost_status(handle, inputs)

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        ended = self._end_check(handle) if follow else None
        return tail(folder_of(handle), spool=local_dir(handle.url, KIND) / "spool", ended=ended, rank=rank)

    def down(self, handle: Handle) -> Receipt:
        """Send SIGTERM, wait for the grace period, scancel, and list again. Idempotent."""
        run_dir = local_dir(handle.url, KIND)
        self._jobs(handle)  # raises if it was submitted to another cluster
        job_id, ended = self._job_id(handle), has_ended(handle)
        receipt = lifecycle.take_down(self.run_command, handle, job_id=job_id, run_dir=run_dir, ended=ended)
        if not receipt.left:
            lifecycle.clear_secrets(run_dir)
            release_dead_lease(handle)
            if has_ended(handle):
                _remove_run_dir(run_dir, handle)
        return receipt

    def list_runs(self) -> list[Handle]:
        live = {(job.url, job.owner): job for job in client.jobs(self.run_command) if job.live}
        return [
            Handle(target=KIND, run=job.run, url=job.url, details=_job_details(job)) for _, job in sorted(live.items())
        ]

    def _script(self, plan: Plan) -> str:
        return sbatch.sbatch_script(plan, self.options, self.options.python or sys.executable)

    def _job_id(self, handle: Handle) -> str:
        """Return the newest job's ID, preferring the file in `place_of`, which is newer than the launcher's record.

        Empty for a copied run folder, which has no job of its own.
        """
        if handle.details.get(ORIGIN):
            return ""
        return lifecycle.read_job_id(local_dir(handle.url, KIND)) or str(handle.details.get("job", ""))

    def _jobs(self, handle: Handle) -> list[client.Job]:
        found = client.jobs_of(self.run_command, handle.url, self._job_id(handle), run_dir=local_dir(handle.url, KIND))
        if not found and not handle.details.get(ORIGIN):
            client.require_cluster(self.run_command, str(handle.details.get("cluster", "")))
        return found

    def _lost_status(self, handle: Handle, inputs: StatusInputs) -> Status:
        """Return the status of a run without a live job or an `ended` event, from Slurm's records or the script's."""
        job_id, run_dir = self._job_id(handle), local_dir(handle.url, KIND)
        if not job_id:
            return Status(state=State.LOST, reason="was never submitted")
        end, code = client.job_end(self.run_command, job_id), lifecycle.recorded_exit_code(run_dir, job_id)
        what = f"Slurm job {job_id}: {end or 'no longer known to Slurm'}"
        last = lifecycle.last_line(run_dir, job_id)
        last_output = (
            f"; last output: {last}" if last else f"; it printed nothing: check that every node can read {run_dir}"
        )
        if not inputs.started and end is not None and end.state in ("CANCELLED", "DEADLINE", "PREEMPTED"):
            return Status(state=State.STOPPED, reason=f"{what} before its first attempt")
        if not inputs.started and (code or (end is not None and end.state in ("FAILED", "LAUNCH_FAILED"))):
            code = code or (end.exit_code if end else None)
            return Status(
                state=State.FAILED, reason=f"{what}, before the supervisor started{last_output}", exit_code=code
            )
        return Status(state=State.LOST, reason=what + (last_output if last else ""))

    def _end_check(self, handle: Handle) -> Callable[[], bool]:
        run_dir = local_dir(handle.url, KIND)
        return end_check(
            handle,
            self.status,
            folder_poll_s=POLL_S,
            status_poll_s=QUERY_S,
            hint=lambda: lifecycle.recorded_exit_code(run_dir, self._job_id(handle)) is not None,
        )


def _job_details(job: client.Job) -> dict[str, str]:
    return {"job": job.id, "expires": job.expires, "owner": job.owner, "owner_name": job.owner_name}


def _queued_status(handle: Handle, job: client.Job, inputs: StatusInputs) -> Status:
    """Return the status of a run with a job in the queue. A stopped run that was requeued has not ended."""
    if inputs.end is not None and inputs.end.state in FINAL_STATES:
        return inputs.end
    if job.state in RUNNING_STATES and inputs.started and inputs.end is None:
        return Status(state=State.RUNNING, reason=str(job))
    if job.state == COMPLETING:
        return Status(state=State.RUNNING if inputs.started else State.PENDING, reason=str(job))
    reason = f": {job.reason}" if job.reason else ""
    restart = next_start_clause(handle, started=inputs.started)
    return Status(state=State.PENDING, reason=f"{job}{reason}{restart}")


def _remove_run_dir(run_dir: Path, handle: Handle) -> None:
    """Remove what a resume recreates; keep logs and code.

    If the run folder is in a bucket, which has those already, remove all of `run_dir`.
    """
    end = read_status_inputs(folder_of(handle)).end
    shutil.rmtree(run_dir / "headway", ignore_errors=True)
    if end is not None and end.state in (State.FINISHED, State.BUDGET):
        shutil.rmtree(run_dir / "env", ignore_errors=True)  # large; minutes to recreate, so kept for a resume
    # The supervisor removes the script's files, and their list, once they are all in the bucket.
    unsaved = any(run_dir.glob("node-*/files")) or any(run_dir.glob("node-*/workdir.json"))
    if local_path(handle.url) is None and not unsaved:
        shutil.rmtree(run_dir, ignore_errors=True)
