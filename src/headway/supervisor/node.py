"""One node's threads, ranks, logs and folders, driven by the coordinator (node 0) or a follower (other nodes)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.errors import HeadwayError, StoreError, Transient
from headway.core.plan import BEGINNING, Plan
from headway.rundir.layout import RunFolder
from headway.supervisor.event_loop import Loop, LostLease, StopAsked, StopNow, ThreadDied
from headway.supervisor.file_sync import Mirror, MirrorDuty, copy_folder
from headway.supervisor.log_pipeline import Redactor, Spool, StdoutPump, rescue
from headway.supervisor.processes import OrphanReaper, Ranks, Reaper, Record
from headway.supervisor.rank_env import Secrets, Workdirs, command, remove_places
from headway.supervisor.threads import RecordWriter, StoreHealth, TaskDone
from headway.supervisor.topology import NodeTopology
from headway.supervisor.workdir import Workdir, size_words, workdir_of

_TURN_S = 1.0  # the longest single wait of the main thread
_MARGIN_S = 2.0  # the part of the grace period reserved for the last log lines and the last event


class ForcedStop(HeadwayError):
    """A second stop signal: end without waiting for anything."""


class RunTakenOver(HeadwayError):
    """Another supervisor has taken over the run's lease: write nothing more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Intervals and time limits, set by HEADWAY_TIMING in tests and in unusual environments."""

    renew_s: float = 10.0
    first_pause_s: float = 1.0
    mirror_s: float = 30.0
    peers_s: float = 300.0
    flush_s: float = 120.0  # how long a run that has ended waits for a store that is down
    same_place: int = 3  # consecutive crashes at the same step before the run fails
    halt_s: float = 10.0  # grace period of the other ranks after one failed: they cannot finish a step without it


@dataclass(kw_only=True)
class Node:
    """The supervisor's resources on one node: start with `open`, run the event loop with `until`, end with `close`."""

    folder: RunFolder
    plan: Plan
    world: NodeTopology
    base: Mapping[str, str]  # the environment that ranks inherit
    places: Workdirs
    secrets: Secrets
    settings: Settings
    loop: Loop
    undertaker: OrphanReaper
    echo: StdoutPump
    heard: Callable[[int, Record], None] = field(default=lambda rank, record: None)  # handles ranks' control records
    heed: Callable[[Any], None] = field(default=lambda message: None)  # handles messages from other threads

    def __post_init__(self) -> None:
        self.redact = Redactor(self.secrets.values)
        self.health = StoreHealth(self.loop.inbox)
        self.scribe = RecordWriter(self.folder, self.loop.inbox, self.health, self.redact)
        self.mirror = Mirror(self.places.files, self.folder.store, node=self.world.node, say=self.say)
        self.workdir = workdir_of(
            self.plan, self.folder, self.places, node=self.world.node, env=self.base, say=self.say
        )
        mirrors = [self.mirror, *([self.workdir] if self.workdir else [])]
        self.mirroring = MirrorDuty(mirrors, self.loop.inbox, self.health, every_s=self.settings.mirror_s)
        self.ranks = Ranks(self.loop, self.undertaker, self.echo.show, lambda r, m: self.heard(r, m), self.redact)
        self.stop = ""  # who requested a stop
        self.stop_at: float | None = None
        self._log: Spool | None = None
        self._rank_logs: list[Spool] = []
        self._done: set[str] = set()
        self._restored = False
        self._reaper = Reaper()

    @property
    def grace_s(self) -> float:
        return self.plan.limits.grace_s

    @property
    def ranks_grace_s(self) -> float:
        """The ranks' part of the grace period: all but the time reserved for the last writes."""
        return self.grace_s - min(_MARGIN_S, self.grace_s / 4)

    def open(self, attempt: int) -> None:
        """Open the supervisor's own log of an attempt and close that of the attempt before it."""
        if self._log is not None:
            self._log.finish()
            self.scribe.close_log(self._log)
        self._log = self._spool(attempt, self._own_writer)

    def say(self, text: str) -> None:
        """Write one line, redacted, to the supervisor's log and its standard output."""
        text = self.redact(text.encode("utf-8", "backslashreplace")).decode()
        if self._log is not None:
            self._log.say(text)
        self.echo.say(text)

    def prepare_files(self, former: int) -> None:
        """Restore the files that earlier attempts saved, waiting while the store is down: never start without them.

        `former` is the newest attempt whose ranks were started, or 0.
        """
        self.places.files.mkdir(parents=True, exist_ok=True)
        if not self._restored:
            count = self.aside(lambda: self._patiently(self.mirror.restore))
            if count:
                self.say(f"restored {count} files into {self.places.files}")
            self._restored = not self.stop
        self.aside(lambda: copy_folder(self.places.files, self.places.resume))
        if self.workdir is not None and not self.stop:
            self._prepare_workdir(self.workdir, former)

    def adopt_files(self) -> None:
        """Register files that an earlier attempt wrote here after its last sync, to upload them at the end.

        For a supervisor that starts no rank.
        """
        workdir = self.workdir
        if workdir is not None:
            self.aside(lambda: self._patiently(workdir.adopt))

    def _prepare_workdir(self, workdir: Workdir, former: int) -> None:
        fresh = self.plan.resume == BEGINNING
        done = self.aside(lambda: self._patiently(lambda: workdir.prepare(fresh=fresh, former=former)))
        if done is not None and done.restored:
            self.say(f"restored {done.restored} files into the script's working folder {self.places.code}")
        if done is not None and done.aside:
            self.say(f"{done.aside} files that attempt {former} wrote are kept in the run folder, in {done.to}")

    def rescue_logs(self, attempt: int) -> None:
        """Upload log lines that a killed supervisor of this node left on disk."""
        writers = [self._own_writer, *(f"r{rank}" for rank in self.world.ranks)]
        try:
            found = self.aside(lambda: rescue(self.places.spool, self.folder.store, below=attempt, writers=writers))
        except StoreError as error:
            self.say(
                f"the logs of an earlier attempt could not be uploaded and stay on this disk: {error.problem.what}"
            )
            return
        if found:
            self.say(f"saved the last lines of a killed attempt: {', '.join(found)}")

    def start_ranks(self, world: NodeTopology, attempt: int, facts: Mapping[str, Any]) -> None:
        """Start this node's ranks. `facts` are the same on all nodes.

        Call on the main thread: the kernel kills a rank (PR_SET_PDEATHSIG) with the thread that started it.
        """
        run = {
            "HEADWAY_RUN_URL": self.folder.url,
            "HEADWAY_RUN": self.folder.name,
            "HEADWAY_ATTEMPT": str(attempt),
            "HEADWAY_PLAN": str(self.places.work / "plan.json"),
            "HEADWAY_GRACE_S": f"{self.grace_s:g}",
        }
        run |= {"HEADWAY_SPENT_S": f"{facts['spent_s']:.3f}", "HEADWAY_PARTS": str(facts["parts"])}
        if facts["left_s"] is not None:
            run["HEADWAY_DEADLINE_S"] = f"{max(0.0, facts['left_s']):.3f}"
        for local_rank, rank in enumerate(world.ranks):
            told = command(
                self.plan, world, local_rank, base=self.base, run=run, places=self.places, secrets=self.secrets
            )
            log = self._spool(attempt, f"r{rank}")
            self._rank_logs.append(log)
            self.ranks.start(told, log)

    def sweep(self) -> None:
        """Clean up once all ranks have ended: kill the processes they left and write all their output to disk."""
        self.ranks.sweep()
        for log in self._rank_logs:
            self.scribe.close_log(log)
        self._rank_logs.clear()
        self.mirroring.wake()

    def until(self, done: Callable[[], bool], seconds: float | None = None) -> bool:
        """Run the event loop until `done()` or for at most `seconds`; return whether it is done."""
        end = None if seconds is None else time.monotonic() + seconds
        while not done():
            left = _TURN_S if end is None else min(_TURN_S, end - time.monotonic())
            if left <= 0:
                return False
            for message in self.loop.turn(left):
                self._urgent(message)
                self.heed(message)
            self._reaper.reap(spare=self.ranks.pids | {self.undertaker.pid})
        return True

    def aside(self, work: Callable[[], Any]) -> Any:
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
        self.until(lambda: bool(result or error or self.stop))
        if error:
            raise error[0]
        return result[0] if result else None

    def ask_to_stop(self, by: str) -> None:
        """Record who requested the stop and when the grace period began. Only the first request counts."""
        if not self.stop:
            self.stop, self.stop_at = by, time.monotonic()

    def finish(self, duty: str, seconds: float) -> bool:
        """Ask a background thread to finish; return False if the store did not accept its last writes in time."""
        thread = {"mirror": self.mirroring, "scribe": self.scribe}[duty]
        thread.finish()
        return self.finished(duty, seconds)

    def finished(self, duty: str, seconds: float) -> bool:
        return self.until(lambda: duty in self._done, seconds)

    def say_what_was_kept(self) -> None:
        """Log the number and size of the saved files, if the script wrote any below its working folder."""
        count, size = self.workdir.kept if self.workdir is not None else (0, 0)
        if count:
            files = "1 file" if count == 1 else f"{count} files"
            self.say(f"kept {files} ({size_words(size)}) that the script wrote, in files/ of the run folder")

    def leave(self, *, complete: bool) -> None:
        """Remove this supervisor's folders, and the script's files only if all are in the run folder (`complete`)."""
        if self.workdir is not None and complete:
            self.workdir.clear()
        elif self.workdir is not None:
            self.workdir.rescue()
        remove_places(self.places, files=complete)

    def close(self) -> None:
        if self._log is not None:
            self._log.finish()
            self.scribe.close_log(self._log)
            self._log = None

    def _urgent(self, message: Any) -> None:
        if isinstance(message, StopNow):
            raise ForcedStop("second signal: exiting now")
        if isinstance(message, LostLease):
            raise RunTakenOver(message.error)
        if isinstance(message, ThreadDied):
            raise HeadwayError(f"the {message.name} thread failed: {message.error!r}") from message.error
        if isinstance(message, StopAsked):
            self.ask_to_stop(message.by)
        if isinstance(message, TaskDone):
            self._done.add(message.name)

    @property
    def _own_writer(self) -> str:
        return "s" if self.world.node == 0 else f"s{self.world.node}"

    def _spool(self, attempt: int, writer: str) -> Spool:
        private = self.places.spool.is_relative_to(self.places.work)
        spool = Spool(self.places.spool, attempt, writer, redact=self.redact, keep=not private)
        self.scribe.open_log(spool)
        return spool

    def _patiently(self, work: Callable[[], Any]) -> Any:
        pause = 1.0
        while True:
            try:
                result = work()
            except Transient as error:
                self.health.failed("restore", error)
                time.sleep(pause)
                pause = min(30.0, pause * 2)
                continue
            self.health.worked("restore")
            return result
