"""Start and stop the watcher process of a run over ssh (headway.launcher.machine_watcher).

Its log is guardian.log, in the run's local folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from headway.core import platform
from headway.rundir.status import local_dir
from headway.storage import is_same_folder, open_store
from headway.targets.local import processes
from headway.targets.ssh.options import KIND

_PID_FILE = "guardian.json"


def start(url: str) -> None:
    """Start the watcher of this run, unless it is running."""
    run_dir = local_dir(url, KIND)
    if _watcher_pid(url) is not None:
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    with open(run_dir / "guardian.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "headway.launcher.machine_watcher", url],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=processes.environment(os.environ, {}),
            start_new_session=True,
        )
    record = {
        "pid": process.pid,
        "started": platform.process_start_time(process.pid),
        "boot": platform.pid_namespace_id(),
    }
    open_store(str(run_dir)).write(_PID_FILE, json.dumps(record).encode())


def stop(url: str) -> None:
    """Stop the watcher, once the run is torn down."""
    run_dir = local_dir(url, KIND)
    pid = _watcher_pid(url)
    if pid is not None and pid != os.getpid():
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
    if pid != os.getpid():
        (run_dir / _PID_FILE).unlink(missing_ok=True)


def _watcher_pid(url: str) -> int | None:
    """Return the pid of the run's watcher if it is alive.

    In a copied folder the record names the original's, which does not count.
    """
    try:
        record = json.loads((local_dir(url, KIND) / _PID_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    pid = int(record["pid"])
    alive = record["boot"] == platform.pid_namespace_id() and platform.is_alive(pid, record["started"])
    return pid if alive and is_same_folder(_watched_url(pid), url) else None


def _watched_url(pid: int) -> str:
    """Return the URL that a watcher was started with."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").rpartition(b"\0")[2])
    except OSError:
        return ""
