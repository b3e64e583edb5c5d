"""Start, read, signal and reap the rank processes of one node. Linux only.

A rank has its own session, is killed by the kernel when the supervisor dies, and has the supervisor's label in its
environment. Also the reaping of orphans that become children of process 1.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headway.core import platform
from headway.core.errors import HeadwayError
from headway.core.retry import poll
from headway.storage.redaction import Redactor
from headway.supervisor.event_loop import Loop
from headway.supervisor.log_pipeline import Spool

CONTROL_FD, CONTROL_INODE = "HEADWAY_CONTROL_FD", "HEADWAY_CONTROL_INODE"
SUPERVISOR_VARIABLE = (
    "HEADWAY_SUPERVISOR"  # names the supervisor a process descends from: orphan_reaper.py looks for it
)
_MODULE_DIR = Path(__file__).parent
_PR_SET_CHILD_SUBREAPER = 36
_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 1 << 20
_READ_BYTES = 256 << 10
_MAX_RECORD_BYTES = 1 << 20
_TICK_S = 0.9

ControlRecord = dict[str, Any]
OutputHandler = Callable[[int, bytes], None]
RecordHandler = Callable[[int, ControlRecord], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """The command line, environment and working folder of one rank."""

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class RankExit:
    """How a rank ended. `code` follows the shell's convention: 128 + the signal's number for a killed process."""

    rank: int
    code: int
    signal: str = ""
    step: int | None = None  # the last one it reported
    lines: tuple[str, ...] = ()
    seconds: float = 0.0  # how long it ran
    exception: str = ""  # the exception that ended it and its line in the project: ValueError at train.py:6
    stalled: str = ""  # how it made no progress, if that is why the ranks were ended
    end_run: bool = False  # it must not be started again, by the job's `on_stall: stop`
    killed_by: str = ""  # who sent SIGKILL: "headway", or "another process" if the kernel reports no lack of memory

    @property
    def failed(self) -> bool:
        return self.code not in (0, 143)

    def __str__(self) -> str:
        if self.stalled:
            return f"stalled: {self.stalled}"
        if self.signal == "SIGKILL" and self.killed_by == "headway":
            return f"rank {self.rank} did not exit in time, so Headway killed it"
        if self.signal == "SIGKILL" and self.killed_by:
            return f"rank {self.rank} was killed by {self.killed_by} (SIGKILL); the kernel reports no lack of memory"
        if self.signal == "SIGKILL":
            return f"rank {self.rank} was killed (SIGKILL), usually by the kernel because memory ran out"
        how = f"was killed by {self.signal}" if self.signal else f"exited with code {self.code}"
        return f"rank {self.rank} {how}"


class OrphanReaper:
    """Handle of the process that kills what a killed supervisor leaves behind. See orphan_reaper.py."""

    def __init__(self) -> None:
        self.label = f"{os.getpid()}-{platform.process_start_time(os.getpid())}"
        self._process = subprocess.Popen(
            [*platform.python_command(), "-I", "-S", str(_MODULE_DIR / "orphan_reaper.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            start_new_session=True,  # a signal to the supervisor's group must not reach it
        )
        self.pid = self._process.pid
        self.send(f"label {SUPERVISOR_VARIABLE}={self.label}")

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            pass  # the reaper was killed: the kernel still kills the ranks, but not their children, if we die

    def close(self) -> None:
        self.send("bye")
        self._process.communicate()


class Rank:
    """One running rank: its process, its output and its control pipe."""

    def __init__(
        self,
        command: Command,
        log: Spool,
        loop: Loop,
        on_output: OutputHandler,
        on_record: RecordHandler,
        redact: Redactor,
    ) -> None:
        self.rank, self.log, self.step = command.rank, log, None
        self._loop, self._on_output, self._on_record, self._redact = loop, on_output, on_record, redact
        self._partial_record = b""
        output, output_end = _pipe()
        control, control_end = _pipe()
        try:
            self.pid = _spawn(command, output_end, control_end)
        except OSError as error:
            os.close(output)
            os.close(control)
            raise HeadwayError(
                f"rank {command.rank} cannot be started: {error.strerror}", where=str(command.cwd)
            ) from None
        finally:
            os.close(output_end)
            os.close(control_end)
        self.started_at = time.monotonic()
        self._pipes = {output: self._read_output, control: self._read_records}
        for fd in self._pipes:
            loop.watch(fd, partial(self._read, fd))

    step: int | None

    def drain(self) -> None:
        """Read the pipes until they are empty. After the writers have exited, this is all their output."""
        for fd in list(self._pipes):
            while self._read(fd):
                pass

    def read_once(self) -> None:
        """Read each pipe once: a rank that never stops printing must not block the main thread."""
        for fd in list(self._pipes):
            self._read(fd)

    def tick(self) -> None:
        """Log what is on the screen and due: bars, and lines that no longer change."""
        shown = self.log.tick()
        if shown:  # nothing was printed now: `ends_when: {idle: …}` must not take a tick for output
            self._on_output(self.rank, shown)

    def close(self) -> None:
        self.drain()
        for fd in list(self._pipes):
            self._close(fd)
        self._on_output(self.rank, self.log.finish())

    def _read(self, fd: int) -> bool:
        """Read a pipe once (at most 256 KiB); return False when there is nothing more for now."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close(fd)
            return False
        self._pipes[fd](data)
        return True

    def _close(self, fd: int) -> None:
        self._loop.unwatch(fd)
        os.close(fd)
        del self._pipes[fd]

    def _read_output(self, data: bytes) -> None:
        self._on_output(self.rank, self.log.append(data))

    def _read_records(self, data: bytes) -> None:
        *whole, self._partial_record = (self._partial_record + data).split(b"\n")
        if len(self._partial_record) > _MAX_RECORD_BYTES:
            self._partial_record = b""
        for line in whole:
            record = _parse(self._redact(line))
            if record is not None:
                self.step = reported_step(record, self.step)
                self._on_record(self.rank, record)


class Ranks:
    """The rank processes of this node in one attempt.

    Use on the main thread only: the kernel kills a rank when the thread that started it ends.
    """

    def __init__(
        self,
        loop: Loop,
        orphan_reaper: OrphanReaper,
        on_output: OutputHandler,
        on_record: RecordHandler,
        redact: Redactor,
    ) -> None:
        self._loop, self._orphan_reaper, self._redact = loop, orphan_reaper, redact
        self._on_output, self._on_record = on_output, on_record
        self._running: dict[int, Rank] = {}  # by pid
        self._ended: list[Rank] = []
        self._next_tick = 0.0
        self._killed: set[int] = set()  # pids that `kill` has sent SIGKILL to
        self._oom_kills: int | None = None  # the kernel's count when the ranks were started
        become_subreaper()

    @property
    def running(self) -> bool:
        return bool(self._running)

    @property
    def pids(self) -> set[int]:
        return set(self._running)

    @property
    def pids_by_rank(self) -> dict[int, int]:
        return {rank.rank: pid for pid, rank in self._running.items()}

    def start(self, command: Command, log: Spool) -> None:
        env = {**command.env, SUPERVISOR_VARIABLE: self._orphan_reaper.label}
        command = Command(rank=command.rank, argv=command.argv, env=env, cwd=command.cwd)
        if not self._running:
            self._killed, self._oom_kills = set(), platform.oom_kills()
        rank = Rank(command, log, self._loop, self._on_output, self._on_record, self._redact)
        self._orphan_reaper.send(f"+{rank.pid}")
        self._running[rank.pid] = rank

    def tick(self) -> bool:
        """Let each rank's log take what is due, about once a second; return whether it was time."""
        now = time.monotonic()
        if now < self._next_tick:
            return False
        self._next_tick = now + _TICK_S
        for rank in self._running.values():
            rank.tick()
        return True

    def signal(self, number: int) -> None:
        """Send a signal to the ranks only: SIGTERM would kill their data loader processes, which fails the rank."""
        for pid in self._running:
            _kill(pid, number)

    def kill(self) -> None:
        for pid in self._running:
            self._killed.add(pid)
            _kill(-pid, signal.SIGKILL)
            _kill(pid, signal.SIGKILL)  # in case it has no process group of its own yet

    def reap(self) -> list[RankExit]:
        """Return the ranks that ended since the last call, failed ones first.

        Of those, the ones killed by a signal come first: they are why the others fail.
        """
        ended = [found for pid in list(self._running) if (found := self._reap_one(pid))]
        if ended:
            for rank in self._running.values():
                rank.read_once()  # handle the other ranks' earlier messages before the effects of this exit
        return sorted(ended, key=lambda end: (not end.failed, not end.signal, end.rank))

    def sweep(self) -> None:
        """Kill the processes that the ranks left and read the last of their output. Call once all ranks have ended."""
        for rank in self._ended:
            _kill(-rank.pid, signal.SIGKILL)
        kill_descendants(spare={self._orphan_reaper.pid})
        for rank in self._ended:
            rank.close()
            self._orphan_reaper.send(f"-{rank.pid}")
        self._ended.clear()

    def _reap_one(self, pid: int) -> RankExit | None:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found == 0:
            return None
        rank = self._running.pop(pid)
        self._ended.append(rank)
        rank.drain()
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return RankExit(
            rank=rank.rank,
            code=128 + killed if killed else os.WEXITSTATUS(status),
            signal=signal.Signals(killed).name if killed else "",
            step=rank.step,
            lines=tuple(rank.log.last_lines),
            seconds=round(time.monotonic() - rank.started_at, 3),
            killed_by=self._killer(pid) if killed == signal.SIGKILL else "",
        )

    def _killer(self, pid: int) -> str:
        """Return who sent SIGKILL to a rank; "" if it may have been the kernel, for lack of memory."""
        if pid in self._killed:
            return "headway"
        count = platform.oom_kills()
        return "another process" if count is not None and count == self._oom_kills else ""


def become_subreaper() -> None:
    """Make this process adopt its orphaned descendants, so that `kill_descendants` finds all of them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(spare: set[int], *, timeout_s: float = 5.0) -> None:
    """Kill and reap every descendant of this process except `spare`."""
    for _ in poll(0.005, within_s=timeout_s):
        below = descendants(os.getpid(), spare)
        for pid in below:
            _kill(pid, signal.SIGKILL)
        for pid in zombie_children() - spare:
            reap_pid(pid)
        if not below:
            return


def descendants(root: int, spare: set[int]) -> set[int]:
    """Return the running descendants of `root`, from /proc."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = _living_parent(int(name))
            if parent is not None:
                parents[int(name)] = parent
    below: set[int] = set()
    while True:
        more = {pid for pid, parent in parents.items() if parent == root or parent in below} - below - spare
        if not more:
            return below
        below |= more


class ZombieReaper:
    """Reaps zombies that became our children when their parent died, as process 1 and subreapers must.

    Reaps only zombies that it has also seen in the previous scan: a library waits for the children it started itself.
    """

    INTERVAL_S = 1.0

    def __init__(self) -> None:
        self._last_scan: set[int] = set()
        self._next = 0.0

    def reap(self, spare: set[int]) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.INTERVAL_S
        dead = zombie_children() - spare
        for pid in dead & self._last_scan:
            reap_pid(pid)
        self._last_scan = dead


def zombie_children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:  # a thread that has ended, or a kernel without this file
            continue
        found |= {int(pid) for pid in children if not platform.process_start_time(int(pid))}
    return found


def reap_pid(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # was reaped elsewhere


def _living_parent(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[1])


def _spawn(command: Command, output: int, control: int) -> int:
    entry = [*platform.python_command(), "-I", "-S", str(_MODULE_DIR / "rank_entry.py"), str(os.getpid())]
    process = subprocess.Popen(
        [*entry, *command.argv],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,  # one pipe preserves the order of stdout and stderr
        cwd=command.cwd,
        env={**command.env, CONTROL_FD: str(control), CONTROL_INODE: str(os.fstat(control).st_ino)},
        pass_fds=(control,),
        start_new_session=True,
    )
    process.returncode = 0  # we reap it ourselves; without this, Popen would warn and wait for it too
    return process.pid


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reader, False)
    try:
        fcntl.fcntl(writer, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass  # over the user's quota of pipe memory: the default of 64 KiB is enough
    return reader, writer


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # has exited already


def _parse(line: bytes) -> ControlRecord | None:
    """Parse a control record; return None for any other line, which a library may have written there by mistake."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def reported_step(record: ControlRecord, default: int | None) -> int | None:
    """Return the step that a control record reports, or `default` if it reports none."""
    inner = record.get("progress")
    step = (inner if isinstance(inner, dict) else record).get("step")
    return step if isinstance(step, int) else default
