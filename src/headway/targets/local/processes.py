"""Find a run's processes on this machine by the labels in their environment (/proc), and stop them.

Everything that a run starts inherits the labels. A process that cleared its environment is found as a descendant, or by
its session.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core import platform
from headway.core.errors import DiskFull, HeadwayError, TargetError
from headway.core.plan import RUN
from headway.core.retry import Backoff, poll_while
from headway.core.types import Receipt
from headway.packaging.code import unpack
from headway.rundir.submission import owner
from headway.storage import is_same_folder, local_path, open_store

RUN_VARIABLE, URL_VARIABLE, TARGET_VARIABLE = "HEADWAY_RUN", "HEADWAY_RUN_URL", "HEADWAY_TARGET"
OWNER_VARIABLE, OWNER_NAME_VARIABLE = "HEADWAY_OWNER", "HEADWAY_OWNER_NAME"


@dataclass(frozen=True, slots=True)
class Process:
    """A process as seen in one scan. Linux reuses pids; `started` tells the processes apart."""

    pid: int
    started: str
    parent: int
    session: int
    name: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name})"

    @property
    def alive(self) -> bool:
        return platform.is_alive(self.pid, self.started)

    def runs(self, module: str) -> bool:
        """Return whether it was started as `python -m module`."""
        try:
            return module.encode() in _read(f"/proc/{self.pid}/cmdline").split(b"\0")
        except OSError:
            return False

    def send(self, number: signal.Signals) -> None:
        """Signal exactly this process.

        If it is gone that is a success, and a new process with its pid is left alone.
        """
        try:
            fd = os.pidfd_open(self.pid)
        except (ProcessLookupError, PermissionError):
            return
        except OSError:  # a kernel without pidfd: a small race remains between check and signal
            if self.alive:
                os.kill(self.pid, number)
            return
        try:
            if self.alive:
                signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(fd)


def processes_of(url: str, *, target: str, leader: Process | None = None) -> list[Process]:
    """List the processes of the run at `url`: by label, by its live leader's session, and their descendants."""
    everything = {process.pid: process for process in _scan()}
    # A session id proves nothing once its leader is gone, since it may have been reused.
    session = leader.pid if leader is not None and leader.alive else None
    chosen = {
        pid
        for pid, process in everything.items()
        if process.session == session or has_label(pid, url=url, target=target)
    }
    chosen |= {pid for pid in everything if any(ancestor in chosen for ancestor in _ancestors(pid, everything))}
    chosen -= {os.getpid()}  # a script may take down its own run: never include the caller
    return [everything[pid] for pid in sorted(chosen)]


def roots(processes: Iterable[Process]) -> list[Process]:
    """Return the processes whose parent is not in the list: the supervisor, or ranks that outlived it."""
    processes = list(processes)
    pids = {process.pid for process in processes}
    return [process for process in processes if process.parent not in pids]


def labels(*, target: str) -> list[dict[str, str]]:
    """Return the labels found on this user's processes, once per run and owner."""
    seen: dict[tuple[str, str], dict[str, str]] = {}
    for process in _scan():
        variables = platform.headway_variables(process.pid) or {}
        if variables.get(TARGET_VARIABLE) == target and variables.get(URL_VARIABLE) and variables.get(RUN_VARIABLE):
            seen.setdefault((variables[URL_VARIABLE], variables.get(OWNER_VARIABLE, "")), variables)
    return [seen[key] for key in sorted(seen)]


def _scan() -> Iterator[Process]:
    """Scan this user's live processes (for root, all users') in this pid namespace, which excludes containers."""
    uid, namespace = os.geteuid(), _namespace("self")
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            if uid not in (0, entry.stat().st_uid) or _namespace(entry.name) != namespace:
                continue
            stat = _read(f"{entry.path}/stat").decode(errors="replace")
        except OSError:  # gone meanwhile, or not readable
            continue
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        fields = stat[stat.rindex(")") + 1 :].split()
        if fields[0] not in ("Z", "X"):
            yield Process(int(entry.name), fields[19], int(fields[1]), int(fields[3]), name)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _namespace(pid: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")


def has_label(pid: int, *, url: str, target: str) -> bool | None:
    """Return whether a process carries the label of the run at `url`; None if it is another user's and unreadable."""
    variables = platform.headway_variables(pid)
    if variables is None:
        return None
    return variables.get(TARGET_VARIABLE) == target and is_same_folder(variables.get(URL_VARIABLE, ""), url)


def _ancestors(pid: int, everything: dict[int, Process]) -> Iterator[int]:
    seen = {pid}
    while pid in everything and everything[pid].parent not in seen:
        pid = everything[pid].parent
        seen.add(pid)
        yield pid


# Stopping processes


FORCE_S = 10.0  # for killed processes to exit: one in uninterruptible sleep exits only when its disk answers
FIRST_POLL_S, LONGEST_POLL_S = 0.02, 0.5  # back-off: a quick exit is seen quickly, a long wait costs little


def take_down(
    run: str,
    list_processes: Callable[[], list[Process]],
    *,
    known: Iterable[Process] = (),
    signal_after_s: float = 0.0,
    grace_s: float,
) -> Receipt:
    """Send SIGTERM once to each root process, and SIGKILL to what is left after `grace_s`.

    Processes that appear meanwhile are included.

    `known` lists processes recorded as created: the receipt contains them even if they are long gone. Processes that
    are about to exit by themselves get `signal_after_s` before the SIGTERM.
    """
    seen = {_identity(process): process for process in known}
    signalled: set[tuple[int, str]] = set()

    def remaining() -> list[Process]:
        # Track every process seen once until it exits, even if its label becomes unreadable.
        for process in list_processes():
            seen.setdefault(_identity(process), process)
        return [process for process in seen.values() if process.alive]

    for left, waited_s in _poll(remaining, within_s=signal_after_s + grace_s):
        for process in roots(left) if waited_s >= signal_after_s else []:
            if _identity(process) not in signalled:
                signalled.add(_identity(process))
                process.send(signal.SIGTERM)
    for left, _ in _poll(remaining, within_s=FORCE_S):
        for process in left:
            process.send(signal.SIGKILL)
    alive = {_identity(process) for process in remaining()}
    return Receipt(
        run=run,
        created=tuple(map(str, seen.values())),
        removed=tuple(str(process) for key, process in seen.items() if key not in alive),
        left=tuple(str(process) for key, process in seen.items() if key in alive),
    )


def _identity(process: Process) -> tuple[int, str]:
    return process.pid, process.started


def _poll(remaining: Callable[[], list[Process]], *, within_s: float) -> Iterator[tuple[list[Process], float]]:
    """Poll with back-off; yield what remains and the seconds waited, until nothing remains or `within_s` has passed."""
    return poll_while(remaining, Backoff(FIRST_POLL_S, LONGEST_POLL_S, factor=1.3), within_s=within_s)


# Starting the supervisor


SUPERVISOR = "headway.runtime.worker"
PID_FILE, LOG_FILE, LOCK_FILE = "supervisor.pid", "supervisor.log", "lock"

# The shell itself may run inside a run, torchrun or a Slurm allocation: this run must not inherit their topology.
_NOT_INHERITED = (
    "HEADWAY_RUN", "HEADWAY_RUN_URL", "HEADWAY_ATTEMPT", "HEADWAY_PLAN", "HEADWAY_RUN_DIR", "HEADWAY_RESUME_DIR",
    "HEADWAY_DEADLINE_S", "HEADWAY_GRACE_S", "HEADWAY_CONTROL_FD", "HEADWAY_CODE_DIR", "HEADWAY_SPOOL",
    "HEADWAY_CONTROL_INODE",
    "HEADWAY_TARGET", "HEADWAY_SUPERVISOR", "HEADWAY_HOSTS", "HEADWAY_NODE", "HEADWAY_STATEFULSET", "HEADWAY_AFTER_END",
    "HEADWAY_OWNER", "HEADWAY_OWNER_NAME",
    "HEADWAY_PLAN_FILE", "HEADWAY_CLIENT_URL", "HEADWAY_SPENT_S", "HEADWAY_PARTS",
    "HEADWAY_IN_PLACE", "HEADWAY_ROLE", "HEADWAY_PLACE", "HEADWAY_MASTER_PORT",
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG", "CLUSTER_SPEC", "TORCHELASTIC_RUN_ID",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NODELIST",
)  # fmt: skip


def fill_run_name(body: Any, run: str) -> Any:
    """Replace `{RUN}` by the run's name in a request's body."""
    if isinstance(body, str):
        return body.replace(RUN, run)
    if isinstance(body, Mapping):
        return {key: fill_run_name(value, run) for key, value in body.items()}
    if isinstance(body, list | tuple):
        return [fill_run_name(value, run) for value in body]
    return body


def add_owner(body: Mapping[str, Any]) -> dict[str, Any]:
    """Add the owner's labels to the environment in a request's body."""
    current_owner = owner()
    return {**body, "env": {**body["env"], OWNER_VARIABLE: current_owner.id, OWNER_NAME_VARIABLE: current_owner.name}}


@contextmanager
def start_lock(run_dir: Path) -> Iterator[None]:
    """Lock the start of a run. The kernel releases the lock if this process dies.

    A failed start removes `run_dir` if it is new.
    """
    created = not run_dir.exists()
    with map_os_errors(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(run_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    except BaseException:  # Ctrl-C too
        if created:  # keep what earlier attempts left in it
            shutil.rmtree(run_dir, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def is_starting(run_dir: Path) -> bool:
    """Return whether a process is starting this run now."""
    try:
        lock = os.open(run_dir / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def start(
    body: Mapping[str, Any], *, code_sha256: str, prepare: Callable[[Path], object] = lambda code: None
) -> Process:
    """Unpack the code, start the process and write its pid file. If any of these fails, no process is left.

    Without `code_sha256` nothing is unpacked: the project runs in place. `prepare` is called with the unpacked code.
    """
    run_dir = Path(body["cwd"])
    process = None
    try:
        with map_os_errors(run_dir):
            if code_sha256:
                unpack_code(body["code"]["from"], code_sha256, Path(body["code"]["to"]))
                prepare(Path(body["code"]["to"]))
            Path(body["env"]["HEADWAY_SPOOL"]).mkdir(exist_ok=True)
            process = _popen(body)
            return _write_pid_file(run_dir, process.pid)
    except BaseException:  # Ctrl-C too: an unrecorded process could not be stopped
        if process is not None:
            process.kill()
            process.wait()
        raise
    finally:
        if process is not None:
            # Reap the process while this one lives; after that, init does.
            threading.Thread(target=process.wait, daemon=True).start()


def read_supervisor(run_dir: Path) -> Process | None:
    """Return the supervisor started last, alive or not; None if there was none since this machine booted."""
    record = _read_pid_file(run_dir)
    if record.get("boot") != platform.pid_namespace_id():
        return None
    pid = int(record["pid"])
    return Process(pid, str(record["started"]), 0, pid, "supervisor")


def supervisor_host(run_dir: Path) -> str:
    return str(_read_pid_file(run_dir).get("host", ""))


def last_line(run_dir: Path) -> str:
    """Return the last line that the supervisor's process printed, to show why it is gone."""
    try:
        with open(run_dir / LOG_FILE, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def remove_run_dir(run_dir: Path, *, inside_run: bool) -> None:
    """Remove what is useless after the end. A local run folder keeps its logs; a bucket has them already."""
    (run_dir / PID_FILE).unlink(missing_ok=True)
    # The supervisor removes the script's files and their list once all are in the bucket.
    unsaved = (run_dir / "files").exists() or (run_dir / "workdir.json").exists()
    if not inside_run and not unsaved:
        shutil.rmtree(run_dir, ignore_errors=True)


def environment(shell: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Return the supervisor's environment: this shell's, without another run's variables, plus `added`."""
    return {**{key: value for key, value in shell.items() if key not in _NOT_INHERITED}, **added}


@contextmanager
def map_os_errors(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except HeadwayError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull("no space left to start the run", where=str(run_dir), fix="df -h, then try again") from None
        where = str(error.filename or run_dir)
        raise TargetError(f"cannot start the run here: {error.strerror or error}", where=where) from None


def unpack_code(archive: str, sha256: str, to: Path) -> None:
    """Unpack the planned code after checking its hash. Files that a script wrote there in an earlier attempt stay."""
    path = local_path(archive)
    if path is not None:
        unpack(path, sha256, to)
        return
    outputs, _, name = archive.rpartition("/")
    with tempfile.NamedTemporaryFile(dir=to.parent, prefix="code-", suffix=".tar.gz") as copy:
        copy.write(open_store(outputs).read(name))
        copy.flush()
        unpack(Path(copy.name), sha256, to)


def _popen(body: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    run_dir = Path(body["cwd"])
    with open(run_dir / LOG_FILE, "ab") as log:
        return subprocess.Popen(
            list(body["argv"]),
            cwd=run_dir,
            env=environment(os.environ, body["env"]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # no terminal: its hang-up and Ctrl-C do not reach the run
        )


def _write_pid_file(run_dir: Path, pid: int) -> Process:
    since = platform.process_start_time(pid)
    record = {"pid": pid, "started": since, "boot": platform.pid_namespace_id(), "host": socket.gethostname()}
    open_store(str(run_dir)).write(PID_FILE, (json.dumps(record, sort_keys=True) + "\n").encode())
    return Process(pid, since, os.getpid(), pid, "supervisor")


def _read_pid_file(run_dir: Path) -> dict[str, Any]:
    try:
        record = json.loads((run_dir / PID_FILE).read_bytes())
    except (OSError, ValueError):  # missing or damaged: the run is found by label instead
        return {}
    return record if isinstance(record, dict) and record.keys() >= {"pid", "started", "boot", "host"} else {}
