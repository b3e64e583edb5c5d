"""The local target: the supervisor runs in its own session on this machine and is found by label. Nothing is billed."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated

from headway import plugins
from headway.core.errors import Problem, RunBusy, TargetError, install_command
from headway.core.plan import RUN
from headway.core.types import ORIGIN, OWNER, OWNER_NAME, RUN_LABEL, Handle, LogLine, Receipt, Request, State, Status
from headway.rundir import submission
from headway.rundir.layout import RunFolder
from headway.rundir.logs import tail
from headway.rundir.status import (
    END_RECORD_S,
    PROCESS_EXIT_S,
    StatusInputs,
    StatusPoller,
    folder_of,
    grace_s,
    has_ended,
    local_dir,
    output_problems,
    read_status_inputs,
    run_url,
)
from headway.storage import join, local_path, open_store
from headway.targets.local import processes
from headway.targets.local.processes import take_down

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job

KIND = "local"
TRAINS_WITH = ("numpy", "safetensors", "torch")
LOOK_S = 1.0  # between polls of the folder while the supervisor lives


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    python: str | None = None  # the interpreter that trains; by default the one that runs headway
    price: Annotated[float, ">= 0"] | None = None  # USD an hour, where this machine is a rented one


@dataclass(frozen=True, slots=True)
class LocalTarget:
    options: Options = Options()

    def check(self, job: Job) -> list[Problem]:
        silent = [] if self.options.python else plugins.problems(job)
        return [*_one_machine(job), *self._interpreter(job), *silent, *output_problems(job.outputs)]

    def notes(self, job: Job, ranks: int) -> list[str]:
        """List what does not prevent the job from running here but belongs in its plan."""
        cores = len(os.sched_getaffinity(0))
        notes = [f"{ranks} ranks share {cores} cores"] if ranks > cores else []
        if job.resources.accelerator and not Path("/dev/nvidiactl").exists():
            notes.append(f"no {job.resources.accelerator.kind} is here: this trains on the CPU")
        return notes

    def render(self, plan: Plan) -> list[Request]:
        """Render one request: the supervisor's process. Secrets appear as references only, never as values."""
        outputs = str(plan.job["outputs"])
        url = run_url(outputs, RUN)
        place = str(local_dir(url, KIND))
        body = {
            "argv": [self._python(), "-m", processes.SUPERVISOR, "--run", url],
            "code": {"from": join(outputs, f"code/{plan.code.sha256}.tar.gz"), "to": f"{place}/code"},
            "cwd": place,
            "env": {
                processes.RUN: RUN,
                processes.URL: url,
                processes.TARGET: KIND,
                processes.OWNER: OWNER,
                processes.OWNER_NAME: OWNER_NAME,
                "HEADWAY_CODE_DIR": f"{place}/code",
                "HEADWAY_SPOOL": f"{place}/spool",
            },
            "labels": {RUN_LABEL: RUN},
            "limits": asdict(plan.limits),
            "ranks": plan.processes,
            "secrets": {name: secret["ref"] for name, secret in plan.job.get("secrets", {}).items()},
        }
        return [Request(name="supervisor.json", body=body)]

    def submit(self, plan: Plan, run: str) -> Handle:
        """Unpack the code and start the supervisor. It outlives this process and its terminal."""
        body = processes.owned(processes.named(self.render(plan)[0].body, run))
        url, place = run_url(str(plan.job["outputs"]), run), Path(body["cwd"])
        with processes.exclusively(place):
            if self._leader(url) is not None:
                raise RunBusy(f"{run} is running on this machine", fix=f"headway stop {run}")
            leader = processes.start(body, code_sha256=plan.code.sha256)
        details = {"dir": str(place), "host": socket.gethostname(), "pid": leader.pid}
        return Handle(target=plan.target, run=run, url=url, details=details)

    def status(self, handle: Handle) -> Status:
        return self._status(handle, StatusPoller(folder_of(handle)))

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        place = local_dir(handle.url, KIND)
        over = self._over(handle) if follow else None
        return tail(folder_of(handle), spool=place / "spool", ended=over, rank=rank)

    def down(self, handle: Handle) -> Receipt:
        """Send SIGTERM, wait for the plan's grace period, send SIGKILL and scan again.

        Processes already gone count as removed.
        """
        elsewhere = _elsewhere(handle)
        if elsewhere:
            raise TargetError(
                f"{handle.run} runs on {elsewhere}, and its processes cannot be seen from here",
                fix=f"on {elsewhere}: headway down {handle.url}",
            )
        place, ended = local_dir(handle.url, KIND), has_ended(handle)
        leader = _recorded(handle.url)
        if leader is not None and not leader.alive and handle.details.get(ORIGIN):
            leader = None  # it belongs to the original of this copied folder
        # After the `ended` event the supervisor is exiting by itself, and there is no checkpoint to wait for.
        receipt = take_down(
            handle.run,
            lambda: processes.processes_of(handle.url, target=KIND, leader=leader),
            known=[leader] if leader else [],
            ask_after_s=PROCESS_EXIT_S if ended else 0.0,
            grace_s=PROCESS_EXIT_S if ended else grace_s(handle) + END_RECORD_S,
        )
        if not receipt.left and (ended or has_ended(handle)):
            processes.clear(place, inside_run=local_path(handle.url) is not None)
        return receipt

    def found(self) -> list[Handle]:
        return [
            Handle(target=KIND, run=label[processes.RUN], url=label[processes.URL], details=_owner(label))
            for label in processes.labels(target=KIND)
        ]

    def _python(self) -> str:
        return self.options.python or sys.executable

    def _interpreter(self, job: Job) -> list[Problem]:
        chosen = self.options.python
        if chosen is not None and which(chosen) is None:
            return [Problem(what=f"no interpreter at {chosen}", where="targets", fix="mend `python`, or leave it out")]
        if job.recipe is None or chosen is not None:
            return []
        lacking = [name for name in TRAINS_WITH if find_spec(name) is None]
        what = f"recipe {job.recipe} needs {', '.join(lacking)}, not installed beside this Headway"
        return [Problem(what=what, fix=install_command("train"))] if lacking else []

    def _leader(self, url: str) -> processes.Process | None:
        """Return the live supervisor by its pid file, or by label if the starting process died before writing one."""
        recorded = _recorded(url)
        if recorded is not None and recorded.alive:
            return recorded
        found = processes.processes_of(url, target=KIND)
        return next((process for process in found if process.runs(processes.SUPERVISOR)), None)

    def _status(self, handle: Handle, watch: StatusPoller) -> Status:
        if _elsewhere(handle):
            return watch.status()
        # Check the process before the folder: a supervisor that is gone has written everything by then.
        starting, leader = processes.starting(local_dir(handle.url, KIND)), self._leader(handle.url)
        seen = read_status_inputs(folder_of(handle))
        if seen.end is not None:
            return seen.end
        if leader is not None or starting:
            reason = f"process {leader.pid}" if leader else "is being started"
            return Status(state=State.RUNNING if seen.started else State.PENDING, reason=reason)
        return Status(state=State.LOST, reason=_why_lost(seen, local_dir(handle.url, KIND)))

    def _over(self, handle: Handle) -> Callable[[], bool]:
        """Return a function that tells whether the run has ended.

        It reads the folder every LOOK_S seconds, and as soon as the supervisor is gone.
        """
        watch, looked = StatusPoller(folder_of(handle)), -LOOK_S

        def over() -> bool:
            nonlocal looked
            leader = _recorded(handle.url)
            if time.monotonic() - looked < LOOK_S and leader is not None and leader.alive:
                return False
            looked = time.monotonic()
            return self._status(handle, watch).state.ended

        return over


def _one_machine(job: Job) -> list[Problem]:
    if job.resources.nodes == 1:
        return []
    what = f"{job.resources.nodes} nodes were asked for, and the local target is one machine"
    return [Problem(what=what, where="resources.nodes", fix="nodes: 1 with more processes, or --on another target")]


def _recorded(url: str) -> processes.Process | None:
    """Return the supervisor by its pid file, alive or not.

    None if that process runs another folder, of which this one is a copy.
    """
    found = processes.recorded(local_dir(url, KIND))
    if found is None or not found.alive:
        return found
    ours = processes.carries(found.pid, url=url, target=KIND)
    if ours is None:  # another user's: its label is not readable
        ours = not submission.origin_url(RunFolder(open_store(url)))
    return found if ours else None


def _owner(label: Mapping[str, str]) -> dict[str, str]:
    return {"owner": label.get(processes.OWNER, ""), "owner_name": label.get(processes.OWNER_NAME, "")}


def _elsewhere(handle: Handle) -> str:
    """Return the other host that runs this, if the folder is shared between machines; empty for this one."""
    host = processes.recorded_host(local_dir(handle.url, KIND)) or str(handle.details.get("host", ""))
    return "" if host == socket.gethostname() else host


def _why_lost(seen: StatusInputs, place: Path) -> str:
    last = processes.last_line(place)
    said = f"; it last said: {last}" if last else ""
    if not seen.started:
        return f"the supervisor ended before its first attempt{said}" if last else "was never started"
    return f"killed, or crashed: the supervisor is gone without a last word{said}"
