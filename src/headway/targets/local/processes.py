"""Find a run's processes on this machine by the labels in their environment (/proc), and stop them.

Everything that a run starts inherits the labels. A process that cleared its environment is found as a descendant, or by
its session.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headway.core import processes
from headway.core.types import Receipt
from headway.storage import same_place

RUN, URL, TARGET = "HEADWAY_RUN", "HEADWAY_RUN_URL", "HEADWAY_TARGET"
OWNER, OWNER_NAME = "HEADWAY_OWNER", "HEADWAY_OWNER_NAME"


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
        return processes.alive(self.pid, self.started)

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
        pid for pid, process in everything.items() if process.session == session or carries(pid, url=url, target=target)
    }
    chosen |= {pid for pid in everything if any(up in chosen for up in _ancestors(pid, everything))}
    chosen -= {os.getpid()}  # a script may take down its own run: never include the caller
    return [everything[pid] for pid in sorted(chosen)]


def roots(found: Iterable[Process]) -> list[Process]:
    """Return the processes whose parent is not in the list: the supervisor, or ranks that outlived it."""
    found = list(found)
    pids = {process.pid for process in found}
    return [process for process in found if process.parent not in pids]


def labels(*, target: str) -> list[dict[str, str]]:
    """Return the labels found on this user's processes, once per run and owner."""
    seen: dict[tuple[str, str], dict[str, str]] = {}
    for process in _scan():
        carried = processes.environment(process.pid) or {}
        if carried.get(TARGET) == target and carried.get(URL) and carried.get(RUN):
            seen.setdefault((carried[URL], carried.get(OWNER, "")), carried)
    return [seen[key] for key in sorted(seen)]


def _scan() -> Iterator[Process]:
    """Scan this user's live processes (for root, all users') in this pid namespace, which excludes containers."""
    mine, namespace = os.geteuid(), _namespace("self")
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            if mine not in (0, entry.stat().st_uid) or _namespace(entry.name) != namespace:
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


def carries(pid: int, *, url: str, target: str) -> bool | None:
    """Return whether a process carries the label of the run at `url`; None if it is another user's and unreadable."""
    carried = processes.environment(pid)
    if carried is None:
        return None
    return carried.get(TARGET) == target and same_place(carried.get(URL, ""), url)


def _ancestors(pid: int, everything: dict[int, Process]) -> Iterator[int]:
    seen = {pid}
    while pid in everything and everything[pid].parent not in seen:
        pid = everything[pid].parent
        seen.add(pid)
        yield pid


# Stopping processes: SIGTERM, wait, SIGKILL. The receipt reports what the last scan shows.


FORCE_S = 10.0  # for killed processes to exit: one in uninterruptible sleep exits only when its disk answers
FIRST_LOOK_S, LONGEST_LOOK_S = 0.02, 0.5  # back-off: a quick exit is seen quickly, a long wait costs little


def take_down(
    run: str,
    listing: Callable[[], list[Process]],
    *,
    known: Iterable[Process] = (),
    ask_after_s: float = 0.0,
    grace_s: float,
) -> Receipt:
    """Send SIGTERM once to each root process, and SIGKILL to what is left after `grace_s`.

    Processes that appear meanwhile are included.

    `known` lists processes recorded as created: the receipt contains them even if they are long gone. Processes that
    are about to exit by themselves get `ask_after_s` before the SIGTERM.
    """
    seen = {_identity(process): process for process in known}
    asked: set[tuple[int, str]] = set()

    def remaining() -> list[Process]:
        # Track every process seen once until it exits, even if its label becomes unreadable.
        for process in listing():
            seen.setdefault(_identity(process), process)
        return [process for process in seen.values() if process.alive]

    for left, waited_s in _looks(remaining, within_s=ask_after_s + grace_s):
        for process in roots(left) if waited_s >= ask_after_s else []:
            if _identity(process) not in asked:
                asked.add(_identity(process))
                process.send(signal.SIGTERM)
    for left, _ in _looks(remaining, within_s=FORCE_S):
        for process in left:
            process.send(signal.SIGKILL)
    stayed = {_identity(process) for process in remaining()}
    return Receipt(
        run=run,
        created=tuple(map(str, seen.values())),
        removed=tuple(str(process) for key, process in seen.items() if key not in stayed),
        left=tuple(str(process) for key, process in seen.items() if key in stayed),
    )


def _identity(process: Process) -> tuple[int, str]:
    return process.pid, process.started


def _looks(remaining: Callable[[], list[Process]], *, within_s: float) -> Iterator[tuple[list[Process], float]]:
    """Poll with back-off; yield what remains and the seconds waited, until nothing remains or `within_s` has passed."""
    began, pause = time.monotonic(), FIRST_LOOK_S
    while (waited_s := time.monotonic() - began) < within_s and (left := remaining()):
        yield left, waited_s
        time.sleep(pause)
        pause = min(LONGEST_LOOK_S, pause * 1.3)
