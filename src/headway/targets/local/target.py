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
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from headway import plugins
from headway.core.errors import Problem, RunBusy, install_command
from headway.core.plan import RUN
from headway.core.types import (
    ORIGIN,
    OWNER,
    OWNER_NAME,
    RUN_LABEL,
    ExecCommand,
    Handle,
    LogLine,
    Receipt,
    Request,
    State,
    Status,
    Target,
)
from headway.packaging.dependencies import NOTEBOOK_PACKAGES
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
from headway.targets.checks import (
    dependency_notes,
    read_only_notes,
    require_same_host,
    unused_image_notes,
    unused_resource_notes,
)
from headway.targets.local import processes, workdir
from headway.targets.local.processes import take_down

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job

KIND = "local"
TRAINING_PACKAGES = ("numpy", "safetensors", "torch")
IN_PLACE = "HEADWAY_IN_PLACE"
POLL_S = 1.0  # between polls of the folder while the supervisor lives


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    python: str | None = None  # the interpreter that trains; by default the one that runs headway
    price: Annotated[float, ">= 0"] | None = None  # USD per hour, if this machine is rented


@dataclass(frozen=True, slots=True)
class LocalTarget(Target):
    options_class: ClassVar[type[Any]] = Options
    on_this_machine: ClassVar[bool] = True
    own_python: ClassVar[bool] = True
    options: Options = Options()
    sees_local_paths: ClassVar[bool] = True
    runs_in_place: ClassVar[bool] = True
    kind: ClassVar[str] = KIND  # a target derived from this one has its own: by it its processes are found

    def check(self, job: Job) -> list[Problem]:
        plugin_problems = [] if self.options.python else plugins.tracker_problems(job)
        return [
            *_node_problems(job),
            *_unsupported(job),
            *self._interpreter_problems(job),
            *plugin_problems,
            *output_problems(job.outputs),
        ]

    def notes(self, job: Job, ranks: int) -> list[str]:
        """List what does not prevent the job from running here but belongs in its plan."""
        cores = len(os.sched_getaffinity(0))
        notes = [f"{ranks} ranks share {cores} cores"] if ranks > cores else []
        if job.resources.accelerator and not Path("/dev/nvidiactl").exists():
            notes.append(f"no {job.resources.accelerator.kind} found on this machine: training on the CPU")
        notes += unused_resource_notes(job, "this machine is as it is", more=("cpus", "memory"))
        notes += read_only_notes(job)
        notes += unused_image_notes(job, "on this machine the program runs without one; --on docker uses it")
        return [*notes, *dependency_notes(job, self._dependency_hint(job))]

    def _dependency_hint(self, job: Job) -> str:
        what = f"-r {job.requirements}" if job.requirements else "."
        return f"nothing is installed on this machine ({self._python()} -m pip install {what})"

    def render(self, plan: Plan) -> list[Request]:
        """Render one request: the supervisor's process. Secrets appear as references only, never as values."""
        outputs = str(plan.job["outputs"])
        url = run_url(outputs, RUN)
        run_dir = str(local_dir(url, self.kind))
        body = {
            "argv": [self._python(), "-m", processes.SUPERVISOR, "--run", url],
            "code": {"from": join(outputs, f"code/{plan.code.sha256}.tar.gz"), "to": f"{run_dir}/code"},
            "cwd": run_dir,
            "env": {
                processes.RUN_VARIABLE: RUN,
                processes.URL_VARIABLE: url,
                processes.TARGET_VARIABLE: self.kind,
                processes.OWNER_VARIABLE: OWNER,
                processes.OWNER_NAME_VARIABLE: OWNER_NAME,
                "HEADWAY_CODE_DIR": plan.project or f"{run_dir}/code",
                **({IN_PLACE: "1"} if plan.project else {}),
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
            leader, note = self._start(plan, url, body)
        details = {"dir": str(run_dir), "host": socket.gethostname(), "pid": leader.pid}
        return Handle(target=plan.target, run=run, url=url, details={**details, **({"note": note} if note else {})})

    def _start(self, plan: Plan, url: str, body: Mapping[str, Any]) -> tuple[processes.Process, str]:
        """Start the supervisor in place if it can; return it, and a note for the user if it runs in a copy."""
        if not plan.project:
            return processes.start(body, code_sha256=plan.code.sha256), ""
        with workdir.folder_lock(plan.project):
            why = workdir.why_a_copy(plan, url, processes.labels(target=self.kind))
            if not why:
                return processes.start(body, code_sha256=""), ""
            env = {name: value for name, value in body["env"].items() if name != IN_PLACE}
            copy = {**body, "env": {**env, "HEADWAY_CODE_DIR": body["code"]["to"]}}
            process = processes.start(
                copy, code_sha256=plan.code.sha256, prepare=lambda at: workdir.link_data(plan, at)
            )
        return process, f"{why}, so this runs in a copy: {body['code']['to']}"

    def status(self, handle: Handle) -> Status:
        return self._status(handle, StatusPoller(folder_of(handle)))

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        run_dir = local_dir(handle.url, self.kind)
        ended = self._end_check(handle) if follow else None
        return tail(folder_of(handle), spool=run_dir / "spool", ended=ended, rank=rank)

    def down(self, handle: Handle) -> Receipt:
        """Send SIGTERM, wait for the plan's grace period, send SIGKILL and scan again.

        Processes already gone count as removed.
        """
        require_same_host(handle, _other_host(handle, self.kind), "processes")
        run_dir, ended = local_dir(handle.url, self.kind), has_ended(handle)
        leader = _recorded_supervisor(handle.url, self.kind)
        if leader is not None and not leader.alive and handle.details.get(ORIGIN):
            leader = None  # it belongs to the original of this copied folder
        # After the `ended` event the supervisor is exiting by itself, and there is no checkpoint to wait for.
        receipt = take_down(
            handle.run,
            lambda: processes.processes_of(handle.url, target=self.kind, leader=leader),
            known=[leader] if leader else [],
            signal_after_s=PROCESS_EXIT_S if ended else 0.0,
            grace_s=PROCESS_EXIT_S if ended else grace_s(handle) + END_RECORD_S,
        )
        if not receipt.left and (ended or has_ended(handle)):
            processes.remove_run_dir(run_dir, inside_run=local_path(handle.url) is not None)
        return receipt

    def list_runs(self) -> list[Handle]:
        return [
            Handle(
                target=self.kind,
                run=label[processes.RUN_VARIABLE],
                url=label[processes.URL_VARIABLE],
                details=_owner_details(label),
            )
            for label in processes.labels(target=self.kind)
        ]

    def exec_command(self, handle: Handle) -> ExecCommand:
        python = self._python()
        return ExecCommand(where="this machine", words=(python,), url=handle.url, python=python, here=True)

    def _python(self) -> str:
        return self.options.python or sys.executable

    def _interpreter_problems(self, job: Job) -> list[Problem]:
        python = self.options.python
        if python is not None and which(python) is None:
            return [Problem(what=f"no interpreter at {python}", where="targets", fix="fix `python`, or remove it")]
        own = job.python
        if own is not None and which(os.path.join(job.root, own) if "/" in own else own) is None:
            what = f"there is no interpreter {own} on this machine"
            return [Problem(what=what, where="python", fix="fix `python` in the job file, or --set python=null")]
        if job.notebook and python is None and own is None:
            return _notebook_problems()
        if job.recipe is None or python is not None:
            return []
        missing = [name for name in TRAINING_PACKAGES if find_spec(name) is None]
        what = f"recipe {job.recipe} needs {', '.join(missing)}, not installed beside this Headway"
        return [Problem(what=what, fix=install_command("train"))] if missing else []

    def _supervisor(self, url: str) -> processes.Process | None:
        """Return the live supervisor by its pid file, or by label if the starting process died before writing one."""
        recorded = _recorded_supervisor(url, self.kind)
        if recorded is not None and recorded.alive:
            return recorded
        live = processes.processes_of(url, target=self.kind)
        return next((process for process in live if process.runs(processes.SUPERVISOR)), None)

    def _status(self, handle: Handle, poller: StatusPoller) -> Status:
        if _other_host(handle, self.kind):
            return poller.status()
        # Check the process before the folder: a supervisor that is gone has written everything by then.
        starting, leader = processes.is_starting(local_dir(handle.url, self.kind)), self._supervisor(handle.url)
        inputs = read_status_inputs(folder_of(handle))
        if inputs.end is not None:
            return inputs.end
        if leader is not None or starting:
            reason = f"process {leader.pid}" if leader else "is being started"
            return Status(state=State.RUNNING if inputs.started else State.PENDING, reason=reason)
        return Status(state=State.LOST, reason=_why_lost(inputs, local_dir(handle.url, self.kind)))

    def _end_check(self, handle: Handle) -> Callable[[], bool]:
        """Return a function that tells whether the run has ended.

        It reads the folder at short intervals, and as soon as the supervisor is gone.
        """
        poller, polled_at = StatusPoller(folder_of(handle)), -POLL_S

        def has_ended_now() -> bool:
            nonlocal polled_at
            leader = _recorded_supervisor(handle.url, self.kind)
            if time.monotonic() - polled_at < POLL_S and leader is not None and leader.alive:
                return False
            polled_at = time.monotonic()
            return self._status(handle, poller).state.ended

        return has_ended_now


def _notebook_problems() -> list[Problem]:
    missing = [name for name in NOTEBOOK_PACKAGES if find_spec(name) is None]
    what = f"{' and '.join(missing)}, which execute a notebook, are not installed for {sys.executable}"
    fix = f"{sys.executable} -m pip install {' '.join(missing)}"
    return [Problem(what=what, where="notebook", fix=fix)] if missing else []


def _node_problems(job: Job) -> list[Problem]:
    if job.resources.nodes == 1:
        return []
    what = f"{job.resources.nodes} nodes were asked for, and the local target is one machine"
    return [Problem(what=what, where="resources.nodes", fix="nodes: 1 with more processes, or --on another target")]


def _unsupported(job: Job) -> list[Problem]:
    """Return the keys that have no effect on this machine, where nothing is installed or mounted."""
    found = []
    if job.setup:
        fix = "run them yourself, then headway run --set setup=[]"
        found.append(Problem(what="setup commands are not run on this machine", where="setup", fix=fix))
    for mount in job.mounts:
        if not os.path.exists(mount.at):
            fix = f"mount it yourself at {mount.at}, or headway run --set mounts=[]"
            found.append(Problem(what=f"nothing is mounted at {mount.at} on this machine", where="mounts", fix=fix))
    return found


def _recorded_supervisor(url: str, kind: str) -> processes.Process | None:
    """Return the supervisor by its pid file, alive or not.

    None if that process runs another folder, of which this one is a copy.
    """
    supervisor = processes.read_supervisor(local_dir(url, kind))
    if supervisor is None or not supervisor.alive:
        return supervisor
    same_run = processes.has_label(supervisor.pid, url=url, target=kind)
    if same_run is None:  # another user's: its label is not readable
        same_run = not submission.origin_url(RunFolder(open_store(url)))
    return supervisor if same_run else None


def _owner_details(label: Mapping[str, str]) -> dict[str, str]:
    return {
        "owner": label.get(processes.OWNER_VARIABLE, ""),
        "owner_name": label.get(processes.OWNER_NAME_VARIABLE, ""),
    }


def _other_host(handle: Handle, kind: str) -> str:
    """Return the other host that runs this, if the folder is shared between machines; empty for this one."""
    host = processes.supervisor_host(local_dir(handle.url, kind)) or str(handle.details.get("host", ""))
    return "" if host == socket.gethostname() else host


def _why_lost(inputs: StatusInputs, run_dir: Path) -> str:
    last = processes.last_line(run_dir)
    last_output = f"; last output: {last}" if last else ""
    if not inputs.started:
        return f"the supervisor ended before its first attempt{last_output}" if last else "was never started"
    return f"killed or crashed: the supervisor exited without recording a status{last_output}"
