"""The docker target: one container per node on this machine, with the supervisor as process 1. Nothing is billed."""

from __future__ import annotations

import os
import shutil
import socket
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headway.core.errors import BadJob, Problem, RunBusy
from headway.core.program import is_foreign_image
from headway.core.types import ExecCommand, Finding, Handle, LogLine, Receipt, Request, State, Status, Target
from headway.packaging import build, image_contents
from headway.packaging.dockerfile import image_of_plan
from headway.packaging.engine import AlreadyExists, Engine, EngineError, daemon_id
from headway.packaging.engine import run as run_command
from headway.packaging.supervisor_runtime import is_ready_image, unavailable_reason, unpack_here
from headway.rundir.layout import RunFolder
from headway.rundir.lease import spent_s, with_remaining_budget
from headway.rundir.logs import tail
from headway.rundir.status import (
    StatusInputs,
    StatusPoller,
    folder_of,
    has_ended,
    key_file_notes,
    local_dir,
    output_problems,
    read_status_inputs,
    run_url,
    status_without_target,
)
from headway.rundir.submission import owner
from headway.spec.loading import dump, undump
from headway.storage import join, local_path, open_store
from headway.storage.secrets import resolve
from headway.targets.checks import (
    dependency_notes,
    install_in_image,
    no_process,
    require_same_host,
    unused_resource_notes,
)
from headway.targets.docker import checks, render, secrets
from headway.targets.docker import resources as docker_resources
from headway.targets.docker.options import Options
from headway.targets.docker.render import KIND
from headway.targets.docker.resources import DockerResource
from headway.targets.local import processes

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job

DEFAULTS = Options()
_DAEMON_VARIABLES = ("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST")
POLL_S = 1.0  # between polls of the daemon while a log is followed


@dataclass(frozen=True, slots=True)
class DockerTarget(Target):
    options_class: ClassVar[type[Any]] = Options
    on_this_machine: ClassVar[bool] = True
    shared_workdir: ClassVar[Literal["no", "yes", "ready-image"]] = "ready-image"
    options: Options = DEFAULTS
    engine: Engine = run_command  # the only access to the daemon

    def check(self, job: Job) -> list[Problem]:
        return [*checks.problems(job, self.options), *output_problems(job.outputs)]

    def online(self, plan: Plan) -> list[Problem]:
        """Find what only the daemon can tell: whether it answers, and can do what the job needs."""
        return list(checks.daemon_problems(undump(plan.job), self.options, self.engine))

    def doctor(self, job: Job) -> Iterator[Finding]:
        """Check the daemon; each finding has the command that fixes it."""
        found = list(checks.daemon_problems(job, self.options, self.engine))
        yield from (Finding("bad", problem.what, problem.fix) for problem in found)
        if not found:
            yield Finding("ok", f"the daemon of {self.options.command} answers")

    def notes(self, job: Job, ranks: int) -> list[str]:
        """List what does not prevent the job from running here but belongs in its plan."""
        return list(_notes(job, ranks, self.options.platform))

    def cpus(self, job: Job, ranks: int) -> int:
        """Return the CPUs of one node: what the job asks for, or an equal share of this machine."""
        return job.resources.cpus or max(1, len(os.sched_getaffinity(0)) // job.resources.nodes)

    def image_platform(self, job: Job) -> str:
        return self.options.platform

    def render(self, plan: Plan) -> list[Request]:
        """Render every command that `submit` runs, in order. Secrets appear as references only, never as values."""
        return render.requests(plan, self.options)

    def submit(self, plan: Plan, run: str) -> Handle:
        """Build or pull the image, then create and start all containers. A failure leaves only the image behind."""
        outputs = str(plan.job["outputs"])
        url, run_dir = run_url(outputs, run), local_dir(run_url(outputs, run), KIND)
        with processes.start_lock(run_dir):
            if any(container.live for container in self._containers(url)):
                raise RunBusy(f"{run} is running in containers here", fix=f"headway stop {run}")
            self._provide_image(plan, outputs)
            try:
                self._prepare(plan, run, run_dir)
                docker_resources.remove(self.engine, self.options.command, url)  # left by a killed client
                containers = self._start(plan, run, url)
            except BaseException:  # Ctrl-C too: an incomplete set of nodes cannot train
                docker_resources.remove(self.engine, self.options.command, url)
                secrets.remove_secrets(url)
                raise
        details = {
            "containers": [container.id for container in containers],
            "dir": str(run_dir),
            "host": socket.gethostname(),
            **self._daemon(),
            "image": build.reference(plan, image_of_plan(plan, platform=self.options.platform)),
        }
        return Handle(target=plan.target, run=run, url=url, details=details)

    def status(self, handle: Handle) -> Status:
        return self._status(handle, StatusPoller(folder_of(handle)))

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        ended = self._end_check(handle) if follow else None
        return tail(folder_of(handle), spool=local_dir(handle.url, KIND) / "spool", ended=ended, rank=rank)

    def down(self, handle: Handle) -> Receipt:
        """Run `docker stop` with the plan's grace period, remove everything and list again.

        Resources already gone count as removed.
        """
        require_same_host(handle, _other_host(handle), "containers")
        receipt = docker_resources.take_down(self.engine, self.options.command, handle)
        if not receipt.left:
            secrets.remove_secrets(handle.url)
            docker_resources.release_lease(handle)
            if has_ended(handle):
                processes.remove_run_dir(local_dir(handle.url, KIND), inside_run=local_path(handle.url) is not None)
        return receipt

    def list_runs(self) -> list[Handle]:
        command = self.options.command
        resources = [
            *docker_resources.containers(self.engine, command),
            *docker_resources.networks(self.engine, command),
        ]
        runs = {(resource.url, resource.owner): resource for resource in reversed(resources)}
        return [
            Handle(target=KIND, run=runs[key].run, url=key[0], details=_owner_details(runs[key]))
            for key in sorted(runs)
        ]

    def exec_command(self, handle: Handle) -> ExecCommand:
        live = [container for container in self._containers(handle.url) if container.live]
        if not live:
            raise no_process(handle, "container")
        python = self.options.python
        return ExecCommand(
            where=f"container {live[0].name}",
            words=(self.options.command, "exec", "--interactive", live[0].name, python),
            url=handle.url,
            python=python,
            install=install_in_image,
        )

    def verb(self, plan: Plan, run: str, arguments: Sequence[str], *, within_s: float) -> str:
        """Run one of Headway's verbs with the run's image, mounts and secrets, and return its output."""
        url = run_url(str(plan.job["outputs"]), run)
        try:
            self._prepare(plan, run, local_dir(url, KIND))
            argv = render.fill_placeholders(render.cli_command(plan, self.options, arguments), run, owner())
            return self.engine(argv, within_s=within_s)
        finally:  # also after a timeout
            docker_resources.remove(self.engine, self.options.command, url)
            secrets.remove_secrets(url)

    def _daemon(self) -> dict[str, str]:
        """Return the record of the daemon that has the containers."""
        known = daemon_id(self.engine, self.options.command)
        set_here = [os.environ[name] for name in _DAEMON_VARIABLES if os.environ.get(name)]
        return {"daemon": known, "daemon_at": next(iter(set_here), "")} if known else {}

    def _containers(self, url: str) -> list[DockerResource]:
        return docker_resources.containers(self.engine, self.options.command, url)

    def _provide_image(self, plan: Plan, outputs: str) -> None:
        image = image_of_plan(plan, platform=self.options.platform)
        reference = build.reference(plan, image)
        if reference == image.name:
            build.build(self.engine, self.options.command, image, outputs)
        else:
            build.pull_image(self.engine, self.options.command, reference, image.platform)
        if plan.code.runtime:
            command, python = self.options.command, self.options.python
            found = image_contents.problems(
                plan.job, self.engine, command, plan.code.runtime, image=reference, python=python
            )
            if found:
                raise BadJob(found)

    def _prepare(self, plan: Plan, run: str, run_dir: Path) -> None:
        """Create everything that is mounted and missing, as this user."""
        with processes.map_os_errors(run_dir):
            for folder in render.folders(plan):
                Path(processes.fill_run_name(folder, run)).mkdir(parents=True, exist_ok=True)
            if is_foreign_image(plan.job):
                outputs = str(plan.job["outputs"])
                processes.unpack_code(
                    join(outputs, f"code/{plan.code.sha256}.tar.gz"), plan.code.sha256, run_dir / "code"
                )
                _unzip(open_store(join(outputs, "code")).read(plan.code.wheel), run_dir / "headway")
                if plan.code.runtime:
                    unpack_here(plan.code.runtime, join(outputs, "code"))
            secrets.write_secrets(plan, run_url(str(plan.job["outputs"]), run), resolve)

    def _start(self, plan: Plan, run: str, url: str) -> list[DockerResource]:
        # The label counts from each start, so it gets the remaining budget.
        limit = render.lifetime_s(with_remaining_budget(plan, spent_s(RunFolder(open_store(url)))))
        current_owner = owner()
        expires = "" if limit is None else str(int(time.time() + limit))
        for request in render.run_requests(plan, self.options):
            try:
                self.engine(render.fill_placeholders(request.body["argv"], run, current_owner, expires))
            except AlreadyExists:
                raise RunBusy(f"another client is already starting {run}", fix=f"headway status {run}") from None
        return self._containers(url)

    def _status(self, handle: Handle, poller: StatusPoller) -> Status:
        if _other_host(handle):
            return poller.status()
        inputs = read_status_inputs(folder_of(handle))
        if inputs.end is not None:  # needs no daemon
            return inputs.end
        starting = processes.is_starting(local_dir(handle.url, KIND))
        try:
            containers = self._containers(handle.url)
            if not starting:
                docker_resources.require_daemon(self.engine, self.options.command, handle, containers)
        except EngineError as error:
            return inputs.end or status_without_target(handle, error.problem.what)
        if starting or any(container.live for container in containers):
            state = State.RUNNING if inputs.started else State.PENDING
            return Status(state=state, reason=_running_reason(containers) or "is being started")
        # Read again: a supervisor that is gone has written everything by now.
        inputs = read_status_inputs(folder_of(handle))
        return inputs.end or Status(state=State.LOST, reason=self._why_lost(inputs, containers))

    def _why_lost(self, inputs: StatusInputs, containers: list[DockerResource]) -> str:
        if not containers:
            return (
                "its containers no longer exist, and no exit status was recorded"
                if inputs.started
                else "was never started"
            )
        exits = "; ".join(_exit_reason(container) for container in containers)
        last_line = "" if inputs.started else self._last_line(containers[0])
        return exits + (f"; last output: {last_line}" if last_line else "")

    def _last_line(self, container: DockerResource) -> str:
        try:
            output = self.engine([self.options.command, "logs", "--tail", "5", container.id])
        except EngineError:  # an unreadable log driver costs only this detail
            return ""
        return next((line.strip()[:300] for line in reversed(output.splitlines()) if line.strip()), "")

    def _end_check(self, handle: Handle) -> Callable[[], bool]:
        """Return a function that tells whether the run has ended.

        It polls the daemon and the folder at most every POLL_S seconds.
        """
        poller, polled_at = StatusPoller(folder_of(handle)), -POLL_S

        def has_ended_now() -> bool:
            nonlocal polled_at
            if time.monotonic() - polled_at < POLL_S:
                return False
            ended = self._status(handle, poller).state.ended
            polled_at = time.monotonic()
            return ended

        return has_ended_now


def _notes(job: Job, ranks: int, platform: str) -> Iterator[str]:
    resources, cores = job.resources, len(os.sched_getaffinity(0))
    if ranks * resources.nodes > cores:
        yield f"{ranks * resources.nodes} ranks share {cores} cores"
    reason = unavailable_reason(platform) if is_ready_image(dump(job)) else ""
    if reason:
        yield f"the image's Python, 3.10 or newer, starts the supervisor: Headway cannot bring one ({reason})"
    if resources.accelerator and not render.NVIDIA.exists():
        yield f"no {resources.accelerator.kind} found on this machine: training on the CPU"
    yield from unused_resource_notes(job)
    foreign = job.image.uri or job.image.dockerfile
    yield from dependency_notes(job, f"{foreign} is used as it is" if foreign else "")
    yield from key_file_notes(job)


def _other_host(handle: Handle) -> str:
    """Return the other host that runs this, if the folder is shared between machines; empty for this one."""
    host = str(handle.details.get("host", ""))
    return "" if host == socket.gethostname() else host


def _owner_details(resource: DockerResource) -> dict[str, str]:
    return {"expires": resource.expires, "owner": resource.owner, "owner_name": resource.owner_name}


def _running_reason(containers: list[DockerResource]) -> str:
    live, stopped = (
        [container for container in containers if container.live],
        [container for container in containers if not container.live],
    )
    exits = [_exit_reason(container) for container in stopped if container.state != "created"]
    return "; ".join([", ".join(map(str, live)), *exits]) if live else ""


def _exit_reason(container: DockerResource) -> str:
    if container.state == "created":
        return f"node {container.node} was never started"
    why = f", {container.error}" if container.error else ""
    killed = ", killed" if container.exit_code == 137 and not why else ""
    return f"node {container.node} ended with {container.exit_code}{why}{killed}"


def _unzip(wheel: bytes, to: Path) -> None:
    import io

    shutil.rmtree(to, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(wheel)) as content:
        content.extractall(to)
