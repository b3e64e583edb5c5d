"""Start the supervisor on this machine as a process that outlives its parent, and read its record later."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.core import processes
from headway.core.errors import DiskFull, HeadwayError, TargetError
from headway.core.plan import RUN
from headway.packaging.code import unpack
from headway.rundir.submission import owner
from headway.storage import local_path, open_store
from headway.targets.local import processes as local_processes
from headway.targets.local.processes import Process

SUPERVISOR = "headway.runtime.worker"
PID, LOG, LOCK = "supervisor.pid", "supervisor.log", "lock"

# The shell itself may run inside a run, torchrun or a Slurm allocation: this run must not inherit their topology.
_NOT_INHERITED = (
    "HEADWAY_RUN", "HEADWAY_RUN_URL", "HEADWAY_ATTEMPT", "HEADWAY_PLAN", "HEADWAY_RUN_DIR", "HEADWAY_RESUME_DIR",
    "HEADWAY_DEADLINE_S", "HEADWAY_GRACE_S", "HEADWAY_CONTROL_FD", "HEADWAY_CODE_DIR", "HEADWAY_SPOOL",
    "HEADWAY_TARGET", "HEADWAY_SUPERVISOR", "HEADWAY_HOSTS", "HEADWAY_NODE", "HEADWAY_STATEFULSET", "HEADWAY_AFTER_END",
    "HEADWAY_OWNER", "HEADWAY_OWNER_NAME",
    "HEADWAY_PLAN_FILE", "HEADWAY_CLIENT_URL", "HEADWAY_SPENT_S", "HEADWAY_PARTS",
    "HEADWAY_ROLE", "HEADWAY_PLACE", "HEADWAY_MASTER_PORT",
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG", "CLUSTER_SPEC", "TORCHELASTIC_RUN_ID",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NODELIST",
)  # fmt: skip


def named(body: Any, run: str) -> Any:
    """Replace `{RUN}` by the run's name in a request's body."""
    if isinstance(body, str):
        return body.replace(RUN, run)
    if isinstance(body, Mapping):
        return {key: named(value, run) for key, value in body.items()}
    if isinstance(body, list | tuple):
        return [named(value, run) for value in body]
    return body


def owned(body: Mapping[str, Any]) -> dict[str, Any]:
    """Add the owner's labels to the environment in a request's body."""
    us = owner()
    return {**body, "env": {**body["env"], local_processes.OWNER: us.id, local_processes.OWNER_NAME: us.name}}


@contextmanager
def exclusively(place: Path) -> Iterator[None]:
    """Lock the start of a run. The kernel releases the lock if this process dies.

    A failed start removes `place` if it is new.
    """
    fresh = not place.exists()
    with translated(place):
        place.mkdir(parents=True, exist_ok=True)
        lock = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    except BaseException:  # Ctrl-C too
        if fresh:  # keep what earlier attempts left in it
            shutil.rmtree(place, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def starting(place: Path) -> bool:
    """Return whether a process is starting this run now."""
    try:
        lock = os.open(place / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def start(body: Mapping[str, Any], *, code_sha256: str) -> Process:
    """Unpack the code, start the process and write its pid file. If any of these fails, no process is left."""
    place = Path(body["cwd"])
    process = None
    try:
        with translated(place):
            bring_code(body["code"]["from"], code_sha256, Path(body["code"]["to"]))
            Path(body["env"]["HEADWAY_SPOOL"]).mkdir(exist_ok=True)
            process = _popen(body)
            return _record(place, process.pid)
    except BaseException:  # Ctrl-C too: an unrecorded process could not be stopped
        if process is not None:
            process.kill()
            process.wait()
        raise
    finally:
        if process is not None:
            # Reap the process while this one lives; after that, init does.
            threading.Thread(target=process.wait, daemon=True).start()


def recorded(place: Path) -> Process | None:
    """Return the supervisor started last, alive or not; None if there was none since this machine booted."""
    known = _pid_file(place)
    if known.get("boot") != processes.here():
        return None
    pid = int(known["pid"])
    return Process(pid, str(known["started"]), 0, pid, "supervisor")


def recorded_host(place: Path) -> str:
    return str(_pid_file(place).get("host", ""))


def last_line(place: Path) -> str:
    """Return the last line that the supervisor's process printed, to show why it is gone."""
    try:
        with open(place / LOG, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            printed = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(printed) if line.strip()), "")


def clear(place: Path, *, inside_run: bool) -> None:
    """Remove what is useless after the end. A local run folder keeps its logs; a bucket has them already."""
    (place / PID).unlink(missing_ok=True)
    # The supervisor removes the script's files and their list once all are in the bucket.
    unsaved = (place / "files").exists() or (place / "workdir.json").exists()
    if not inside_run and not unsaved:
        shutil.rmtree(place, ignore_errors=True)


def environment(shell: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the supervisor's environment: this shell's, without another run's variables, plus `own`."""
    return {**{key: value for key, value in shell.items() if key not in _NOT_INHERITED}, **own}


@contextmanager
def translated(place: Path) -> Iterator[None]:
    try:
        yield
    except HeadwayError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull("no space left to start the run", where=str(place), fix="df -h, then try again") from None
        where = str(error.filename or place)
        raise TargetError(f"cannot start the run here: {error.strerror or error}", where=where) from None


def bring_code(archive: str, sha256: str, to: Path) -> None:
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
    place = Path(body["cwd"])
    with open(place / LOG, "ab") as log:
        return subprocess.Popen(
            list(body["argv"]),
            cwd=place,
            env=environment(os.environ, body["env"]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # no terminal: its hang-up and Ctrl-C do not reach the run
        )


def _record(place: Path, pid: int) -> Process:
    since = processes.started(pid)
    known = {"pid": pid, "started": since, "boot": processes.here(), "host": socket.gethostname()}
    open_store(str(place)).write(PID, (json.dumps(known, sort_keys=True) + "\n").encode())
    return Process(pid, since, os.getpid(), pid, "supervisor")


def _pid_file(place: Path) -> dict[str, Any]:
    try:
        known = json.loads((place / PID).read_bytes())
    except (OSError, ValueError):  # missing or damaged: the run is found by label instead
        return {}
    return known if isinstance(known, dict) and known.keys() >= {"pid", "started", "boot", "host"} else {}
