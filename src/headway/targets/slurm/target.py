"""Slurm target: one batch job a run, one supervisor on each node. Needs Slurm's commands and a shared folder."""

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
from headway.rundir.accounting import remainder, spent_s
from headway.rundir.logs import tail
from headway.rundir.status import (
    FOR_GOOD,
    StatusInputs,
    StatusPoller,
    evidence,
    folder_of,
    free_the_lease,
    has_ended,
    next_start,
    over,
    place_of,
    run_url,
    unwritable,
)
from headway.storage import join, local_path
from headway.targets.local import spawn
from headway.targets.slurm import checks, client, lifecycle, sbatch
from headway.targets.slurm.client import ENDING, RUNNING, CommandError, CommandRunner, Job
from headway.targets.slurm.options import Options
from headway.targets.slurm.sbatch import KIND, SCRIPT

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job as Wanted

DEFAULTS = Options()
LOOK_S = 1.0  # between looks into the folder while a log is followed …
ASK_S = 10.0  # … and between questions to the controller, which serves everybody


@dataclass(frozen=True, slots=True)
class SlurmTarget:
    options: Options = DEFAULTS
    ask: CommandRunner = client.run  # the one seam to a cluster

    def check(self, job: Wanted) -> list[Problem]:
        return [*checks.problems(job, self.options), *unwritable(job.outputs)]

    def online(self, job: Wanted) -> list[Problem]:
        """What only the cluster can say: asked at launch, and by `plan --online`."""
        return list(checks.online(job, self.options, self.ask))

    def online_notes(self, job: Wanted) -> list[str]:
        return list(checks.online_notes(self.options, self.ask))

    def notes(self, job: Wanted, ranks: int) -> list[str]:
        """What does not stop a job here, but a reader of its plan should know."""
        return list(checks.notes(job, ranks, self.options))

    def limits(self, job: Wanted) -> Limits:
        """Durations as they hold on a cluster. Behind the budget stands Slurm's own limit, for each start."""
        hours = job.budget.hours
        budget_s = None if hours is None else hours * 3600
        limit = sbatch.time_s(budget_s, self.options)
        second = (
            "none but the partition's own" if limit is None else f"Slurm's --time={sbatch.clock(limit)}, each start"
        )
        return Limits(budget_s=budget_s, max_wait_s=job.max_wait, grace_s=self.options.grace, second=second)

    def cpus(self, job: Wanted, ranks: int) -> int:
        """On each node: what the ranks' threads have to share."""
        return job.resources.cpus or ranks

    def render(self, plan: Plan) -> list[Request]:
        """The job's script, and the call that submits it. Values of secrets are never in it, only where they lie."""
        outputs = str(plan.job["outputs"])
        place = str(place_of(run_url(outputs, RUN), KIND))
        body = {
            "argv": ["sbatch", "--parsable", SCRIPT],
            "cwd": place,
            "code": {"from": join(outputs, f"code/{plan.code.sha256}.tar.gz"), "to": f"{place}/code"},
            "headway": {"from": join(outputs, f"code/{plan.code.wheel}"), "to": f"{place}/headway"},
            "secrets": {name: str(secret["ref"]) for name, secret in plan.job.get("secrets", {}).items()},
        }
        return [Request(name=SCRIPT, body={"text": self._script(plan)}), Request(name="sbatch.json", body=body)]

    def submit(self, plan: Plan, run: str) -> Handle:
        """Lay code and secrets ready on the shared folder, then one sbatch."""
        url = run_url(str(plan.job["outputs"]), run)
        place = place_of(url, KIND)
        with spawn.exclusively(place):
            live = [job for job in client.jobs_of(self.ask, url, lifecycle.recorded(place), place=place) if job.live]
            if live:
                raise RunBusy(f"{run} is {live[0]}", fix=f"headway stop {run}")
            lifecycle.lay_ready(plan, place)
            # Slurm's own limit counts each start anew: it is given what is left of the budget.
            left = remainder(plan, spent_s(folder_of(Handle(target=plan.target, run=run, url=url))))
            number = lifecycle.submit(plan, run, place, self._script(left), self.options, self.ask)
        return Handle(target=plan.target, run=run, url=url, details={"dir": str(place), "job": number})

    def status(self, handle: Handle) -> Status:
        # Looked at before the folder: a job that is gone has written all it will ever write.
        starting_now = spawn.starting(place_of(handle.url, KIND))
        try:
            listed: list[Job] | None = self._jobs(handle)
        except CommandError as error:
            listed, trouble = None, error
        seen = evidence(folder_of(handle))
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
        return tail(folder_of(handle), spool=place_of(handle.url, KIND) / "spool", over=over, rank=rank)

    def down(self, handle: Handle) -> Receipt:
        """SIGTERM and the plan's grace period, then scancel, and a second look. What is gone already is success."""
        place = place_of(handle.url, KIND)
        number, ended = self._number(handle), has_ended(handle)
        receipt = lifecycle.take_down(self.ask, handle, known=number, place=place, ended=ended)
        if not receipt.left:
            lifecycle.clear_secrets(place)
            free_the_lease(handle)
            if has_ended(handle):
                _clear(place, handle)
        return receipt

    def found(self) -> list[Handle]:
        live = {(job.url, job.owner): job for job in client.jobs(self.ask) if job.live}
        return [Handle(target=KIND, run=job.run, url=job.url, details=_label(job)) for _, job in sorted(live.items())]

    def _script(self, plan: Plan) -> str:
        return sbatch.sbatch_script(plan, self.options, self.options.python or sys.executable)

    def _number(self, handle: Handle) -> str:
        """The newest job's: what was written beside it is younger than what the launcher has kept. A copy has none."""
        if handle.details.get(ORIGIN):
            return ""
        return lifecycle.recorded(place_of(handle.url, KIND)) or str(handle.details.get("job", ""))

    def _jobs(self, handle: Handle) -> list[Job]:
        return client.jobs_of(self.ask, handle.url, self._number(handle), place=place_of(handle.url, KIND))

    def _without_a_farewell(self, handle: Handle, seen: StatusInputs) -> Status:
        """No job lives, and the run has not said how it ended: Slurm's word, the script's, or none."""
        number, place = self._number(handle), place_of(handle.url, KIND)
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
        place = place_of(handle.url, KIND)
        return over(
            handle,
            self.status,
            look_s=LOOK_S,
            ask_s=ASK_S,
            hint=lambda: lifecycle.said_at_exit(place, self._number(handle)) is not None,
        )


def _label(job: Job) -> dict[str, str]:
    return {"job": job.id, "expires": job.expires, "owner": job.owner, "owner_name": job.owner_name}


def _standing(handle: Handle, job: Job, seen: StatusInputs) -> Status:
    """Of a run whose job is in the queue. One that was stopped and waits again has not ended."""
    if seen.end is not None and seen.end.state in FOR_GOOD:
        return seen.end
    if job.state in RUNNING and seen.started and seen.end is None:
        return Status(state=State.RUNNING, reason=str(job))
    if job.state == ENDING:
        return Status(state=State.RUNNING if seen.started else State.PENDING, reason=str(job))
    why = f": {job.why}" if job.why else ""
    again = next_start(handle, started=seen.started)
    return Status(state=State.PENDING, reason=f"{job}{why}{again}")


def _unasked(handle: Handle, trouble: CommandError) -> Status:
    """Slurm does not answer: what the folder says, and that nobody could be asked."""
    status = StatusPoller(folder_of(handle)).status()
    reason = "; ".join(filter(None, (status.reason, str(trouble.problem.what))))
    return Status(state=status.state, reason=reason, exit_code=status.exit_code)


def _clear(place: Path, handle: Handle) -> None:
    """Remove what a resume makes again. A run's own folder keeps its logs and its code; a bucket has them already."""
    end = evidence(folder_of(handle)).end
    shutil.rmtree(place / "headway", ignore_errors=True)
    if end is not None and end.state in (State.FINISHED, State.BUDGET):
        shutil.rmtree(place / "env", ignore_errors=True)  # may be large, and takes minutes to make again
    # The supervisor removes what a script wrote, and its list of it, once all is in the bucket.
    unsaved = any(place.glob("node-*/files")) or any(place.glob("node-*/workdir.json"))
    if local_path(handle.url) is None and not unsaved:
        shutil.rmtree(place, ignore_errors=True)
