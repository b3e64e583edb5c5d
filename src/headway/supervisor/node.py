"""One node's threads, ranks, logs and folders, driven by the coordinator (node 0) or a follower (other nodes)."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.errors import HeadwayError, StoreError, Transient
from headway.core.plan import BEGINNING, EXACT, WEBHOOK, Plan
from headway.core.retry import NO_LIMIT, RetryPolicy, retry
from headway.rundir.layout import RunFolder
from headway.rundir.lease import spent_usd
from headway.storage.redaction import Redactor, ambient_values
from headway.supervisor.background import StoreHealth, TaskDone
from headway.supervisor.event_loop import LeaseLostMessage, Loop, StopNow, StopRequested, ThreadDied
from headway.supervisor.file_sync import Mirror, MirrorThread, copy_folder
from headway.supervisor.keep_rules import format_size, is_checkpoint
from headway.supervisor.log_pipeline import ConsoleWriter, Spool, upload_leftovers
from headway.supervisor.output_observer import EndCondition, OutputObserver
from headway.supervisor.process_load import SAMPLE_S, LoadMeter
from headway.supervisor.processes import ControlRecord, OrphanReaper, Ranks, ZombieReaper
from headway.supervisor.rank_env import (
    NodeFolders,
    Secrets,
    describe_resume_args,
    placeholder_values,
    rank_command,
    remove_workdirs,
)
from headway.supervisor.record_writer import RecordWriter
from headway.supervisor.system_stats import SystemMeter
from headway.supervisor.topology import NodeTopology
from headway.supervisor.watchdog import UNIT_S, Load
from headway.supervisor.workdir import PrepareResult, Workdir, make_workdir

_RESTORE_RETRY = RetryPolicy(tries=NO_LIMIT, total_s=math.inf, first_pause_s=1.0, longest_pause_s=30.0)
_POLL_S = 1.0  # the longest single wait of the main thread
_WRITE_RESERVE_S = 2.0  # the part of the grace period reserved for the last log lines and the last event


class ForcedStop(HeadwayError):
    """A second stop signal: end without waiting for anything."""


class RunTakenOver(HeadwayError):
    """Another supervisor has taken over the run's lease: write nothing more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisorSettings:
    """Intervals and time limits, set by HEADWAY_TIMING in tests and in unusual environments."""

    renew_s: float = 10.0
    first_pause_s: float = 1.0
    mirror_s: float = 30.0
    peers_s: float | None = None  # how long to wait for other nodes, instead of the job's max_wait
    release_s: float = 600.0  # how long billed nodes wait for others before they are given back
    flush_s: float = 120.0  # how long a run that has ended waits for a store that is down
    max_same_step_crashes: int = 3  # consecutive crashes at the same step before the run fails
    stall_s: float = UNIT_S  # the unit of the watchdog's limits
    halt_s: float = 10.0  # grace period of the other ranks after one failed: they cannot finish a step without it


@dataclass(kw_only=True)
class Node:
    """One node's resources: start with `open_log`, run the event loop with `run_until`, end with `close_log`."""

    folder: RunFolder
    plan: Plan
    topology: NodeTopology
    base_env: Mapping[str, str]  # the environment that ranks inherit
    workdirs: NodeFolders
    secrets: Secrets
    settings: SupervisorSettings
    loop: Loop
    orphan_reaper: OrphanReaper
    console: ConsoleWriter
    on_rank_record: Callable[[int, ControlRecord], None] = field(
        default=lambda rank, record: None
    )  # handles ranks' control records
    on_message: Callable[[Any], None] = field(default=lambda message: None)  # handles messages from other threads

    def __post_init__(self) -> None:
        self.redact = Redactor((*self.secrets.values, *ambient_values(self.base_env)))
        self.health = StoreHealth(self.loop.inbox)
        self.record_writer = RecordWriter(self.folder, self.loop.inbox, self.health, self.redact)
        self.mirror = Mirror(self.workdirs.files, self.folder.store, node=self.topology.node, log=self.log)
        self.workdir = make_workdir(
            self.plan,
            self.folder,
            self.workdirs,
            node=self.topology.node,
            env=self.base_env,
            secrets=self.secrets.files,
            log=self.log,
        )
        if self.workdir is not None:
            self.workdir.has_other_checkpoint = self._has_other_checkpoint
        mirrors = [self.mirror, *([self.workdir] if self.workdir else [])]
        self.mirror_thread = MirrorThread(mirrors, self.loop.inbox, self.health, every_s=self.settings.mirror_s)
        self.end_condition = EndCondition(self.plan.job.get("ends_when"))
        self.ranks = Ranks(
            self.loop,
            self.orphan_reaper,
            self._on_output,
            lambda r, m: self.on_rank_record(r, m),
            self.redact,
        )
        self.stop = ""  # who requested a stop
        self.stop_at: float | None = None
        self._log: Spool | None = None
        self._rank_spools: list[Spool] = []
        self.observer: OutputObserver | None = None  # on node 0, of a script that does not report by itself
        self._done: set[str] = set()
        self._restored = False
        self._data: dict[str, str] = {}  # paths of the project's named data
        self._reaper = ZombieReaper()
        self._system_meter = SystemMeter()
        self._load_meter = LoadMeter(min(SAMPLE_S, self.settings.stall_s / 6))
        self.signs_of_life = 0  # how often a program has printed, logged a metric or moved on

    @property
    def grace_s(self) -> float:
        return self.plan.limits.grace_s

    @property
    def ranks_grace_s(self) -> float:
        """The ranks' part of the grace period: all but the time reserved for the last writes."""
        return self.grace_s - min(_WRITE_RESERVE_S, self.grace_s / 4)

    def open_log(self, attempt: int) -> None:
        """Open the supervisor's own log of an attempt and close that of the attempt before it."""
        if self._log is not None:
            self._log.finish()
            self.record_writer.close_log(self._log)
        self._log = self._spool(attempt, self._writer_name)

    def log(self, text: str) -> None:
        """Write one line, redacted, to the supervisor's log and its standard output."""
        text = self.redact(text.encode("utf-8", "backslashreplace")).decode()
        if self._log is not None:
            self._log.write_line(text)
        self.console.write_line(text)

    def prepare_files(self, last_attempt: int, attempt: int) -> None:
        """Restore the files that earlier attempts saved, waiting while the store is down: never start without them.

        `last_attempt` is the newest attempt whose ranks were started, or 0; `attempt` is the one that starts now.
        """
        self.workdirs.files.mkdir(parents=True, exist_ok=True)
        if not self._restored:
            count = self.run_in_thread(lambda: self._retry_transient(self.mirror.restore))
            if count:
                self.log(f"restored {count} files into {self.workdirs.files}")
            self._restored = not self.stop
        self.run_in_thread(lambda: copy_folder(self.workdirs.files, self.workdirs.resume))
        if self.plan.job.get("named_data") and not self.stop:
            from headway.supervisor.project_data import bring_data

            outputs = self.folder.url.rpartition("/")[0]
            found = self.run_in_thread(lambda: self._retry_transient(lambda: bring_data(self.plan, outputs, self.log)))
            self._data = found or {}
        if self.workdir is not None and not self.stop:
            self._prepare_workdir(self.workdir, last_attempt, attempt)

    def register_files(self) -> None:
        """Register files that an earlier attempt wrote here after its last sync, to upload them at the end.

        For a supervisor that starts no rank.
        """
        workdir = self.workdir
        if workdir is not None:
            self.run_in_thread(lambda: self._retry_transient(workdir.register_existing))

    def _prepare_workdir(self, workdir: Workdir, last_attempt: int, attempt: int) -> None:
        fresh = self.plan.resume == BEGINNING
        done: PrepareResult | None = self.run_in_thread(
            lambda: self._retry_transient(
                lambda: workdir.prepare(fresh=fresh, last_attempt=last_attempt, attempt=attempt)
            )
        )
        if done is not None and done.restored:
            self.log(f"restored {done.restored} files into the script's working folder {self.workdirs.code}")
        if done is not None and done.moved:
            stay = "; your own folder keeps them too" if self.base_env.get("HEADWAY_IN_PLACE") else ""
            files = f"files ({done.moved}) that attempt {last_attempt} wrote"
            self.log(f"{files} are kept in the run folder, in {done.moved_to}{stay}")

    def upload_leftover_logs(self, attempt: int) -> None:
        """Upload log lines that a killed supervisor of this node left on disk."""
        writers = [self._writer_name, *(f"r{rank}" for rank in self.topology.ranks)]
        try:
            found = self.run_in_thread(
                lambda: upload_leftovers(self.workdirs.spool, self.folder.store, below=attempt, writers=writers)
            )
        except StoreError as error:
            self.log(
                f"the logs of an earlier attempt could not be uploaded and stay on this disk: {error.problem.what}"
            )
            return
        if found:
            self.log(f"saved the last lines of a killed attempt: {', '.join(found)}")

    def start_ranks(
        self,
        topology: NodeTopology,
        attempt: int,
        facts: Mapping[str, Any],
        make_observer: Callable[[Spool], OutputObserver | None] | None = None,
    ) -> None:
        """Start this node's ranks. `facts` are the same on all nodes; `make_observer` is called with rank 0's log.

        Call on the main thread: the kernel kills a rank (PR_SET_PDEATHSIG) with the thread that started it.
        """
        run = {
            "HEADWAY_RUN_URL": self.folder.url,
            "HEADWAY_RUN": self.folder.name,
            "HEADWAY_ATTEMPT": str(attempt),
            "HEADWAY_PLAN": str(self.workdirs.work / "plan.json"),
            "HEADWAY_GRACE_S": f"{self.grace_s:g}",
        }
        run |= {"HEADWAY_SPENT_S": f"{facts['spent_s']:.3f}", "HEADWAY_PARTS": str(facts["parts"])}
        if facts["left_s"] is not None:
            run["HEADWAY_DEADLINE_S"] = f"{max(0.0, facts['left_s']):.3f}"
        self.end_condition.start()
        is_from_before = self.workdir.is_from_before if self.workdir is not None else lambda path: False
        values = placeholder_values(topology, 0, run, self.workdirs, self._data)
        if resume := describe_resume_args(self.plan, self.workdirs.code, values, is_from_before):
            self.log(resume)
        for local_rank, rank in enumerate(topology.ranks):
            command = rank_command(
                self.plan,
                topology,
                local_rank,
                base=self.base_env,
                run=run,
                workdirs=self.workdirs,
                secrets=self.secrets,
                data=self._data,
                is_from_before=is_from_before,
            )
            log = self._spool(attempt, f"r{rank}")
            self._rank_spools.append(log)
            if rank == 0 and make_observer is not None:
                self.observer = make_observer(log)
            self.ranks.start(command, log)

    def _on_output(self, rank: int, lines: bytes) -> None:
        self.end_condition.on_output(rank, lines)
        self.signs_of_life += bool(lines)
        self.console.write_output(rank, lines)
        if rank == 0 and self.observer is not None:
            self.observer.on_output(lines)

    def measure_load(self) -> Load | None:
        """Return how busy the ranks are, every few seconds; None in between."""
        if not self.ranks.running or not self._load_meter.due(time.monotonic()):
            return None
        return self._load_meter.sample(self.ranks.pids_by_rank)

    def measure_system(self) -> dict[str, Any] | None:
        """Return CPU, memory, disk and network of this machine, every ten seconds; None in between."""
        return self._system_meter.sample() if self._system_meter.due(time.monotonic()) else None

    def notify(self, event: str, reason: str, spent_s: float) -> None:
        """Post to the job's webhook, if it has one. Waits for it: call it on a thread, or at the end."""
        url = self.secrets.variables.get(WEBHOOK)
        if not url:
            return
        from headway.rundir.notify import Notification, post_webhook

        notice = Notification.for_run(self.folder, self.plan, event, reason, spent_s, spent_usd(self.plan, spent_s))
        post_webhook(url, notice, self.console.write_line)

    def sweep(self) -> None:
        """Clean up once all ranks have ended: kill the processes they left and write all their output to disk."""
        self.ranks.sweep()
        if self.observer is not None:
            self.observer.finish()
            self.observer = None
        for log in self._rank_spools:
            self.record_writer.close_log(log)
        self._rank_spools.clear()
        self.mirror_thread.wake()

    def run_until(self, done: Callable[[], bool], seconds: float | None = None) -> bool:
        """Run the event loop until `done()` or for at most `seconds`; return whether it is done."""
        end = None if seconds is None else time.monotonic() + seconds
        while not done():
            left = _POLL_S if end is None else min(_POLL_S, end - time.monotonic())
            if left <= 0:
                return False
            for message in self.loop.run_once(left):
                self._handle_urgent(message)
                self.on_message(message)
            if self.ranks.tick() and self.observer is not None:
                self.observer.tick()
            self._reaper.reap(spare=self.ranks.pids | {self.orphan_reaper.pid})
        return True

    def run_in_thread(self, work: Callable[[], Any]) -> Any:
        """Run `work` on a thread while the main thread handles signals; return its result or raise its error.

        Return None without waiting for it if a stop is requested.
        """
        result: list[Any] = []
        error: list[BaseException] = []

        def carry_out() -> None:
            try:
                result.append(work())
            except BaseException as failure:  # noqa: BLE001  raised again below, on the main thread
                error.append(failure)
            finally:
                self.loop.inbox.wake()

        threading.Thread(target=carry_out, name="aside", daemon=True).start()
        self.run_until(lambda: bool(result or error or self.stop))
        if error:
            raise error[0]
        return result[0] if result else None

    def request_stop(self, by: str) -> None:
        """Record who requested the stop and when the grace period began. Only the first request counts."""
        if not self.stop:
            self.stop, self.stop_at = by, time.monotonic()

    def _has_other_checkpoint(self) -> bool:
        """Return whether the program has saved checkpoints elsewhere than in its working folder."""
        return self.plan.resume == EXACT or any(map(is_checkpoint, self.mirror.names))

    def mark_finished(self) -> None:
        """Note, before the last sync, that the program has done its work: earlier attempts' files are superseded."""
        if self.workdir is not None:
            self.workdir.finished = True

    def finish(self, name: str, seconds: float) -> bool:
        """Ask a background thread to finish; return False if the store did not accept its last writes in time."""
        thread = {"mirror": self.mirror_thread, "record-writer": self.record_writer}[name]
        thread.finish()
        return self.wait_finished(name, seconds)

    def finish_files(self, seconds: float) -> bool:
        """Upload the last files; return False if that was not possible.

        `seconds` limits how long a store that fails is waited for. One that accepts files gets all, however long
        that takes, unless a stop is requested: then there is only the grace period.
        """
        self.mirror_thread.finish()
        asked_before = self.stop_at is not None
        while not self.run_until(lambda: "mirror" in self._done or self._asked_since(asked_before), seconds):
            if asked_before or self.health.is_failing("mirror") or not self.mirror_thread.is_alive():
                return False
            self.log("still saving the program's files")
        if "mirror" in self._done:
            return True
        assert self.stop_at is not None
        return self.wait_finished("mirror", max(0.5, self.stop_at + self.ranks_grace_s - time.monotonic()))

    def _asked_since(self, before: bool) -> bool:
        return self.stop_at is not None and not before

    def wait_finished(self, name: str, seconds: float) -> bool:
        return self.run_until(lambda: name in self._done, seconds)

    def log_saved_files(self) -> None:
        """Log the number and size of the saved files, if the script wrote any below its working folder."""
        count, size = self.workdir.saved if self.workdir is not None else (0, 0)
        if count:
            files = "1 file" if count == 1 else f"{count} files"
            self.log(f"kept {files} ({format_size(size)}) that the program wrote, in files/ of the run folder")
        for each in self.workdir.left_out if self.workdir is not None else []:
            self.log(f"not kept: {each}")

    def clean_up(self, *, complete: bool) -> None:
        """Remove this supervisor's folders, and the script's files only if all are in the run folder (`complete`)."""
        if self.workdir is not None and complete:
            self.workdir.clear()
        elif self.workdir is not None:
            self.workdir.rescue()
        for path in self.secrets.files:
            path.unlink(missing_ok=True)
        remove_workdirs(self.workdirs, files=complete)

    def close_log(self) -> None:
        if self._log is not None:
            self._log.finish()
            self.record_writer.close_log(self._log)
            self._log = None

    def _handle_urgent(self, message: Any) -> None:
        if isinstance(message, StopNow):
            raise ForcedStop("second signal: exiting now")
        if isinstance(message, LeaseLostMessage):
            raise RunTakenOver(message.error)
        if isinstance(message, ThreadDied):
            raise HeadwayError(f"the {message.name} thread failed: {message.error!r}") from message.error
        if isinstance(message, StopRequested):
            self.request_stop(message.by)
        if isinstance(message, TaskDone):
            self._done.add(message.name)

    @property
    def _writer_name(self) -> str:
        return "s" if self.topology.node == 0 else f"s{self.topology.node}"

    def _spool(self, attempt: int, writer: str) -> Spool:
        private = self.workdirs.spool.is_relative_to(self.workdirs.work)
        spool = Spool(self.workdirs.spool, attempt, writer, redact=self.redact, keep=not private)
        self.record_writer.open_log(spool)
        return spool

    def _retry_transient(self, work: Callable[[], Any]) -> Any:
        """Retry without end: a run that started keeps its machines until the store is back or it is stopped."""

        def report(error: Exception) -> None:
            assert isinstance(error, Transient)
            self.health.report_failure("restore", error)

        result = retry(work, _RESTORE_RETRY, on_failure=report)
        self.health.report_success("restore")
        return result
