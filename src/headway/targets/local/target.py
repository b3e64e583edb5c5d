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
TRAINING_PACKAGES = ("numpy", "safetensors", "torch")
POLL_S = 1.0  # between polls of the folder while the supervisor lives


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    python: str | None = None  # the interpreter that trains; by default the one that runs headway
    price: Annotated[float, ">= 0"] | None = None  # USD an hour, where this machine is a rented one


@dataclass(frozen=True, slots=True)
class LocalTarget:
    options: Options = Options()

    def check(self, job: Job) -> list[Problem]:
        plugin_problems = [] if self.options.python else plugins.problems(job)
        return [*_node_problems(job), *self._interpreter_problems(job), *plugin_problems, *output_problems(job.outputs)]

    def notes(self, job: Job, ranks: int) -> list[str]:
        """List what does not prevent the job from running here but belongs in its plan."""
        cores = len(os.sched_getaffinity(0))
        notes = [f"{ranks} ranks share {cores} cores"] if ranks > cores else []
        if job.resources.accelerator and not Path("/dev/nvidiactl").exists():
            notes.append(f"no {job.resources.accelerator.kind} found on this machine: training on the CPU")
        return notes

    def render(self, plan: Plan) -> list[Request]:
        """Render one request: the supervisor's process. Secrets appear as references only, never as values."""
        outputs = str(plan.job["outputs"])
        url = run_url(outputs, RUN)
        run_dir = str(local_dir(url, KIND))
        body = {
            "argv": [self._python(), "-m", processes.SUPERVISOR, "--run", url],
            "code": {"from": join(outputs, f"code/{plan.code.sha256}.tar.gz"), "to": f"{run_dir}/code"},
            "cwd": run_dir,
            "env": {
                processes.RUN_VARIABLE: RUN,
                processes.URL_VARIABLE: url,
                processes.TARGET_VARIABLE: KIND,
                processes.OWNER_VARIABLE: OWNER,
                processes.OWNER_NAME_VARIABLE: OWNER_NAME,
                "HEADWAY_CODE_DIR": f"{run_dir}/code",
                "HEADWAY_SPOOL": f"{run_dir}/spool",
            },
            "labels": {RUN_LABEL: RUN},
            "limits": asdict(plan.limits),
            "ranks": plan.processes,
            "secrets": {name: secret["ref"] for name, secret in plan.job.get("secrets", {}).items()},
        }
        return [Request(name="supervisor.json", body=body)]

    def submit(self, plan: Plan, run: str) -> Handle:
        """Unpack the code and start the supervisor. It outlives this process and its terminal."""
        body = processes.add_owner(processes.fill_run_name(self.render(plan)[0].body, run))
        url, run_dir = run_url(str(plan.job["outputs"]), run), Path(body["cwd"])
        with processes.start_lock(run_dir):
            if self._supervisor(url) is not None:
                raise RunBusy(f"{run} is running on this machine", fix=f"headway stop {run}")
            leader = processes.start(body, code_sha256=plan.code.sha256)
        details = {"dir": str(run_dir), "host": socket.gethostname(), "pid": leader.pid}
        return Handle(target=plan.target, run=run, url=url, details=details)

    def status(self, handle: Handle) -> Status:
        return self._status(handle, StatusPoller(folder_of(handle)))

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        run_dir = local_dir(handle.url, KIND)
        ended = self._end_check(handle) if follow else None
        return tail(folder_of(handle), spool=run_dir / "spool", ended=ended, rank=rank)

    def down(self, handle: Handle) -> Receipt:
        """Send SIGTERM, wait for the plan's grace period, send SIGKILL and scan again.

        Processes already gone count as removed.
        """
        other_host = _other_host(handle)
        if other_host:
            raise TargetError(
                f"{handle.run} runs on {other_host}, and its processes cannot be seen from here",
                fix=f"on {other_host}: headway down {handle.url}",
            )
        run_dir, ended = local_dir(handle.url, KIND), has_ended(handle)
        leader = _recorded_supervisor(handle.url)
        if leader is not None and not leader.alive and handle.details.get(ORIGIN):
            leader = None  # it belongs to the original of this copied folder
        # After the `ended` event the supervisor is exiting by itself, and there is no checkpoint to wait for.
        receipt = take_down(
            handle.run,
            lambda: processes.processes_of(handle.url, target=KIND, leader=leader),
            known=[leader] if leader else [],
            signal_after_s=PROCESS_EXIT_S if ended else 0.0,
            grace_s=PROCESS_EXIT_S if ended else grace_s(handle) + END_RECORD_S,
        )
        if not receipt.left and (ended or has_ended(handle)):
            processes.remove_run_dir(run_dir, inside_run=local_path(handle.url) is not None)
        return receipt

    def found(self) -> list[Handle]:
        return [
            Handle(
                target=KIND,
                run=label[processes.RUN_VARIABLE],
                url=label[processes.URL_VARIABLE],
                details=_owner_details(label),
            )
            for label in processes.labels(target=KIND)
        ]

    def _python(self) -> str:
        return self.options.python or sys.executable

    def _interpreter_problems(self, job: Job) -> list[Problem]:
        python = self.options.python
        if python is not None and which(python) is None:
            return [Problem(what=f"no interpreter at {python}", where="targets", fix="fix `python`, or remove it")]
        if job.recipe is None or python is not None:
            return []
        missing = [name for name in TRAINING_PACKAGES if find_spec(name) is None]
        what = f"recipe {job.recipe} needs {', '.join(missing)}, not installed beside this Headway"
        return [Problem(what=what, fix=install_command("train"))] if missing else []

    def _supervisor(self, url: str) -> processes.Process | None:
        """Return the live supervisor by its pid file, or by label if the starting process died before writing one."""
        recorded = _recorded_supervisor(url)
        if recorded is not None and recorded.alive:
            return recorded
        live = processes.processes_of(url, target=KIND)
        return next((process for process in live if process.runs(processes.SUPERVISOR)), None)

    def _status(self, handle: Handle, poller: StatusPoller) -> Status:
        if _other_host(handle):
            return poller.status()
        # Check the process before the folder: a supervisor that is gone has written everything by then.
        starting, leader = processes.is_starting(local_dir(handle.url, KIND)), self._supervisor(handle.url)
        inputs = read_status_inputs(folder_of(handle))
        if inputs.end is not None:
            return inputs.end
        if leader is not None or starting:
            reason = f"process {leader.pid}" if leader else "is being started"
            return Status(state=State.RUNNING if inputs.started else State.PENDING, reason=reason)
        return Status(state=State.LOST, reason=_why_lost(inputs, local_dir(handle.url, KIND)))

    def _end_check(self, handle: Handle) -> Callable[[], bool]:
        """Return a function that tells whether the run has ended.

        It reads the folder at short intervals, and as soon as the supervisor is gone.
        """
        poller, polled_at = StatusPoller(folder_of(handle)), -POLL_S

        def has_ended_now() -> bool:
            nonlocal polled_at
            leader = _recorded_supervisor(handle.url)
            if time.monotonic() - polled_at < POLL_S and leader is not None and leader.alive:
                return False
            polled_at = time.monotonic()
            return self._status(handle, poller).state.ended

        return has_ended_now


def _node_problems(job: Job) -> list[Problem]:
    if job.resources.nodes == 1:
        return []
    what = f"{job.resources.nodes} nodes were asked for, and the local target is one machine"
    return [Problem(what=what, where="resources.nodes", fix="nodes: 1 with more processes, or --on another target")]


def _recorded_supervisor(url: str) -> processes.Process | None:
    """Return the supervisor by its pid file, alive or not.

    None if that process runs another folder, of which this one is a copy.
    """
    supervisor = processes.read_supervisor(local_dir(url, KIND))
    if supervisor is None or not supervisor.alive:
        return supervisor
    same_run = processes.has_label(supervisor.pid, url=url, target=KIND)
    if same_run is None:  # another user's: its label is not readable
        same_run = not submission.origin_url(RunFolder(open_store(url)))
    return supervisor if same_run else None


def _owner_details(label: Mapping[str, str]) -> dict[str, str]:
    return {
        "owner": label.get(processes.OWNER_VARIABLE, ""),
        "owner_name": label.get(processes.OWNER_NAME_VARIABLE, ""),
    }


def _other_host(handle: Handle) -> str:
    """Return the other host that runs this, if the folder is shared between machines; empty for this one."""
    host = processes.supervisor_host(local_dir(handle.url, KIND)) or str(handle.details.get("host", ""))
    return "" if host == socket.gethostname() else host


def _why_lost(inputs: StatusInputs, run_dir: Path) -> str:
    last = processes.last_line(run_dir)
    last_output = f"; last output: {last}" if last else ""
    if not inputs.started:
        return f"the supervisor ended before its first attempt{last_output}" if last else "was never started"
    return f"killed or crashed: the supervisor exited without recording a status{last_output}"
