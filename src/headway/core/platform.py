"""Headway's state folder, identities of processes, and the variable HEADWAY_TIMING.

The state folder holds only what can be made again (run index, packaged code), never a run's only copy.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from headway.core.errors import BadInput


def state_dir() -> Path:
    """Return $HEADWAY_HOME, or `headway` in the user's XDG state folder. Does not create it."""
    chosen = os.environ.get("HEADWAY_HOME")
    if chosen:
        return Path(chosen).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "headway"


def make_private(folder: Path) -> None:
    """Create a folder that only this user may open, whatever the umask. An existing one is left as it is.

    Where the parent is shared with a group (`chmod g+ws`), the group may use it too.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    parent = folder.parent.stat().st_mode
    if parent & stat.S_IWGRP and parent & stat.S_ISGID and not parent & stat.S_ISVTX:
        folder.chmod(0o2770)


def make_state_dir() -> None:
    """Create the state folder, private to this user; correct the modes of one that an earlier version created."""
    folder = state_dir()
    try:
        make_private(folder)
        if not os.environ.get("HEADWAY_HOME") and folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError:
        pass  # whoever writes there reports it


# The interpreter that Headway brings into an image (see packaging/supervisor_runtime.py) has this file in its prefix.


MARKER = "headway-runtime.json"


def brought_runtime() -> Path | None:
    """Return the folder of the interpreter that Headway brought along, if it runs this process; else None."""
    prefix = Path(sys.prefix)
    return prefix if (prefix / MARKER).is_file() else None


def python_command() -> list[str]:
    """Return the command that starts this interpreter again: by its own loader if it was brought along."""
    runtime = brought_runtime()
    if runtime is None:
        return [sys.executable]
    return [f"{runtime}/lib/ld.so", "--library-path", f"{runtime}/lib", f"{runtime}/bin/python3"]


# Identify processes by pid and start time: Linux reuses pids, so a pid alone proves nothing. Reads /proc only.


def pid_namespace_id() -> str:
    """Identify this boot and pid namespace: pids can be compared only within one."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux, or a hardened container: a name that no other process has, so no pids are compared
        return f"unknown/{os.getpid()}"


def process_start_time(pid: int) -> str:
    """Return a process's start time in clock ticks since boot; empty when it does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the command in parentheses may contain anything
    return "" if fields[0] in ("Z", "X") else fields[19]


def is_alive(pid: int, start_time: str) -> bool:
    """Return whether the process that started at `start_time` still runs."""
    return bool(start_time) and process_start_time(pid) == start_time


def headway_variables(pid: int) -> dict[str, str] | None:
    """Return the HEADWAY_ variables that a process was started with; None if it is gone or not readable by us."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item.startswith(b"HEADWAY_"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def oom_kills() -> int | None:
    """Return how many processes the kernel has killed for lack of memory since boot; None where it does not tell."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    if len(lines) < _MIN_VMSTAT_LINES:  # an emulated kernel, whose counters stay at 0
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


_MIN_VMSTAT_LINES = 50


# HEADWAY_TIMING=renew=1,halt=0.5 sets intervals and limits of the supervisor and of the Kubernetes target, for tests
# and for unusual environments. docs/environment.md says what each name means; its readers hold the defaults.


TIMING = "HEADWAY_TIMING"
_TIMING_NAMES: Mapping[str, type[float] | type[int]] = {
    "renew": float,
    "restart_pause": float,
    "mirror": float,
    "peers": float,
    "release": float,
    "flush": float,
    "halt": float,
    "stall": float,
    "same_step_crashes": int,
    "reaper_poll": float,
    "reaper_wait": float,
    "fuse": int,
}

_OLD_TIMING_VARIABLES = {  # without HEADWAY_: variables that HEADWAY_TIMING replaced
    "RENEW_S": "renew",
    "RESTART_PAUSE_S": "restart_pause",
    "MIRROR_S": "mirror",
    "PEERS_S": "peers",
    "FLUSH_S": "flush",
    "HALT_S": "halt",
    "SAME_STEP_CRASHES": "same_step_crashes",
    "LOOK_S": "reaper_poll",
    "BIRTH_S": "reaper_wait",
    "FUSE_S": "fuse",
}


def timing(env: Mapping[str, str]) -> dict[str, float]:
    """Return what HEADWAY_TIMING sets. Raises BadInput for an unknown name or a value that is not a positive number."""
    return dict(_timing_of(item.strip()) for item in str(env.get(TIMING, "")).split(",") if item.strip())


def timing_with(env: Mapping[str, str], **changes: float) -> str:
    """Return the value of HEADWAY_TIMING that sets `changes` beside what `env` sets already."""
    return ",".join(f"{name}={value:g}" for name, value in {**timing(env), **changes}.items())


def ignored_timing(env: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that HEADWAY_TIMING replaced and that is still set."""
    found = [(f"HEADWAY_{old}", name) for old, name in _OLD_TIMING_VARIABLES.items() if f"HEADWAY_{old}" in env]
    return [f"{old} is ignored: write {TIMING}={name}={env[old]}" for old, name in found]


def _timing_of(item: str) -> tuple[str, float]:
    name, _, text = item.partition("=")
    if name not in _TIMING_NAMES:
        raise BadInput(
            f"{TIMING} has no {name!r}", where=TIMING, fix=f"set NAME=NUMBER,… with {', '.join(_TIMING_NAMES)}"
        )
    kind = _TIMING_NAMES[name]
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        wanted = "a whole number" if kind is int else "a number of seconds"
        raise BadInput(f"{TIMING}: {name} is {text!r}, not {wanted}", where=TIMING, fix=f"set {TIMING}={name}=10, say")
    return name, value
