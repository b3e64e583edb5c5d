"""Bootstrap hosts, upload what a run needs, start it, and stop it again on ssh machines."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import TargetError
from headway.core.platform import MARKER
from headway.core.retry import Backoff, poll_while, wait_until
from headway.core.types import Handle
from headway.packaging.code import archive_path, wheel_path
from headway.packaging.requirements import extras, wheel_requirements
from headway.packaging.supervisor_runtime import archive_path as runtime_path
from headway.rundir.status import END_RECORD_S, PROCESS_EXIT_S, grace_s, local_dir
from headway.rundir.submission import owner
from headway.storage import join, local_path, open_store
from headway.storage.secrets import parse, resolve
from headway.targets.docker import secrets as docker_secrets
from headway.targets.local import processes
from headway.targets.ssh import connection, script
from headway.targets.ssh.connection import Host, Machine, Unreachable
from headway.targets.ssh.options import (
    KIND,
    LABEL,
    NEEDED,
    PLAN_FILE,
    SCRIPT,
    Layout,
    Options,
    layout,
    plan_for_host,
    project_files_to_upload,
    sources_to_upload,
)
from headway.targets.ssh.rental import Records, from_plain
from headway.targets.ssh.sync import Mirror, fetch_growing, format_bytes, upload_source

if TYPE_CHECKING:
    from headway.core.plan import Plan


# Connections to all machines of a run


MIRROR_LOCK = "mirror.lock"


class SshConnections:
    """Connections to all machines of one run. A context manager."""

    def __init__(self, options: Options, handle: Handle, machines: list[Machine]) -> None:
        self.hosts = [Host(machine, options) for machine in machines]
        self._options, self._handle = options, handle
        self.here = local_dir(handle.url, KIND)

    def __enter__(self) -> SshConnections:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.close()

    @property
    def where(self) -> Layout:
        outputs = self._handle.url.rpartition("/")[0]
        return layout(self._options, outputs, self._handle.run, dir=str(self.hosts[0].facts["dir"]))

    def refresh(self) -> list[dict[str, Any]]:
        """Return each node's state, after fetching its logs and then its files.

        The state is read first, so that no end is missed.
        """
        where = self.where
        states = [host.ask("state", place=where.place(node), url=where.folder) for node, host in enumerate(self.hosts)]
        with locked(self.here, MIRROR_LOCK):
            for node, host in enumerate(self.hosts):
                fetch_growing(host, f"{where.place(node)}/spool", self.here / "spool")
            folder = local_path(where.url)
            if where.mirrored and folder is not None:
                Mirror(self.hosts[0], where.folder, folder, self.here).pull()
        return states


def machines_of(options: Options, handle: Handle, records: Records) -> list[Machine]:
    """Return the run's machines from the record of its rental, its handle, or the target's entry, in this order."""
    rental = records.read(handle.url)
    if rental is not None:
        return list(rental.machines)
    known = handle.details.get("machines")
    if known is not None:
        machines = [from_plain(dict(machine)) for machine in known]
        _restore_keys(machines, str(handle.details.get("keys", "")))
        return machines
    return [] if options.up else configured_machines(options)


def configured_machines(options: Options) -> list[Machine]:
    """Return the machines in the target's entry."""
    return [connection.parse(text) for text in (options.hosts or ([options.host] if options.host else []))]


@contextmanager
def locked(folder: Path, name: str, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock between processes of this machine; call `on_wait` first if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _restore_keys(machines: list[Machine], keys: str) -> None:
    """Write the pinned host keys from the run's record, if another machine than this one rented the machines."""
    for machine in machines:
        if machine.known_hosts is not None and keys and not machine.known_hosts.exists():
            machine.known_hosts.parent.mkdir(parents=True, exist_ok=True)
            machine.known_hosts.write_text(keys)


# Bootstrapping a bare Debian or Ubuntu with one idempotent script


BOOTSTRAP_SCRIPT = Path(__file__).with_name("bootstrap.sh")
BOOTSTRAP_TIMEOUT_S = 3600.0  # a driver and its headers are gigabytes


def bootstrap_arguments(plan: Plan, options: Options) -> list[str]:
    """Return the bootstrap script's arguments for this job."""
    arguments = ["--gpu"] if plan.job.get("resources", {}).get("accelerator") else []
    arguments += ["--docker"] if options.engine == "docker" else []
    return [*arguments, *(["--scratch", options.scratch] if options.scratch else [])]


def bootstrap(host: Host, plan: Plan, options: Options, log: Callable[[str], None]) -> None:
    """Run the bootstrap script on the host. It needs no Python there: it installs it."""
    command = shlex.join(["bash", "-s", "--", *bootstrap_arguments(plan, options)])
    output = connection.run(
        host.machine, options, command, stdin=BOOTSTRAP_SCRIPT.read_bytes(), within_s=BOOTSTRAP_TIMEOUT_S
    )
    for line in output.splitlines():
        log(f"{host}: {line}")


# Stopping a run: SIGTERM, wait, SIGKILL, then remove its files


FORCE_S = 15.0
FIRST_POLL_S, LONGEST_POLL_S = 0.05, 1.0
Process = dict[str, Any]


def stop_processes(hosts: Sequence[Host], where: Layout, handle: Handle, *, ended: bool) -> tuple[list[str], list[str]]:
    """Send SIGTERM once to each root process, and SIGKILL to what is left after the grace period.

    Return the processes seen and those still running.

    All nodes are signalled at the same time, because their supervisors shut each other down in order.
    """
    seen: dict[tuple[str, int, str], str] = {}
    signalled: set[tuple[str, int, str]] = set()

    def remaining() -> list[tuple[Host, Process]]:
        found = [(host, process) for node, host in enumerate(hosts) for process in _running(host, where, node)]
        for host, process in found:
            seen.setdefault(_identity(host, process), f"process {process['pid']} ({process['name']}) on {host}")
        return found

    grace = PROCESS_EXIT_S if ended else grace_s(handle) + END_RECORD_S
    signal_after = PROCESS_EXIT_S / 2 if ended else 0.0
    for left, waited_s in _poll(remaining, signal_after + grace):
        if waited_s >= signal_after:
            for host, process in _roots(left):
                if _identity(host, process) not in signalled:
                    signalled.add(_identity(host, process))
                    _signal(host, [process], signal.SIGTERM)
    for left, _ in _poll(remaining, FORCE_S):
        for host in hosts:
            _signal(host, [process for other, process in left if other is host], signal.SIGKILL)
    alive = {_identity(host, process) for host, process in remaining()}
    return list(seen.values()), [name for key, name in seen.items() if key in alive]


def remove_files(host: Host, where: Layout, node: int) -> list[str]:
    """Remove all files of this run from the host; return the paths that could not be removed."""
    paths = [where.place(node), *([where.folder] if where.mirrored else [])]
    return [f"{path} on {host}" for path in host.ask("remove", paths=paths)["left"]]


def release(host: Host, where: Layout, node: int) -> None:
    """Let the watchdog run `self_down`, as all outputs are fetched.

    The machine may disappear before it has answered.
    """
    try:
        host.ask("release", place=where.place(node))
        place, url = where.place(node), where.folder
        wait_until(lambda: not host.ask("state", place=place, url=url)["watched"], FIRST_POLL_S, within_s=FORCE_S)
        remove_files(host, where, node)  # for a `self_down` that leaves the machine up
    except Unreachable:
        pass


def _running(host: Host, where: Layout, node: int) -> list[Process]:
    """List the run's processes, except a watchdog that only waits to run `self_down`."""
    state = host.ask("state", place=where.place(node), url=where.folder)
    found: list[Process] = state["processes"]
    return [process for process in found if not (state["exit"] is not None and process["role"] == "watchdog")]


def _roots(left: list[tuple[Host, Process]]) -> list[tuple[Host, Process]]:
    pids = {(id(host), process["pid"]) for host, process in left}
    return [(host, process) for host, process in left if (id(host), process["parent"]) not in pids]


def _identity(host: Host, process: Process) -> tuple[str, int, str]:
    return str(host), process["pid"], process["started"]


def _signal(host: Host, chosen: list[Process], number: signal.Signals) -> None:
    if chosen:
        host.ask("signals", processes=[[each["pid"], each["started"]] for each in chosen], number=int(number))


def _poll(
    remaining: Callable[[], list[tuple[Host, Process]]], within_s: float
) -> Iterator[tuple[list[tuple[Host, Process]], float]]:
    """Poll with back-off; yield what remains and the seconds waited, until nothing remains or `within_s` has passed."""
    return poll_while(remaining, Backoff(FIRST_POLL_S, LONGEST_POLL_S, factor=1.3), within_s=within_s)


CLIENT_SIDE_KINDS = ("env", "file")  # kinds of secret reference that only the client's machine can resolve
INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
SETUP_S = 3600.0  # beyond the budget, for environments that are created on the host
LINGER_S = 120.0  # before `self_down`, where the outputs are already safe
Say = Callable[[str], None]


def upload(
    plan: Plan, hosts: Sequence[Host], where: Layout, options: Options, here: Path, log: Say, *, remaining: Plan
) -> None:
    """Upload data, code, Headway's wheel, the start script and the plan to every host.

    `remaining` is the plan with the remaining budget.
    """
    wheel, archive = _code(plan, plan.code.wheel), _code(plan, f"{plan.code.sha256}.tar.gz")
    text = script.start_script(plan, options, headway_requirements(plan))
    for node, host in enumerate(hosts):
        place = where.place(node)
        todo = {source: source for source in sources_to_upload(plan.job, options)}
        todo |= project_files_to_upload(plan, where)
        uploaded = {source: upload_source(host, path, log) for source, path in todo.items()}
        host.send(f"{place}/{LABEL}", json.dumps(labels(remaining, where)).encode())
        host.ask("unpack", archive, kind="tar", to=f"{place}/code", sha256=plan.code.sha256)
        host.ask("unpack", wheel, kind="wheel", to=f"{place}/headway", fresh=True)
        host.send(f"{place}/{NEEDED}", headway_requirements(plan).encode())
        host.send(f"{place}/{SCRIPT}", text.replace("{RUN}", where.run).encode(), mode=0o755)
        host.send(f"{place}/{PLAN_FILE}", plan_for_host(plan, where, uploaded).to_json().encode())
        if options.engine:
            script.send_context(host, plan, place)
        if plan.code.runtime:
            _send_runtime(plan, host, log)
        if where.mirrored:
            folder = local_path(where.url)
            assert folder is not None
            Mirror(host, where.folder, folder, here).push()


def _send_runtime(plan: Plan, host: Host, log: Say) -> None:
    """Unpack the supervisor's own interpreter on the host, once for all runs that use the same one."""
    folder = f"{host.facts['dir']}/runtimes/{script.runtime_folder(plan)}"
    if host.ask("sizes", paths=[f"{folder}/{MARKER}"])["sizes"][0] is not None:
        return
    body = _code(plan, plan.code.runtime)
    log(f"runtime: {format_bytes(len(body))} to {host}, once: the supervisor's own interpreter")
    sha256 = plan.code.runtime.removeprefix("runtime-").removesuffix(".tar.gz")
    host.ask("unpack", body, kind="tar", to=folder, sha256=sha256)


def start(plan: Plan, hosts: Sequence[Host], where: Layout, options: Options) -> None:
    """Start the watchdog on every node.

    Nodes get the addresses at which ssh reached them, because a host name may resolve to 127.0.1.1.
    """
    secrets, files = resolve_secrets(plan)
    limit = lifetime_s(plan)
    addresses = [str(host.facts["address"]) for host in hosts]
    for node, host in enumerate(hosts):
        env = environment(plan, where, node, addresses)
        if secrets:
            env["HEADWAY_SECRETS_STDIN"] = "1"
        answer = host.ask(
            "start",
            place=where.place(node),
            labels=labels(plan, where),
            env=env,
            secrets=secrets,
            files=files,
            limit_s=limit,
            grace_s=plan.limits.grace_s + END_RECORD_S,
            self_down=options.self_down or "",
            linger_s=options.linger if where.mirrored else LINGER_S,
        )
        if "trouble" in answer:
            raise TargetError(f"the run cannot be started on {host}: {answer['trouble']}", fix=f"ssh {host}")


def labels(plan: Plan, where: Layout) -> dict[str, str]:
    """Return the labels by which everything of the run is found again on any of its hosts, without a record."""
    current_owner = owner()
    result = {
        processes.RUN_VARIABLE: where.run,
        processes.URL_VARIABLE: where.folder,
        processes.TARGET_VARIABLE: KIND,
        "HEADWAY_DIR": where.dir,
        "HEADWAY_CLIENT_URL": where.url,
        "HEADWAY_CLIENT": socket.gethostname() if where.mirrored else "",
        processes.OWNER_VARIABLE: current_owner.id,
        processes.OWNER_NAME_VARIABLE: current_owner.name,
    }
    limit = lifetime_s(plan)
    return result if limit is None else {**result, "HEADWAY_EXPIRES": str(int(time.time() + limit))}


def environment(plan: Plan, where: Layout, node: int, addresses: Sequence[str]) -> dict[str, str]:
    place = where.place(node)
    variables = {
        **labels(plan, where),
        "HEADWAY_CODE_DIR": f"{place}/code",
        "HEADWAY_SPOOL": f"{place}/spool",
        "HEADWAY_PLAN_FILE": f"{place}/{PLAN_FILE}",
        "HEADWAY_PLACE": place,
        "PYTHONPATH": f"{place}/headway",  # the Headway that made the plan, whatever version the interpreter has
        "PYTHONUNBUFFERED": "1",
    }
    variables |= {name: os.environ[name] for name in INDEX_VARIABLES if os.environ.get(name)}
    variables |= {
        name: os.environ[name]
        for cloud in docker_secrets.clouds_of(plan.job).values()
        for name in cloud.plain
        if os.environ.get(name) and name != "AWS_PROFILE"
    }
    if len(addresses) > 1:
        # One port per run, because runs may share hosts.
        port = 12000 + int(where.key, 16) % 5000 * 4 + sum(map(ord, where.run)) % 2 * 2
        variables |= {"HEADWAY_HOSTS": ",".join(addresses), "HEADWAY_NODE": str(node), "HEADWAY_MASTER_PORT": str(port)}
    return variables


def resolve_secrets(plan: Plan) -> tuple[dict[str, str], dict[str, str]]:
    """Resolve the secrets to send: values for the supervisor only, and credential files by their variables."""
    references = {name: str(secret["ref"]) for name, secret in plan.job.get("secrets", {}).items()}
    values = {name: resolve(ref) for name, ref in references.items() if parse(ref).kind in CLIENT_SIDE_KINDS}
    files: dict[str, str] = {}
    for cloud in docker_secrets.clouds_of(plan.job).values():
        variables, contents = docker_secrets.read_credentials(cloud, os.environ)
        values = {**variables, **values}
        files |= {cloud.files[name][0]: content.decode() for name, content in contents.items()}
    return values, files


def secret_references(job: Mapping[str, Any]) -> dict[str, str]:
    """Return where the values sent over standard input come from, never the values."""
    clouds = docker_secrets.clouds_of(job).values()
    found = {name: f"env:{name}, where set" for cloud in clouds for name in cloud.secret}
    found |= {
        variable: f"file:${variable} or {default}, where there"
        for cloud in clouds
        for variable, default in cloud.files.values()
    }
    return {**found, **{name: str(secret["ref"]) for name, secret in job.get("secrets", {}).items()}}


def lifetime_s(plan: Plan) -> float | None:
    """Return the time limit that the watchdog enforces, including set-up, or None for no limit."""
    budget = plan.limits.budget_s
    return None if budget is None else budget + plan.limits.grace_s + END_RECORD_S + SETUP_S


def headway_requirements(plan: Plan) -> str:
    """Return the requirements of Headway's wheel.

    The wheel is in the local cache, or in the outputs where another user's run stored it.
    """
    wheel = wheel_path(plan.code.wheel)
    if not wheel.exists():
        open_store(str(wheel.parent)).write(wheel.name, _code(plan, wheel.name))
    return wheel_requirements(wheel, extras(plan.job))


def _code(plan: Plan, name: str) -> bytes:
    """Read an archive or wheel from the local cache, or from where the launcher stored it."""
    cached = archive_path(plan.code.sha256) if name.endswith(".tar.gz") else wheel_path(name)
    cached = runtime_path(name) if name == plan.code.runtime else cached
    try:
        return cached.read_bytes()
    except OSError:
        return open_store(join(str(plan.job["outputs"]), "code")).read(name)
