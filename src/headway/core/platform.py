"""Headway's state folder, identities of processes, and the variable HEADWAY_TIMING.

The state folder holds only what can be made again (run index, packaged code), never a run's only copy.
"""

from __future__ import annotations

import os
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


# HEADWAY_TIMING=renew=1,halt=0.5 sets intervals and limits of the supervisor and of the Kubernetes target, for tests
# and for unusual environments. docs/environment.md says what each name means; its readers hold the defaults.


TIMING = "HEADWAY_TIMING"
_TIMING_NAMES: Mapping[str, type[float] | type[int]] = {
    "renew": float,
    "restart_pause": float,
    "mirror": float,
    "peers": float,
    "flush": float,
    "halt": float,
    "same_step_crashes": int,
    "reaper_poll": float,
    "reaper_wait": float,
    "fuse": int,
}


def timing(env: Mapping[str, str]) -> dict[str, float]:
    """Return what HEADWAY_TIMING sets. Raises BadInput for an unknown name or a value that is not a positive number."""
    return dict(_timing_of(item.strip()) for item in str(env.get(TIMING, "")).split(",") if item.strip())


def timing_with(env: Mapping[str, str], **changes: float) -> str:
    """Return the value of HEADWAY_TIMING that sets `changes` beside what `env` sets already."""
    return ",".join(f"{name}={value:g}" for name, value in {**timing(env), **changes}.items())


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
