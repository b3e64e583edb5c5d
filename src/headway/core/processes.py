"""Who a process is, beyond its number: Linux reuses pids, so a pid alone proves nothing. Reads /proc only."""

from __future__ import annotations

import os
from pathlib import Path


def here() -> str:
    """This boot of this kernel in this pid namespace: pids can be compared only within it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux, or a hardened container: nobody can compare pids with us
        return f"unknown/{os.getpid()}"


def started(pid: int) -> str:
    """When the kernel started it, in clock ticks since boot; empty when there is none, or only its corpse."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the command in parentheses may contain anything
    return "" if fields[0] in ("Z", "X") else fields[19]


def alive(pid: int, since: str) -> bool:
    """True while the very process that had `since` as its start time runs."""
    return bool(since) and started(pid) == since


def environment(pid: int) -> dict[str, str] | None:
    """The HEADWAY_ variables that it was started with; None where it is gone, or not for this user to look at."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item.startswith(b"HEADWAY_"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
