"""Experiment trackers beside the run folder (W&B, TensorBoard, MLflow): their protocol, and rank 0's client for each.

The metric segments in the run folder are the source of truth. Each tracker receives the same records in a process of
its own, fed by a thread of rank 0, so that nothing it does (block, crash, print, handle signals, hold the GIL) affects
training. A failure is logged once, and the process is restarted after a pause. Records are dropped while it is down:
the next process reads what it missed from the segments.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from headway.core.errors import HeadwayError
from headway.core.plan import Plan
from headway.core.platform import state_dir
from headway.core.program import program_text, program_words
from headway.rundir.layout import SUBMISSION, RunFolder
from headway.storage import local_path
from headway.storage.base import Store
from headway.training.rank_info import RankInfo

if TYPE_CHECKING:
    from headway.training.context import Session


class Trackers:
    """All trackers of a run, possibly none."""

    def __init__(self, clients: Sequence[TrackerClient] = ()) -> None:
        self._clients = clients

    def send(self, records: Sequence[dict[str, Any]]) -> None:
        """Hand over records that are already in the run folder. Returns at once."""
        for client in self._clients:
            client.send(records)

    def close(self, *, finished: bool, within_s: float) -> None:
        """Close the trackers within a time limit. The next attempt reads whatever was not sent from the segments."""
        for client in self._clients:
            client.close(finished=finished)
        until = time.monotonic() + within_s
        for client in self._clients:
            client.join(max(0.0, until - time.monotonic()))


def open_trackers(session: Session, resume_step: int) -> Trackers:
    """Open the trackers that the job's `log_to` names, for an attempt that resumes from `resume_step`."""
    names = session.rank_info.job.log_to
    if not names:
        return Trackers()

    def run_info() -> TrackerRunInfo:
        return tracker_run_info(session.store, session.rank_info, resume_step)

    return Trackers([TrackerClient(name, run_info, log=session.log, event=session.event) for name in names])


# The tracker protocol, and the run information that is sent to the tracker's process


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackerRunInfo:
    """One attempt of a run as trackers see it. Plain JSON values, to be sent to another process.

    Attributes:
        run: The run's name.
        id: The same for all attempts of a run, and unique among runs.
        project: The job's name.
        url: The run folder.
        folder: Files written here are mirrored to files/ in the run folder.
        attempt: Number of the attempt, from 1.
        resume_step: The step that the attempt resumes from; 0 at the beginning.
        config: The job's config.
        facts: Provenance of the numbers: image, command, code, plan.
        pid: Process id of rank 0, whose memory and CPU a tracker may show.
    """

    run: str
    id: str
    project: str
    url: str
    folder: str
    attempt: int
    resume_step: int
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    pid: int


class Tracker(Protocol):
    r"""Protocol of a tracker, open for one run. After any exception it counts as closed, and is opened again later.

    A new tracker is one class, whose constructor takes a `TrackerRunInfo`, and an entry point of the group
    `headway.trackers` that names it (docs/plugins.md). It runs in a process of its own. `where` is
    an address or a folder, for the log.

    Example:
        >>> from headway.training.metrics.trackers.base import Tracker
        >>> class Lines:
        ...     def __init__(self, run_info):
        ...         self.where = f"{run_info.folder}/lines.txt"
        ...         self._file = open(self.where, "w")
        ...     def knows(self, name, step):
        ...         return False
        ...     def log(self, step, time_s, values):
        ...         self._file.write(f"{step} {dict(values)}\n")
        ...     def flush(self):
        ...         self._file.flush()
        ...     def close(self, *, finished):
        ...         self._file.close()
        >>> from types import SimpleNamespace
        >>> tracker: Tracker = Lines(SimpleNamespace(folder="."))
        >>> tracker.log(1, 0.0, {"loss": 0.5})
        >>> tracker.close(finished=True)
        >>> open("lines.txt").read()
        "1 {'loss': 0.5}\n"
    """

    where: str  # an address or a folder, for the log

    def knows(self, name: str, step: int) -> bool:
        """Return whether the tracker already has a value, from an earlier attempt.

        Args:
            name: The metric.
            step: The step.

        Returns:
            True if it must not be logged again.
        """

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Log all values of one step. Called once per step, in increasing order.

        Args:
            step: The step.
            time_s: When it was logged, in Unix seconds.
            values: Metrics by name.
        """

    def flush(self) -> None:
        """Make the logged values visible to others."""

    def close(self, *, finished: bool) -> None:
        """Close the tracker at the end of the attempt.

        Args:
            finished: Whether the run finished; False if it may be resumed.
        """


def tracker_run_info(store: Store, rank_info: RankInfo, resume_step: int) -> TrackerRunInfo:
    folder = RunFolder(store)
    plan = _plan(folder)
    job = rank_info.job
    return TrackerRunInfo(
        run=rank_info.name,
        id=f"{rank_info.name}-{_run_digest(folder, plan)}",
        project=job.name,
        url=store.url,
        folder=_tracker_folder(store.url, rank_info.name),
        attempt=rank_info.attempt,
        resume_step=resume_step,
        config=dict(job.config),
        facts={**provenance(plan), "ranks": rank_info.world.size},
        pid=os.getpid(),
    )


def provenance(plan: Plan) -> dict[str, Any]:
    """Return the exact provenance of a run's numbers. Contains no secrets, because a plan has none."""
    job = plan.job
    image = (job.get("image") or {}).get("uri")
    return {
        "image": image,
        "image_digest": image.partition("@")[2] or None if image else None,
        "command": program_text(job) if job.get("recipe") else shlex.join(program_words(job)),
        "code_sha256": plan.code.sha256,
        "plan_sha256": plan.hash,
        "data": dict(plan.data),
        "seed": job.get("seed"),
        "target": plan.target,
        "headway": plan.headway,
    }


def _plan(folder: RunFolder) -> Plan:
    copy = os.environ.get("HEADWAY_PLAN")
    return Plan.from_json(Path(copy).read_bytes(), where=copy) if copy else folder.plan()


def _run_digest(folder: RunFolder, plan: Plan) -> str:
    """Distinguish runs of the same name: a tracker still has the one that was deleted here."""
    created = (folder.read_json(SUBMISSION) or {}).get("created_at")
    return hashlib.sha256(f"{created}\0{plan.hash}".encode()).hexdigest()[:8]


def _tracker_folder(url: str, run: str) -> str:
    """Return the folder for trackers' files: the one that a supervisor mirrors, the run folder's, or a local one."""
    chosen = os.environ.get("HEADWAY_RUN_DIR")
    if chosen:
        return chosen
    here = local_path(url)
    return str(state_dir() / "trackers" / run if here is None else here / "files")


RESPONSE_TIMEOUT_S = 180.0  # without a reply the process counts as stuck; W&B's own timeout for its server is 90 s
PAUSES_S = (30.0, 60.0, 120.0, 300.0, 600.0)  # before each retry
LAST_LINE = 300  # characters of its last output line to repeat in the log


class TrackerFailed(Exception):
    """The tracker's process reported a failure, died or stopped responding."""


class TrackerClient:
    """Feeds one tracker from a thread. No method raises, and only `join` blocks."""

    def __init__(
        self,
        name: str,
        make_run_info: Callable[[], TrackerRunInfo],
        *,
        log: Callable[[str], None],
        event: Callable[..., None],
        pauses_s: Sequence[float] = PAUSES_S,
        silence_s: float = RESPONSE_TIMEOUT_S,
    ) -> None:
        self._name, self._make_run_info, self._log, self._event = name, make_run_info, log, event
        self._pauses_s, self._silence_s = pauses_s, silence_s
        self._change = threading.Condition()
        self._records: list[dict[str, Any]] = []
        self._ending: bool | None = None  # set when the run ends: whether it finished
        self._process: WorkerProcess | None = None
        self._given_up = False
        self._failures = 0
        self._retry_at = 0.0
        self._thread = threading.Thread(target=self._work, name=f"headway-{name}", daemon=True)
        self._thread.start()

    def send(self, records: Sequence[dict[str, Any]]) -> None:
        with self._change:
            self._records.extend(records)
            self._change.notify_all()

    def close(self, *, finished: bool) -> None:
        with self._change:
            self._ending = finished
            self._change.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the tracker to end; kill it after the timeout."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._log(f"{self._name} did not finish in time; the run folder has all metrics")
            process, self._given_up = self._process, True
            if process is not None:
                process.kill()
            self._thread.join(1.0)

    # Methods of the thread

    def _work(self) -> None:
        self._attempt([], None)  # at once, so that problems show at the start of the run
        while True:
            with self._change:
                self._change.wait_for(lambda: self._records or self._ending is not None)
                records, self._records = self._records, []
                ending = self._ending
            # Try once more at the end of a finished run; otherwise the next attempt sends what is missing.
            if not self._given_up and (self._process or ending or time.monotonic() >= self._retry_at):
                self._attempt(records, ending)
            if ending is not None:
                return

    def _attempt(self, records: list[dict[str, Any]], ending: bool | None) -> None:
        try:
            process = self._process or self._open()
            process.request({"records": records})
            if ending is not None:
                process.request({"close": ending})
                process.end()
        except (TrackerFailed, HeadwayError, OSError, ValueError) as error:
            self._fail(error)
        except BaseException as error:  # a bug in Headway: the thread ends and logs it, training continues
            self._fail(error)
            raise

    def _open(self) -> WorkerProcess:
        """Start a process and let it catch up from the segments."""
        run_info = self._make_run_info()
        process = self._process = WorkerProcess(self._name, self._silence_s)
        if self._given_up:  # set while the process was starting
            raise TrackerFailed("out of time")
        where = process.request(asdict(run_info)).get("where", "")
        process.request({"records": []})
        if self._failures:
            self._log(f"{self._name} works again and has received the missed metrics: {where}")
            self._event("logger_back", logger=self._name)
        else:
            self._log(f"also sending metrics to {self._name}: {where}")
        self._failures = 0
        return process

    def _fail(self, error: BaseException) -> None:
        """Kill the process and schedule a retry. Log the failure once, however many retries fail."""
        why = str(error) or type(error).__name__
        if self._process is not None:
            self._process.kill()
            self._process = None
        pause = self._pauses_s[min(self._failures, len(self._pauses_s) - 1)]
        self._retry_at = time.monotonic() + pause
        if not self._failures and not self._given_up:
            self._log(f"{self._name} failed, training continues: {why}")
            self._event("logger_failed", logger=self._name, error=why)
        self._failures += 1


class WorkerProcess:
    """The tracker's process. Takes one request at a time, and answers each with one JSON line."""

    def __init__(self, name: str, silence_s: float) -> None:
        self._silence_s = silence_s
        # Its output goes to a file that is read only if it fails, to keep the rank's log free of it.
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._child = subprocess.Popen(
            [sys.executable, "-m", "headway.training.metrics.trackers.worker", name, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **_temp_dir_env()},
        )
        self._buffer = b""

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer. Raises TrackerFailed if there is none, or it reports a failure."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise TrackerFailed(self._exit_message()) from None
        while "alive" in (answer := self._read_reply()):
            pass
        if "failed" in answer:
            raise TrackerFailed(str(answer["failed"]))
        return answer

    def end(self) -> None:
        """Wait for the process to exit, after it has confirmed the close request."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(self._silence_s)
        except subprocess.TimeoutExpired:
            raise TrackerFailed("it did not end") from None
        self._stderr.close()

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        self._stderr.close()

    def _read_reply(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._child.stdout], [], [], self._silence_s)
            if not ready:
                raise TrackerFailed(f"no response for {self._silence_s:.0f} s")
            piece = os.read(self._child.stdout.fileno(), 65536)
            if not piece:
                raise TrackerFailed(self._exit_message())
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def _exit_message(self) -> str:
        code = self._child.wait()
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        return f"its process ended with code {code}" + (f": {lines[-1][:LAST_LINE]}" if lines else "")


def _temp_dir_env() -> dict[str, str]:
    """Put the tracker's temporary files beside the supervisor's copy of the plan, deleted with it even after a kill."""
    plan = os.environ.get("HEADWAY_PLAN")
    return {"TMPDIR": os.path.dirname(plan)} if plan else {}
