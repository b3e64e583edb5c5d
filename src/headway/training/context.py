"""A rank's connections: run folder, lease, supervisor, signals, process group. Opened once, closed at exit."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from headway.core.errors import HeadwayError, StoreError
from headway.integrations import stacks
from headway.rundir.layout import SegmentWriter
from headway.rundir.lease import RENEW_S, Lease, LeaseLost
from headway.storage.base import Store
from headway.training import determinism, devices
from headway.training import rank_info as rank_infos
from headway.training.distributed.process_group import ProcessGroup
from headway.training.preemption import PreemptionHandler
from headway.training.rank_info import RankInfo

# Events and progress from a rank to its supervisor, as JSON lines. Without one, `LeaseKeeper` writes the events.


class ControlChannel(Protocol):
    def event(self, kind: str, **details: Any) -> None:
        """Append an event to the run's history."""

    def progress(self, **numbers: Any) -> None:
        """Report progress. Each report replaces the one before it."""


class ControlPipe:
    """A pipe to the supervisor. Each line is written under a lock, so lines never mix; a dead supervisor is ignored."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._lock = threading.Lock()

    def event(self, kind: str, **details: Any) -> None:
        self._send({"event": kind, **details})

    def progress(self, **numbers: Any) -> None:
        self._send({"progress": numbers, "step": numbers.get("step")})

    def _send(self, record: dict[str, Any]) -> None:
        line = (json.dumps(record) + "\n").encode()
        with self._lock:
            if self._fd is None:
                return
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:  # the supervisor has died: other code detects that
                self._fd = None


class NoControlChannel:
    """A control channel that discards everything, for ranks that have no listener."""

    def event(self, kind: str, **details: Any) -> None: ...

    def progress(self, **numbers: Any) -> None: ...


def log_line(text: str) -> None:
    """Write one whole log line to standard error."""
    sys.stderr.write(f"headway: {text}\n")
    sys.stderr.flush()


class Session:
    """A rank's context: its RankInfo, device, store, process group, control channel and stop signals."""

    def __init__(
        self, url: str | None, config: Mapping[str, Any], seed: int, settings: Mapping[str, Any] | None = None
    ) -> None:
        self._settings = settings
        world = rank_infos.topology_from_env(os.environ)
        self.device = devices.choose_device(world)
        self.group = ProcessGroup(world, self.device)
        self._lease: LeaseKeeper | None = None
        if "HEADWAY_ATTEMPT" in os.environ:
            self.rank_info = rank_infos.info_from_supervisor(os.environ)
        else:
            self.group.init_process_group()
            self.rank_info = self._standalone_info(url or os.environ.get("HEADWAY_RUN_URL"), config, seed)
        self.store: Store = self.rank_info.store
        self.control: ControlChannel = self._control()
        stacks.register()
        self.preemption = PreemptionHandler(self.rank_info.grace_s, self.rank_info.deadline_s, log=self.log)
        self.preemption.install()
        self.group.init_process_group()
        determinism.configure_torch(exact=self.rank_info.job.exact, device=self.device)

    @property
    def is_first(self) -> bool:
        return self.rank_info.world.rank == 0

    def log(self, text: str) -> None:
        """Log a line from rank 0 on behalf of all ranks. For a line about one rank, call `log_line`."""
        if self.is_first:
            log_line(text)

    @property
    def supervised(self) -> bool:
        """Whether a supervisor started this rank, which then reports the start and the end of the run."""
        return self.rank_info.control_fd is not None

    def event(self, kind: str, **details: Any) -> None:
        """Append an event to the run's history, from rank 0 on behalf of all ranks."""
        if self.is_first:
            self.control.event(kind, **details)

    @property
    def description(self) -> str:
        """World size and device, for the first line of the log."""
        size = self.rank_info.world.size
        return f"{size} ranks on {self.device.type}" if size > 1 else f"on {self.device.type}"

    def close(self, *, failed: bool) -> None:
        self.preemption.uninstall()
        if self._lease is not None:
            self._lease.close(failed=failed)
        if not failed:
            self.group.destroy_process_group()

    def _control(self) -> ControlChannel:
        if self.rank_info.control_fd is not None:
            return ControlPipe(self.rank_info.control_fd)
        return self._lease if self._lease is not None else NoControlChannel()

    def _standalone_info(self, url: str | None, config: Mapping[str, Any], seed: int) -> RankInfo:
        """On rank 0, find or create the run folder and take the lease; broadcast its URL and attempt to the others."""
        world = self.group.world
        info: RankInfo | None = None
        problem = ""
        if world.rank == 0:
            try:
                info = rank_infos.standalone_info(url, rank_infos.script_name(), config, seed, self._settings)
                self._lease = LeaseKeeper(info.store, Lease.acquire(info.store, on_wait=_log_waiting))
            except HeadwayError as error:
                if world.size == 1:
                    raise
                problem = str(error)
        message = {"url": info.store.url if info else "", "trouble": problem}
        if self._lease is not None and info is not None:
            message["attempt"] = str(self._lease.attempt)
        message = json.loads(self.group.broadcast_text(json.dumps(message)))
        if message["trouble"]:
            raise HeadwayError(message["trouble"])
        if info is None:
            os.environ["HEADWAY_RUN_URL"] = message["url"]
            info = rank_infos.standalone_info(message["url"], rank_infos.script_name(), config, seed, self._settings)
        for folder in info.unfinished_runs:
            log_line(f"{folder} is unfinished; set HEADWAY_RUN_URL={folder} to resume it")
        return rank_infos.with_attempt(info, int(message["attempt"]))


class LeaseKeeper:
    """Holds the lease and writes events from rank 0 when there is no supervisor; a ControlChannel."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._lease, self._started_at = lease, time.monotonic()
        self.attempt = lease.attempt
        self._events = SegmentWriter(store, "events", lease.attempt)
        self._stopped = threading.Event()
        self.lost: LeaseLost | None = None
        self.event("attempt", number=lease.attempt, host=os.uname().nodename, why="started by hand")
        self._thread = threading.Thread(target=self._renew, name="headway-lease", daemon=True)
        self._thread.start()

    def event(self, kind: str, **details: Any) -> None:
        record = {"kind": kind, "time": round(time.time(), 3), "spent_s": round(self._spent_s(), 3), **details}
        self._events.add(json.dumps(record))

    def progress(self, **numbers: Any) -> None: ...

    def close(self, *, failed: bool) -> None:
        self._stopped.set()
        self._thread.join(RENEW_S)
        try:
            self._events.flush()
            self._lease.release(self._spent_s())
        except HeadwayError as error:  # the process is ending: the lease expires by itself
            log_line(f"the lease could not be released: {error}")

    def _spent_s(self) -> float:
        """Seconds spent by all attempts until now."""
        return self._lease.record.spent_s + time.monotonic() - self._started_at

    def _renew(self) -> None:
        while not self._stopped.wait(RENEW_S):
            try:
                self._events.flush()
                self._lease.renew()
            except LeaseLost as lost:
                self.lost = lost
                return
            except StoreError:  # the store is down: try again in the next round
                continue


def _log_waiting(record: Any) -> None:
    log_line(f"waiting for the lease of attempt {record.attempt} on {record.host} to expire")
