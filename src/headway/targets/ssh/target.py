"""The ssh target: run on given machines, or on machines provisioned for the run.

Needs the OpenSSH client locally, and Python and bash on each machine.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headway.core.errors import HeadwayError, Problem, RunBusy, TargetError
from headway.core.plan import RUN, Limits
from headway.core.retry import NO_LIMIT, RetryPolicy, retry
from headway.core.types import ORIGIN, RUN_LABEL, ExecCommand, Handle, LogLine, Receipt, Request, State, Status, Target
from headway.rundir import submission
from headway.rundir.lease import spent_s, with_remaining_budget
from headway.rundir.logs import tail
from headway.rundir.status import (
    StatusInputs,
    folder_of,
    has_ended,
    local_dir,
    output_problems,
    read_status_inputs,
    release_dead_lease,
    run_url,
    status_without_target,
)
from headway.rundir.submission import owner
from headway.storage import open_store
from headway.targets.checks import no_process
from headway.targets.local import processes
from headway.targets.ssh import checks, connection, lifecycle, rental, script, watcher
from headway.targets.ssh.connection import Host, Machine, RemoteError
from headway.targets.ssh.lifecycle import SshConnections, configured_machines, locked, machines_of
from headway.targets.ssh.options import KIND, SCRIPT, Options, layout, sources_to_upload
from headway.targets.ssh.provider import Provider, Released
from headway.targets.ssh.rental import ProvisionedMachine, Records
from headway.targets.ssh.sync import fetch_file

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.core.types import Finding
    from headway.spec import Job


# Exit status of runs whose supervisor did not record one. It comes from the watchdog on the machine, and is stored
# locally when the run's files there are removed.


EXIT_FILE = "ending.json"


def lost_status(inputs: StatusInputs, states: Sequence[Mapping[str, Any]]) -> Status:
    """Return the status of a run that has no process left and no `ended` event.

    It comes from the watchdog's exit record, if there is one.
    """
    ended = next((state["exit"] for state in states if state["exit"]), None)
    last = str(states[0]["last"])
    last_output = f"; last output: {last}" if last else ""
    if not isinstance(ended, dict):
        what = "the machine was restarted, or everything there was killed" if inputs.started else "was never started"
        return Status(state=State.LOST, reason=what + last_output)
    code, why = int(ended["code"]), str(ended["why"])
    if not inputs.started and code != 143:
        reason = f"ended with {code} before its first attempt{last_output}"
        return Status(state=State.FAILED, reason=reason, exit_code=code)
    state = State.LOST if inputs.started else State.STOPPED
    return Status(state=state, reason=f"{why or f'ended with {code} without recording a status'}{last_output}")


def save_exit(handle: Handle, connections: SshConnections, states: Sequence[Mapping[str, Any]]) -> None:
    """Save what is needed of the files on the machines before they are removed.

    That is the start script's log, and the exit status if the run folder has none.
    """
    where = connections.where
    for node, host in enumerate(connections.hosts):
        if states[node]["there"]:
            fetch_file(host, f"{where.place(node)}/start.log", connections.here / f"start-{node}.log")
    try:
        inputs = read_status_inputs(folder_of(handle))
        after = submission.attempts_before(submission.read(folder_of(handle)))
    except HeadwayError:  # no folder, or it cannot be reached: the record would never be read
        return
    if inputs.end is None and any(state["there"] for state in states):
        status = lost_status(inputs, states)
        record = {"state": status.state.value, "reason": status.reason, "exit_code": status.exit_code, "after": after}
        open_store(str(connections.here)).write(EXIT_FILE, json.dumps(record).encode())


def saved_exit(handle: Handle) -> Status | None:
    """Return the saved exit status of the last start, or None if there is none or it belongs to an earlier start."""
    try:
        record = json.loads((local_dir(handle.url, KIND) / EXIT_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    if record["after"] != submission.attempts_before(submission.read(folder_of(handle))):
        return None
    return Status(state=State(record["state"]), reason=record["reason"], exit_code=record["exit_code"])


DEFAULTS = Options()
POLL_S = 1.0  # between polls of the hosts while a log is followed
UNREACHABLE_S, UNREACHABLE_PAUSE_S = 60.0, 2.0  # how long to retry an unreachable rented machine before releasing it
GRACE_S = 30.0
Say = Callable[[str], None]


def _unreachable_policy(total_s: float) -> RetryPolicy:
    pause_s = UNREACHABLE_PAUSE_S
    return RetryPolicy(tries=NO_LIMIT, total_s=total_s, first_pause_s=pause_s, longest_pause_s=pause_s)


def to_stderr(text: str) -> None:
    sys.stderr.write(f"headway: {text}\n")


@dataclass(frozen=True, slots=True)
class SshTarget(Target):
    options_class: ClassVar[type[Any]] = Options
    options: Options = DEFAULTS
    log: Say = to_stderr

    def check(self, job: Job) -> list[Problem]:
        return [*checks.problems(job, self.options), *output_problems(job.outputs)]

    def notes(self, job: Job, ranks: int) -> list[str]:
        """List what does not prevent the job from running here but belongs in its plan."""
        return list(checks.notes(job, ranks, self.options))

    def exec_command(self, handle: Handle) -> ExecCommand:
        options, machines = self.options, machines_of(self.options, handle, Records())
        if not machines:
            raise no_process(handle, "machine")
        folder = str(handle.details.get("dir", options.dir))
        there = layout(options, handle.url.rpartition("/")[0], handle.run, dir=folder)
        python = options.python or "python3"
        engine = f"{options.engine} exec --interactive headway-{handle.run}-0 " if options.engine else ""
        return ExecCommand(
            where=str(machines[0]),
            words=tuple(connection.ssh_command(machines[0], options, f"exec {engine}{shlex.quote(python)}")),
            url=there.folder,
            python=python,
            quoted=True,
            install=lambda found: f"ssh {machines[0]} {engine}{found} -m pip install jupyterlab",
        )

    def doctor(self, job: Job) -> Iterator[Finding]:
        """Check the machines. Changes nothing on them except that it installs Headway's agent."""
        return checks.findings(self.options, job)

    def online_notes(self, job: Job) -> list[str]:
        """Return the findings of `doctor`, for `plan --online`."""
        return [f"{finding.mark}: {finding.what}" for finding in self.doctor(job)]

    def limits(self, job: Job) -> Limits:
        """Return the run's limits.

        The watchdog on the machine enforces the budget if the supervisor does not, and then runs `self_down` if there
        is one.
        """
        hours = job.budget.hours
        second = "none: the machine is left as it is" if hours is None else "a watchdog on the machine"
        if self.options.self_down and hours is not None:
            second += ", which then runs `self_down`"
        elif self.options.up:
            second += "; the machine itself stays billed until `down` is run from here"
        budget_s = None if hours is None else hours * 3600
        return Limits(budget_s=budget_s, max_wait_s=job.max_wait, grace_s=GRACE_S, second=second)

    def image_platform(self, job: Job) -> str:
        return "linux/amd64" if self.options.engine else ""

    def cpus(self, job: Job, ranks: int) -> int:
        """Return the CPUs per node that the ranks' threads share. The machine has not been asked yet."""
        return job.resources.cpus or ranks

    def render(self, plan: Plan) -> list[Request]:
        """Render the start script, the files to send and the commands.

        Secrets appear as references only, never as values.
        """
        where = layout(self.options, str(plan.job["outputs"]), RUN)
        text = script.start_script(plan, self.options, lifecycle.headway_requirements(plan))
        sent = {"code": plan.code.sha256, "headway": plan.code.wheel, "data": sources_to_upload(plan.job, self.options)}
        if plan.code.runtime:
            sent["runtime"] = plan.code.runtime
        body = {
            "machines": list(map(str, configured_machines(self.options))) or ["as `up` names them"],
            "folder": where.folder,
            "places": [where.place(node) for node in range(plan.nodes)],
            "mirrored": where.mirrored,
            "sends": sent,
            "labels": {RUN_LABEL: RUN},
            "limit_s": lifecycle.lifetime_s(plan),
            "secrets": lifecycle.secret_references(plan.job),
            "self_down": self.options.self_down,
        }
        rented = {name: getattr(self.options, name) for name in ("up", "list", "down")}
        commands = [Request(name="rental.json", body=rented)] if self.options.up else []
        return [*commands, Request(name=SCRIPT, body={"text": text}), Request(name="start.json", body=body)]

    def submit(self, plan: Plan, run: str) -> Handle:
        """Provision machines if needed, upload everything and start the run.

        The watcher process starts before the first machine is provisioned.
        """
        url = run_url(str(plan.job["outputs"]), run)
        run_dir, handle = local_dir(url, KIND), Handle(target=plan.target, run=run, url=url)
        with processes.start_lock(run_dir):
            self._require_no_rental(url)
            self._mark_untouched(url)
            try:
                machines = (
                    self._provision(plan, run, url)
                    if self.options.up
                    else configured_machines(self.options)[: plan.nodes]
                )
                with ExitStack() as stack:
                    hosts = [stack.enter_context(Host(machine, self.options)) for machine in machines]
                    details = self._start(plan, handle, hosts)
            except RunBusy:
                raise
            except BaseException:  # Ctrl-C too: an incomplete set of nodes cannot train, and a machine is billed
                self._clean_up(handle)
                raise
            if self.options.up:
                self._mark_started(url)
            elif layout(self.options, str(plan.job["outputs"]), run).mirrored:
                watcher.start(url)
        return replace(handle, details=details)

    def status(self, handle: Handle) -> Status:
        inputs = read_status_inputs(folder_of(handle))
        ended = inputs.end or saved_exit(handle)
        if ended is not None:
            return ended
        with SshConnections(self.options, handle, self._machines(handle)) as connections:
            return self._status(handle, connections)

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        spool = local_dir(handle.url, KIND) / "spool"
        if not follow:
            self.status(handle)  # fetches new output
            yield from tail(folder_of(handle), spool=spool, ended=None, rank=rank)
            return
        with SshConnections(self.options, handle, self._machines(handle)) as connections:
            yield from tail(folder_of(handle), spool=spool, ended=self._end_check(handle, connections), rank=rank)

    def down(self, handle: Handle) -> Receipt:
        """Stop the run, fetch its outputs, remove its files and release the machine.

        Sends SIGTERM, waits for the plan's grace period, then sends SIGKILL.
        """
        if self._rented_for_another(handle):
            return _receipt_of_copy(handle)
        run_dir = local_dir(handle.url, KIND)
        created_here = not run_dir.exists()
        waiting = f"{handle.run} is being taken down by another process of this machine: waiting for it"
        with locked(*Records().lock(handle.url), on_wait=lambda: self.log(waiting)):
            machines = [] if self._nothing_to_fetch(handle) else self._machines(handle)
            created, left = self._stop(handle, machines) if machines else ([], [])
            released = self._release(handle) if self.options.up else Released()
            if not left and not released.left:
                release_dead_lease(handle)
                watcher.stop(handle.url)
                Records().delete(handle.url, released.rental)
                if created_here:  # a start that left nothing leaves no folder either
                    shutil.rmtree(run_dir, ignore_errors=True)
        names = {name.partition(" (")[0] for name in left}
        removed = [name for name in created if name.partition(" (")[0] not in names]
        return Receipt(
            run=handle.run,
            created=(*created, *released.created),
            removed=(*removed, *released.removed),
            left=(*left, *released.left),
            unverified=released.unverified,
        )

    def list_runs(self) -> list[Handle]:
        """Find runs by their labels on the hosts of the target's entry.

        Rented machines are found by the records written before `up`.
        """
        runs: dict[tuple[str, str], Handle] = {}
        for rented in Records().all() if self.options.up else ():
            current_owner = owner()  # the record is in this user's own home folder
            details = {"rented": True, "owner": current_owner.id, "owner_name": current_owner.name}
            runs[rented.url, current_owner.id] = Handle(
                target=rented.target, run=rented.run, url=rented.url, details=details
            )
        for machine in configured_machines(self.options):
            with Host(machine, self.options) as host:
                for label in host.ask("found", dir=host.facts["dir"])["runs"]:
                    if label.get("HEADWAY_CLIENT", "") in ("", _hostname()):
                        url, owner_id = label["HEADWAY_CLIENT_URL"], label.get(processes.OWNER_VARIABLE, "")
                        runs[url, owner_id] = Handle(
                            target=KIND, run=label[processes.RUN_VARIABLE], url=url, details=_owner_details(label)
                        )
        return [runs[key] for key in sorted(runs)]

    # Starting

    def _provision(self, plan: Plan, run: str, url: str) -> list[Machine]:
        records, provider = Records(), Provider(self.options, Records(), self.log)
        options = dict(plan.options)
        record = records.begin(
            ProvisionedMachine(run=run, url=url, target=plan.target, since=time.time(), options=options)
        )
        watcher.start(url)
        rental = provider.wait_until_listed(provider.provision(record, plan.nodes))
        for machine in rental.machines:
            self._wait_for_ssh(machine)
        return [replace(machine, first_seen=False) for machine in rental.machines]

    def _wait_for_ssh(self, machine: Machine) -> None:
        """Wait until a new machine accepts connections.

        Its host key is pinned on first use, because this run has just created the machine.
        """
        try:
            retry(
                lambda: connection.run(machine, self.options, "true", within_s=60.0),
                _unreachable_policy(self.options.ready),
                on=RemoteError,
                unless=(connection.HostKeyError,),
            )
        except connection.HostKeyError:
            raise
        except RemoteError as error:
            raise TargetError(
                f"{machine} does not answer after {self.options.ready:.0f} s: {error.problem.what}",
                fix="`ready` in the target's entry; check that its firewall allows ssh",
            ) from None
        if machine.first_seen and machine.known_hosts is not None:
            self.log(
                f"{machine}: host key pinned at first sight, as this run made the machine: {_key_fingerprints(machine)}"
            )

    def _start(self, plan: Plan, handle: Handle, hosts: list[Host]) -> dict[str, object]:
        if self.options.bootstrap:
            for host in hosts:
                lifecycle.bootstrap(host, plan, self.options, self.log)
        folders = {str(host.facts["dir"]) for host in hosts}
        if len(folders) > 1:
            what = f"`dir` is another folder on each host: {', '.join(sorted(folders))}"
            raise TargetError(what, where="targets", fix="dir: /an/absolute/path")
        where = layout(self.options, str(plan.job["outputs"]), handle.run, dir=folders.pop())
        for node, host in enumerate(hosts):
            if host.ask("state", place=where.place(node), url=where.folder)["processes"]:
                raise RunBusy(f"{handle.run} is running on {host}", fix=f"headway stop {handle.run}")
        run_dir = local_dir(handle.url, KIND)
        self._require_share(hosts)
        Records().untouched_marker(handle.url).unlink(missing_ok=True)
        (run_dir / EXIT_FILE).unlink(missing_ok=True)
        # The watchdog and the label count from each start, so they get the remaining budget.
        remaining = with_remaining_budget(plan, spent_s(folder_of(handle)))
        lifecycle.upload(plan, hosts, where, self.options, run_dir, self.log, remaining=remaining)
        lifecycle.start(remaining, hosts, where, self.options)
        keys = {machine.machine.known_hosts for machine in hosts} - {None}
        rented = Records().read(handle.url)
        shown = {name: getattr(rented, name) for name in ("since", "listed", "listed_by")} if rented else {}
        return {
            **shown,
            "machines": [rental.as_plain(host.machine) for host in hosts],
            "dir": where.dir,
            "host": str(hosts[0].facts["host"]),
            "keys": "".join(path.read_text() for path in keys if path is not None and path.exists()),
        }

    def _require_share(self, hosts: list[Host]) -> None:
        """Raise TargetError unless a file written here is readable on every host.

        A folder of the same name proves nothing.
        """
        if self.options.share is None:
            return
        proof = Path(self.options.share) / f".headway-proof-{time.time_ns()}"
        proof.write_text(proof.name)
        try:
            for host in hosts:
                if host.ask("mounted", paths=[str(proof)])["texts"][0] != proof.name:
                    what = f"{self.options.share} on {host} is not the folder of that name here"
                    raise TargetError(what, where="targets", fix="mount it there too, or take `share` out")
        finally:
            proof.unlink(missing_ok=True)

    def _require_no_rental(self, url: str) -> None:
        """Raise RunBusy if the run has a rental record.

        Its machines may still be billed, so a new one must not overwrite it.
        """
        known = Records().read(url) if self.options.up else None
        if known is not None:
            what = f"{known.run} still has a machine on record that was not released"
            raise RunBusy(f"{what}: {', '.join(known.ids) or 'of unknown id'}", fix=f"headway down {url}")

    def _mark_untouched(self, url: str) -> None:
        mark = Records().untouched_marker(url)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def _mark_started(self, url: str) -> None:
        records = Records()
        known = records.read(url)
        if known is not None:
            records.write(replace(known, state=rental.STARTED))

    def _clean_up(self, handle: Handle) -> None:
        if not self.options.up and Records().untouched_marker(handle.url).exists():
            return  # no host was reached, so there is nothing to clean up
        try:
            self.down(handle)
        except HeadwayError as error:  # only log it: the caller must see why the start failed
            self.log(f"{handle.run} could not be taken down: {error}")

    # Status

    def _machines(self, handle: Handle) -> list[Machine]:
        return [] if self._rented_for_another(handle) else machines_of(self.options, handle, Records())

    def _status(self, handle: Handle, connections: SshConnections) -> Status:
        if not connections.hosts:
            starting_now = processes.is_starting(local_dir(handle.url, KIND))
            state = State.PENDING if starting_now else State.LOST
            return Status(state=state, reason="its machine is being rented" if starting_now else "was never started")
        starting_now = processes.is_starting(local_dir(handle.url, KIND))
        try:
            states = connections.refresh()
        except RemoteError as error:
            return status_without_target(handle, str(error.problem.what))
        inputs = read_status_inputs(folder_of(handle))
        if inputs.end is not None:
            return inputs.end
        live = [str(host) for host, state in zip(connections.hosts, states, strict=True) if _is_running(state)]
        if live:
            activity = "" if inputs.started else f": {states[0]['last']}" if states[0]["last"] else ": setting up"
            state = State.RUNNING if inputs.started else State.PENDING
            return Status(state=state, reason=f"on {', '.join(live)}{activity}")
        if starting_now:
            return Status(state=State.PENDING, reason="is being started")
        return lost_status(inputs, states)

    def _end_check(self, handle: Handle, connections: SshConnections) -> Callable[[], bool]:
        """Return a function that tells whether the run has ended.

        Each call that polls the hosts also fetches new output.
        """
        polled_at = -POLL_S

        def has_ended_now() -> bool:
            nonlocal polled_at
            if time.monotonic() - polled_at < POLL_S:
                return False
            try:
                return self._status(handle, connections).state.ended
            finally:
                polled_at = time.monotonic()

        return has_ended_now

    # Teardown

    def _stop(self, handle: Handle, machines: list[Machine]) -> tuple[list[str], list[str]]:
        """Stop all processes, fetch all outputs and remove all files.

        Give up on a rented machine that stays unreachable for REACH_S.
        """
        if not self.options.up:
            return self._stop_reachable(handle, machines)

        def give_up_if_gone(error: Exception) -> None:
            if self._no_longer_listed(handle):
                raise error

        try:
            return retry(
                lambda: self._stop_reachable(handle, machines),
                _unreachable_policy(UNREACHABLE_S),
                on=RemoteError,
                on_failure=give_up_if_gone,
            )
        except RemoteError as error:
            self.log(f"{handle.run}: {error.problem.what}; its output since the last sync is lost")
            return [], []

    def _stop_reachable(self, handle: Handle, machines: list[Machine]) -> tuple[list[str], list[str]]:
        with SshConnections(self.options, handle, machines) as connections:
            where = connections.where
            seen, alive = lifecycle.stop_processes(connections.hosts, where, handle, ended=has_ended(handle))
            recorded = [] if handle.details.get(ORIGIN) else [f"{handle.run} on {host}" for host in connections.hosts]
            created = seen or recorded
            states = connections.refresh()
            if alive:
                return created, alive
            save_exit(handle, connections, states)
            left: list[str] = []
            for node, host in enumerate(connections.hosts):
                if not self.options.self_down:
                    left += lifecycle.remove_files(host, where, node)
                elif not self.options.up:
                    lifecycle.release(host, where, node)
            return created, left

    def _nothing_to_fetch(self, handle: Handle) -> bool:
        """Return whether there is nothing to fetch.

        Either nothing was sent, or the rented machine was never started or is already released.
        """
        records = Records()
        if records.untouched_marker(handle.url).exists():
            return True
        known = records.read(handle.url)
        if known is not None:
            return known.state != rental.STARTED
        return self.options.up is not None and self._released(handle) is not None

    def _rented_for_another(self, handle: Handle) -> bool:
        """Return whether the recorded machines were rented for another folder.

        This folder is then a copy of it, or was moved.
        """
        return bool(self.options.up and handle.details.get(ORIGIN)) and Records().read(handle.url) is None

    def _no_longer_listed(self, handle: Handle) -> bool:
        return Provider(self.options, Records(), self.log).all_gone(self._rental(handle))

    def _release(self, handle: Handle) -> Released:
        return Provider(self.options, Records(), self.log).release(self._rental(handle))

    def _rental(self, handle: Handle) -> ProvisionedMachine:
        """Return the rental from its record, from the record of released machines, or else from the handle."""
        known = Records().read(handle.url) or self._released(handle)
        return known or ProvisionedMachine(
            run=handle.run,
            url=handle.url,
            target=handle.target,
            state=rental.STARTED,
            machines=tuple(self._machines(handle)),
            listed=tuple(handle.details.get("listed", ())),
            listed_by=str(handle.details.get("listed_by", "")),
        )

    def _released(self, handle: Handle) -> ProvisionedMachine | None:
        """Return the run's last rental if this client released it.

        A later rental may have been made by another client.
        """
        known = Records().read_released(handle.url)
        same = known is not None and handle.details.get("since", known.since) == known.since
        return known if same else None


def _receipt_of_copy(handle: Handle) -> Receipt:
    """Return the empty receipt of a copied run folder, whose original keeps its machines.

    Raises TargetError if the original cannot be seen, as it is then unknown what is billed.
    """
    origin = str(handle.details[ORIGIN])
    if not submission.is_run(origin):
        what = f"the machines of {handle.run} were rented when its folder was {origin}, which cannot be seen from here"
        raise TargetError(what, where=handle.url, fix=f"where that folder is: headway down {origin}; or headway gc")
    return Receipt(run=handle.run)


def _owner_details(label: Mapping[str, str]) -> dict[str, str]:
    return {
        "expires": label.get("HEADWAY_EXPIRES", ""),
        "owner": label.get(processes.OWNER_VARIABLE, ""),
        "owner_name": label.get(processes.OWNER_NAME_VARIABLE, ""),
    }


def _hostname() -> str:
    import socket

    return socket.gethostname()


def _is_running(state: dict[str, object]) -> bool:
    """Return whether the run is running. A watchdog that only waits to run `self_down` does not count."""
    return bool(state["processes"]) and state["exit"] is None


def _key_fingerprints(machine: Machine) -> str:
    import subprocess

    assert machine.known_hosts is not None
    done = subprocess.run(["ssh-keygen", "-lf", str(machine.known_hosts)], capture_output=True, text=True)
    return ", ".join(line.split()[1] for line in done.stdout.splitlines() if len(line.split()) > 1)
