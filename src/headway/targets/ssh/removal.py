"""Ending a run on its machines: ask, wait, force, fetch what it wrote, remove, give back, look again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headway.targets.base import Handle
from headway.targets.here import FAREWELL_S, LEAVING_S, grace_s
from headway.targets.ssh.host import Host
from headway.targets.ssh.layout import Layout
from headway.targets.ssh.openssh import Unreachable

FORCE_S = 15.0
FIRST_LOOK_S, LONGEST_LOOK_S = 0.05, 1.0
Process = dict[str, Any]


def end(hosts: Sequence[Host], where: Layout, handle: Handle, *, ended: bool) -> tuple[list[str], list[str]]:
    """SIGTERM to each root, once; what is left after the grace period is killed. What was seen, and what stays.

    The supervisors of several nodes end each other in good order: they are asked at the same time.
    """
    seen: dict[tuple[str, int, str], str] = {}
    asked: set[tuple[str, int, str]] = set()

    def remaining() -> list[tuple[Host, Process]]:
        found = [(host, process) for node, host in enumerate(hosts) for process in _running(host, where, node)]
        for host, process in found:
            seen.setdefault(_identity(host, process), f"process {process['pid']} ({process['name']}) on {host}")
        return found

    patience = LEAVING_S if ended else grace_s(handle) + FAREWELL_S
    ask_after = LEAVING_S / 2 if ended else 0.0
    for left, waited_s in _looks(remaining, ask_after + patience):
        if waited_s >= ask_after:
            for host, process in _roots(left):
                if _identity(host, process) not in asked:
                    asked.add(_identity(host, process))
                    _signal(host, [process], signal.SIGTERM)
    for left, _ in _looks(remaining, FORCE_S):
        for host in hosts:
            _signal(host, [process for other, process in left if other is host], signal.SIGKILL)
    stayed = {_identity(host, process) for host, process in remaining()}
    return list(seen.values()), [name for key, name in seen.items() if key in stayed]


def clear(host: Host, where: Layout, node: int) -> list[str]:
    """Everything of this run on that host's disk; what could not be removed."""
    paths = [where.place(node), *([where.folder] if where.mirrored else [])]
    return [f"{path} on {host}" for path in host.ask("remove", paths=paths)["left"]]


def release(host: Host, where: Layout, node: int) -> None:
    """Outputs are safe: `self_down` may run now. The machine may be gone before it has answered."""
    try:
        host.ask("release", place=where.place(node))
        limit = time.monotonic() + FORCE_S
        while time.monotonic() < limit and host.ask("state", place=where.place(node), url=where.folder)["watched"]:
            time.sleep(FIRST_LOOK_S)
        clear(host, where, node)  # a `self_down` that leaves the machine up leaves nothing of the run on it
    except Unreachable:
        pass


def _running(host: Host, where: Layout, node: int) -> list[Process]:
    """Processes of the run, without a watchdog that only waits to run `self_down`."""
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


def _looks(
    remaining: Callable[[], list[tuple[Host, Process]]], within_s: float
) -> Iterator[tuple[list[tuple[Host, Process]], float]]:
    """What is left, and how long it has been waited for, again and again until nothing is or the time is over."""
    began, pause = time.monotonic(), FIRST_LOOK_S
    while (waited_s := time.monotonic() - began) < within_s and (left := remaining()):
        yield left, waited_s
        time.sleep(pause)
        pause = min(LONGEST_LOOK_S, pause * 1.3)
