"""One node's supervisor at work, whoever decides: its threads, its ranks, its logs, its folders."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.errors import HeadwayError, StoreError, Transient
from headway.core.plan import BEGINNING, Plan
from headway.rundir.layout import RunFolder
from headway.supervisor.file_sync import Mirror, MirrorDuty, copy_folder
from headway.supervisor.log_pipeline import Redactor, Spool, StdoutPump, rescue
from headway.supervisor.processes import OrphanReaper, Ranks, Reaper, Record
from headway.supervisor.rank_env import Secrets, Workdirs, command, remove_places
from headway.supervisor.threads import (
    Loop,
    LostLease,
    RecordWriter,
    StopAsked,
    StopNow,
    StoreHealth,
    TaskDone,
    ThreadDied,
)
from headway.supervisor.topology import NodeTopology
from headway.supervisor.workdir import Workdir, size_words, workdir_of

_TURN_S = 1.0  # the longest the main thread waits without looking up
_MARGIN_S = 2.0  # of the grace period, kept for the last log lines and the last event


class ForcedStop(HeadwayError):
    """A second signal: nothing more is waited for."""


class RunTakenOver(HeadwayError):
    """Another start of the run has taken over: nothing more is written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What tests and unusual places may change."""

    renew_s: float = 10.0
    first_pause_s: float = 1.0
    mirror_s: float = 30.0
    peers_s: float = 300.0
    flush_s: float = 120.0  # how long a run that has ended waits for a store that is down
    same_place: int = 3  # crashes at one step before the run is given up
    halt_s: float = 10.0  # for the ranks beside a failed one: they cannot finish a step without it


@dataclass(kw_only=True)
class Node:
    """Start it with `open`, pump it with `until`, end it with `close`."""

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
    heard: Callable[[int, Record], None] = field(default=lambda rank, record: None)  # control records of our ranks
    heed: Callable[[Any], None] = field(default=lambda message: None)  # messages of other threads

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
        self.stop = ""  # who asked for a stop
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
        """What the ranks have of it."""
        return self.grace_s - min(_MARGIN_S, self.grace_s / 4)

    def open(self, attempt: int) -> None:
        """The supervisor's own log of an attempt; the one before it is closed."""
        if self._log is not None:
            self._log.finish()
            self.scribe.close_log(self._log)
        self._log = self._spool(attempt, self._own_writer)

    def say(self, text: str) -> None:
        """One line in the supervisor's log and on its standard output."""
        text = self.redact(text.encode("utf-8", "backslashreplace")).decode()
        if self._log is not None:
            self._log.say(text)
        self.echo.say(text)

    def prepare_files(self, former: int) -> None:
        """Bring back what the script had saved. A store that is down is waited for: never a silent restart.

        `former` is the newest attempt whose ranks were started, 0 where none were.
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
        """What an earlier attempt wrote here after its last look is sent at the end, though no rank is started."""
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
        """What a killed supervisor of this node had on disk and not yet in the store belongs to the run's logs."""
        writers = [self._own_writer, *(f"r{rank}" for rank in self.world.ranks)]
        try:
            found = self.aside(lambda: rescue(self.places.spool, self.folder.store, below=attempt, writers=writers))
        except StoreError as error:
            self.say(f"the logs of an earlier attempt stay on this disk only: {error.problem.what}")
            return
        if found:
            self.say(f"saved the last lines of a killed attempt: {', '.join(found)}")

    def start_ranks(self, world: NodeTopology, attempt: int, facts: Mapping[str, Any]) -> None:
        """On the main thread: the kernel ends a rank with the thread that started it. `facts` hold on all nodes."""
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
        """All ranks have ended: nothing of theirs is left when this returns, and all they printed is on disk."""
        self.ranks.sweep()
        for log in self._rank_logs:
            self.scribe.close_log(log)
        self._rank_logs.clear()
        self.mirroring.wake()

    def until(self, done: Callable[[], bool], seconds: float | None = None) -> bool:
        """Pump until `done`, or for so many seconds. Says which: True when done."""
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
        """Run it on a thread while the main thread stays awake to signals; its result, or its error. A stop ends it."""
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
        """The first to ask is remembered; the grace period runs from then."""
        if not self.stop:
            self.stop, self.stop_at = by, time.monotonic()

    def finish(self, duty: str, seconds: float) -> bool:
        """Let a thread do its last work; False when the store did not take it in time."""
        thread = {"mirror": self.mirroring, "scribe": self.scribe}[duty]
        thread.finish()
        return self.finished(duty, seconds)

    def finished(self, duty: str, seconds: float) -> bool:
        return self.until(lambda: duty in self._done, seconds)

    def say_what_was_kept(self) -> None:
        """Once, at the end, where the script wrote anything below its working folder."""
        count, size = self.workdir.kept if self.workdir is not None else (0, 0)
        if count:
            files = "1 file" if count == 1 else f"{count} files"
            self.say(f"kept {files} ({size_words(size)}) that the script wrote: headway pull {self.folder.name}")

    def leave(self, *, complete: bool) -> None:
        """Remove what is ours on this machine; what the script wrote only where all of it is in the run folder."""
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
            raise ForcedStop("a second signal: ending at once")
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
