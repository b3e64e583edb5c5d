"""Slurm target: one batch job per run, one supervisor per node. Needs Slurm's commands and a shared folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.errors import Problem, RunBusy
from headway.core.plan import RUN, Limits
from headway.core.types import ORIGIN, Handle, LogLine, Receipt, Request, State, Status
from headway.rundir.lease import spent_s, with_remaining_budget
from headway.rundir.logs import tail
from headway.rundir.status import (
    FINAL_STATES,
    StatusInputs,
    StatusPoller,
    end_check,
    folder_of,
    has_ended,
    local_dir,
    next_start_clause,
    output_problems,
    read_status_inputs,
    release_dead_lease,
    run_url,
)
from headway.storage import join, local_path
from headway.targets.local import processes
from headway.targets.slurm import checks, client, lifecycle, sbatch
from headway.targets.slurm.client import ENDING, RUNNING, CommandError, CommandRunner, Job
from headway.targets.slurm.options import Options
from headway.targets.slurm.sbatch import KIND, SCRIPT

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job as Wanted

DEFAULTS = Options()
LOOK_S = 1.0  # poll interval of the run folder while following a log …
ASK_S = 10.0  # … and of the controller, which all users share


@dataclass(frozen=True, slots=True)
class SlurmTarget:
    options: Options = DEFAULTS
    ask: CommandRunner = client.run  # the only access to a cluster

    def check(self, job: Wanted) -> list[Problem]:
        return [*checks.problems(job, self.options), *output_problems(job.outputs)]

    def online(self, job: Wanted) -> list[Problem]:
        """Find problems that only the cluster can report: called at launch and by `plan --online`."""
        return list(checks.online(job, self.options, self.ask))

    def online_notes(self, job: Wanted) -> list[str]:
        return list(checks.online_notes(self.options, self.ask))

    def notes(self, job: Wanted, ranks: int) -> list[str]:
        """Return remarks for the plan that do not stop the job."""
        return list(checks.notes(job, ranks, self.options))

    def limits(self, job: Wanted) -> Limits:
        """Return the durations that apply on a cluster. Slurm's own limit, per start, is the backstop of the budget."""
        hours = job.budget.hours
        budget_s = None if hours is None else hours * 3600
        limit = sbatch.time_s(budget_s, self.options)
        second = (
            "none but the partition's own" if limit is None else f"Slurm's --time={sbatch.clock(limit)}, each start"
        )
        return Limits(budget_s=budget_s, max_wait_s=job.max_wait, grace_s=self.options.grace, second=second)

    def cpus(self, job: Wanted, ranks: int) -> int:
        """Return the CPUs per node that the ranks' threads share."""
        return job.resources.cpus or ranks

    def render(self, plan: Plan) -> list[Request]:
        """Return the batch script and the sbatch call, with references to secrets but never their values."""
        outputs = str(plan.job["outputs"])
        place = str(local_dir(run_url(outputs, RUN), KIND))
        body = {
            "argv": ["sbatch", "--parsable", SCRIPT],
            "cwd": place,
            "code": {"from": join(outputs, f"code/{plan.code.sha256}.tar.gz"), "to": f"{place}/code"},
            "headway": {"from": join(outputs, f"code/{plan.code.wheel}"), "to": f"{place}/headway"},
            "secrets": {name: str(secret["ref"]) for name, secret in plan.job.get("secrets", {}).items()},
        }
        return [Request(name=SCRIPT, body={"text": self._script(plan)}), Request(name="sbatch.json", body=body)]

    def submit(self, plan: Plan, run: str) -> Handle:
        """Stage code and secrets in the shared folder, then call sbatch once."""
        url = run_url(str(plan.job["outputs"]), run)
        place = local_dir(url, KIND)
        with processes.exclusively(place):
            live = [job for job in client.jobs_of(self.ask, url, lifecycle.recorded(place), place=place) if job.live]
            if live:
                raise RunBusy(f"{run} is {live[0]}", fix=f"headway stop {run}")
            lifecycle.lay_ready(plan, place)
            # Slurm's limit starts anew with each submission, so set it from the rest of the budget.
            left = with_remaining_budget(plan, spent_s(folder_of(Handle(target=plan.target, run=run, url=url))))
            number = lifecycle.submit(plan, run, place, self._script(left), self.options, self.ask)
        return Handle(target=plan.target, run=run, url=url, details={"dir": str(place), "job": number})

    def status(self, handle: Handle) -> Status:
        # Query Slurm before reading the folder: a job that is gone by then writes nothing more.
        starting_now = processes.starting(local_dir(handle.url, KIND))
        try:
            listed: list[Job] | None = self._jobs(handle)
        except CommandError as error:
            listed, trouble = None, error
        seen = read_status_inputs(folder_of(handle))
        if listed is None:
            return seen.end or _unasked(handle, trouble)
        live = next((job for job in listed if job.live), None)
        if live is not None:
            return _standing(handle, live, seen)
        if seen.end is not None:
            return seen.end
        if starting_now:
            return Status(state=State.PENDING, reason="is being submitted")
        return self._without_a_farewell(handle, seen)

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        over = self._over(handle) if follow else None
        return tail(folder_of(handle), spool=local_dir(handle.url, KIND) / "spool", ended=over, rank=rank)

    def down(self, handle: Handle) -> Receipt:
        """Send SIGTERM, wait for the grace period, scancel, and list again. Idempotent."""
        place = local_dir(handle.url, KIND)
        number, ended = self._number(handle), has_ended(handle)
        receipt = lifecycle.take_down(self.ask, handle, known=number, place=place, ended=ended)
        if not receipt.left:
            lifecycle.clear_secrets(place)
            release_dead_lease(handle)
            if has_ended(handle):
                _clear(place, handle)
        return receipt

    def found(self) -> list[Handle]:
        live = {(job.url, job.owner): job for job in client.jobs(self.ask) if job.live}
        return [Handle(target=KIND, run=job.run, url=job.url, details=_label(job)) for _, job in sorted(live.items())]

    def _script(self, plan: Plan) -> str:
        return sbatch.sbatch_script(plan, self.options, self.options.python or sys.executable)

    def _number(self, handle: Handle) -> str:
        """Return the newest job's ID, preferring the file in `place_of`, which is newer than the launcher's record.

        Empty for a copied run folder, which has no job of its own.
        """
        if handle.details.get(ORIGIN):
            return ""
        return lifecycle.recorded(local_dir(handle.url, KIND)) or str(handle.details.get("job", ""))

    def _jobs(self, handle: Handle) -> list[Job]:
        return client.jobs_of(self.ask, handle.url, self._number(handle), place=local_dir(handle.url, KIND))

    def _without_a_farewell(self, handle: Handle, seen: StatusInputs) -> Status:
        """Return the status of a run without a live job or an `ended` event, from Slurm's records or the script's."""
        number, place = self._number(handle), local_dir(handle.url, KIND)
        if not number:
            return Status(state=State.LOST, reason="was never submitted")
        ended, code = client.ending(self.ask, number), lifecycle.said_at_exit(place, number)
        what = f"Slurm job {number}: {ended or 'gone, and Slurm has forgotten it'}"
        last = lifecycle.last_line(place, number)
        said = f"; it last said: {last}" if last else f"; it printed nothing: does every node see {place}?"
        if not seen.started and ended is not None and ended.state in ("CANCELLED", "DEADLINE", "PREEMPTED"):
            return Status(state=State.STOPPED, reason=f"{what} before its first attempt")
        if not seen.started and (code or (ended is not None and ended.state in ("FAILED", "LAUNCH_FAILED"))):
            code = code or (ended.exit_code if ended else None)
            return Status(state=State.FAILED, reason=f"{what}, before the supervisor started{said}", exit_code=code)
        return Status(state=State.LOST, reason=what + (said if last else ""))

    def _over(self, handle: Handle) -> Callable[[], bool]:
        place = local_dir(handle.url, KIND)
        return end_check(
            handle,
            self.status,
            folder_poll_s=LOOK_S,
            status_poll_s=ASK_S,
            hint=lambda: lifecycle.said_at_exit(place, self._number(handle)) is not None,
        )


def _label(job: Job) -> dict[str, str]:
    return {"job": job.id, "expires": job.expires, "owner": job.owner, "owner_name": job.owner_name}


def _standing(handle: Handle, job: Job, seen: StatusInputs) -> Status:
    """Return the status of a run with a job in the queue. A stopped run that was requeued has not ended."""
    if seen.end is not None and seen.end.state in FINAL_STATES:
        return seen.end
    if job.state in RUNNING and seen.started and seen.end is None:
        return Status(state=State.RUNNING, reason=str(job))
    if job.state == ENDING:
        return Status(state=State.RUNNING if seen.started else State.PENDING, reason=str(job))
    why = f": {job.why}" if job.why else ""
    again = next_start_clause(handle, started=seen.started)
    return Status(state=State.PENDING, reason=f"{job}{why}{again}")


def _unasked(handle: Handle, trouble: CommandError) -> Status:
    """Return the status from the run folder alone, with the reason why Slurm could not be queried."""
    status = StatusPoller(folder_of(handle)).status()
    reason = "; ".join(filter(None, (status.reason, str(trouble.problem.what))))
    return Status(state=status.state, reason=reason, exit_code=status.exit_code)


def _clear(place: Path, handle: Handle) -> None:
    """Remove what a resume recreates; keep logs and code.

    If the run folder is in a bucket, which has those already, remove all of `place`.
    """
    end = read_status_inputs(folder_of(handle)).end
    shutil.rmtree(place / "headway", ignore_errors=True)
    if end is not None and end.state in (State.FINISHED, State.BUDGET):
        shutil.rmtree(place / "env", ignore_errors=True)  # large; minutes to recreate, so kept for a resume
    # The supervisor removes the script's files, and their list, once they are all in the bucket.
    unsaved = any(place.glob("node-*/files")) or any(place.glob("node-*/workdir.json"))
    if local_path(handle.url) is None and not unsaved:
        shutil.rmtree(place, ignore_errors=True)
