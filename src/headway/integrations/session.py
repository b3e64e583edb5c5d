"""A program's connection to Headway's supervisor: progress, metrics, stop requests, the budget's deadline.

Standard library only. Outside a run of Headway everything here does nothing.
"""

import functools
import json
import math
import os
import signal
import stat
import sys
import threading
import time
from typing import Any, Callable, TypeVar, cast  # noqa: UP035 - `collections.abc` has no [] before Python 3.9

from .hook import report_failure

Method = TypeVar("Method", bound=Callable[..., Any])

EXIT_STOPPED = 143  # the supervisor's exit code for "stopped after a save"
SIGTERM, BUDGET = "SIGTERM", "budget"
_REPORT_INTERVAL_S = 0.5
_MAX_FINAL_S = 30.0  # of the budget, left for what follows the training: a last save, an evaluation


class Session:
    """The supervisor's settings for this process, and the channel by which this process reports to it."""

    def __init__(self, env: Any = None) -> None:
        env = os.environ if env is None else env
        self.attempt = int(env.get("HEADWAY_ATTEMPT") or 0)  # 0: not started by Headway
        self.rank = int(env.get("RANK") or 0)
        self.world = int(env.get("WORLD_SIZE") or 1)
        self.run_dir = env.get("HEADWAY_RUN_DIR") or ""
        self.code_dir = env.get("HEADWAY_CODE_DIR") or os.getcwd()
        self.failed = False
        self.stopping = ""  # the reason that all ranks have agreed on
        self._asked = self._continued = False
        self._previous_handler = None  # type: Any
        self._deadline = _deadline(env)
        self._pipe = _open_control_pipe(env) if self.attempt and self.rank == 0 else None
        self._recent = []  # type: list[tuple[float, int]]
        self._started_ns = int((time.time() - _process_age_s()) * 1e9)

    # Signals and deadline

    def start_training(self, framework: str, *, replaces: Any = None) -> None:
        """Take over SIGTERM until `end_training`, unless the program has a handler of its own.

        `replaces` is the framework's own handler, which may be replaced.
        """
        if not self.attempt or threading.current_thread() is not threading.main_thread():
            return
        present = signal.getsignal(signal.SIGTERM)
        if present in (signal.SIG_DFL, signal.SIG_IGN, None) or (replaces is not None and present is replaces):
            self._previous_handler = signal.signal(signal.SIGTERM, self._on_sigterm)
        else:
            self.say(f"{framework}: the program handles SIGTERM itself, so a stop does not save by itself")

    def end_training(self) -> None:
        """Give SIGTERM back."""
        if self._previous_handler is not None and not self._asked:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None

    def _on_sigterm(self, number: int, frame: Any) -> None:
        self._asked = True

    def stop_reason(self) -> str:
        """Return why training should stop now: SIGTERM, BUDGET or ""."""
        if self._asked:
            return SIGTERM
        return BUDGET if self._deadline is not None and time.monotonic() > self._deadline else ""

    def begin_stop(self, reason: str, framework: str) -> None:
        """Record and say why training ends after this step."""
        self.stopping = reason
        if reason == BUDGET:
            self.send({"event": BUDGET})
            self.say(f"{framework}: the budget is nearly spent: saving a checkpoint and ending the training")
        else:
            self.say(f"{framework}: asked to stop: saving a checkpoint")

    def exit_stopped(self, text: str) -> None:
        """End the program with the exit code of a stopped rank."""
        self.say(text)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        raise SystemExit(EXIT_STOPPED)

    # Reports

    def report(self, step: int, steps: Any = None, epoch: Any = None, epochs: Any = None, loss: Any = None) -> None:
        """Report progress, at most twice a second."""
        now = time.monotonic()
        if self._recent and now - self._recent[-1][0] < _REPORT_INTERVAL_S and step != steps:
            return
        self._recent = [*self._recent[-19:], (now, step)]
        numbers = {"step": step, "steps": steps, "epoch": epoch, "epochs": epochs, "loss": loss, **self._speed(steps)}
        self.send({"progress": {name: value for name, value in numbers.items() if value is not None}, "step": step})

    def _speed(self, steps: Any) -> Any:
        (then, before), (now, here) = self._recent[0], self._recent[-1]
        if now <= then or here <= before:
            return {}
        rate = (here - before) / (now - then)
        left = {"eta_s": round((steps - here) / rate, 1)} if steps else {}
        return {"rate": round(rate, 3), **left}

    def metrics(self, step: int, values: Any) -> None:
        """Report metrics of a step; what is not a finite number is left out."""
        found = {str(name): number(value) for name, value in values.items()}
        found = {name: value for name, value in found.items() if value is not None}
        if found:
            self.send({"metrics": {**found, "step": step}, "step": step})

    def continue_curves(self, step: int) -> None:
        """Say at which step this attempt continues, once: what earlier attempts recorded after it is void."""
        if self.attempt > 1 and not self._continued:
            self._continued = True
            self.send({"metrics": {"resume_step": step}})

    def say(self, text: str) -> None:
        """Write a line to the program's log, from rank 0."""
        if self.rank == 0:
            sys.stderr.write(f"headway: {text}\n")
            sys.stderr.flush()

    def send(self, record: Any) -> None:
        """Send a record to the supervisor, if there is one."""
        if self._pipe is not None:
            try:
                os.write(self._pipe, (json.dumps(record) + "\n").encode())
            except OSError:  # the supervisor has died: the kernel ends this process
                self._pipe = None

    # Checkpoints of this run and of others

    def own(self, paths: Any) -> Any:
        """Return those of the checkpoint files that this run wrote.

        A program that runs in its own folder may find checkpoints of earlier trainings there: the first attempt
        records them, so that a later attempt does not continue from one of them.
        """
        record = os.path.join(self.run_dir, "checkpoints-before.json") if self.run_dir else ""
        names = {path: os.path.relpath(path, self.code_dir) for path in paths}
        here = {names[path]: os.stat(path).st_mtime_ns for path in paths}
        if self.attempt <= 1:
            older = {name: when for name, when in here.items() if when < self._started_ns}
            if older and record and self.rank == 0:
                os.makedirs(self.run_dir, exist_ok=True)
                with open(record, "w") as file:
                    json.dump({**_read_json(record), **older}, file)
            return []
        before = _read_json(record)
        return [path for path in paths if before.get(names[path]) != here[names[path]]]

    def fail(self, framework: str, error: BaseException) -> None:
        """Say that the integration failed; from now on it does nothing."""
        self.failed = True
        report_failure(framework, error)
        self._asked = False
        self.end_training()


def number(value: Any) -> Any:
    """Return a finite float of a number or of a tensor with one element, else None."""
    try:
        found = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return found if math.isfinite(found) else None


@functools.cache
def current() -> Session:
    """Return this process's session."""
    return Session()


def safely(framework: str) -> Callable[[Method], Method]:
    """Decorate a callback's method: an exception in it switches the integration off and never reaches the program."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            session = current()
            if session.failed:
                return None
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the program continues without the integration
                session.fail(framework, error)
                return None

        return cast(Method, guarded)

    return decorate


def all_agree(reason: str, device: Any = "cpu") -> str:
    """Return the same stop reason on all ranks of torch.distributed: at the same step, or a collective would hang."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if torch is None or dist is None or not dist.is_available() or not dist.is_initialized():
        return reason
    if dist.get_world_size() == 1:
        return reason
    reasons = ("", BUDGET, SIGTERM)
    flag = torch.tensor([reasons.index(reason)], device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return reasons[int(flag.item())]


def _deadline(env: Any) -> Any:
    left = env.get("HEADWAY_DEADLINE_S")
    if not left:
        return None
    final = float(env.get("HEADWAY_EXPORT_S") or min(_MAX_FINAL_S, float(left) / 10))
    return time.monotonic() + float(left) - _process_age_s() - final


def _process_age_s() -> float:
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime") as file:
            return max(0.0, float(file.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0


def _open_control_pipe(env: Any) -> Any:
    """Open the pipe to the supervisor: our own descriptor, or that of the launcher (torchrun) which did not pass it on.

    Its inode is compared, because a closed descriptor's number may since belong to another file.
    """
    fd, inode = env.get("HEADWAY_CONTROL_FD"), env.get("HEADWAY_CONTROL_INODE")
    pid = os.getpid()
    while fd and inode and pid > 1:
        path = f"/proc/{pid}/fd/{fd}"
        try:
            found = os.stat(path)
            if stat.S_ISFIFO(found.st_mode) and found.st_ino == int(inode):
                return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            pass
        pid = _parent(pid)
    return None


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _read_json(path: str) -> Any:
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}
