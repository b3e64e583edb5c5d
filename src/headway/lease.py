"""Who runs a run now. One conditional put decides; the attempt number it carries fences everything written later."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from headway import processes
from headway.errors import Conflict, HeadwayError, NotThere, RunBusy
from headway.foreign import json_of
from headway.segments import segments
from headway.storage.base import ABSENT, Store

KEY = "lease.json"
RENEW_S, STALE_S = 10.0, 60.0


class LeaseLost(HeadwayError):
    """Somebody else runs this now: stop at once and write nothing more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    attempt: int
    holder: str | None  # None: given up
    host: str = ""
    boot: str = ""
    pid: int = 0
    started: str = ""
    beat: int = 0

    @classmethod
    def of(cls, raw: Any) -> Record:
        """TypeError unless it is a record as we write them: nobody's numbers are taken on trust."""
        found = cls(**raw)
        numbers, words = (found.attempt, found.pid, found.beat), (found.host, found.boot, found.started)
        if not all(type(value) is int for value in numbers) or not all(isinstance(value, str) for value in words):
            raise TypeError("not a lease")
        return found

    @property
    def seen(self) -> bool | None:
        """Whether the holder's process lives, where this very host can see it; None elsewhere."""
        return processes.alive(self.pid, self.started) if self.boot == processes.here() else None


def read(store: Store) -> tuple[Record | None, str]:
    """The record and its version; (None, ABSENT) where nobody ever took it."""
    try:
        version = store.stat(KEY).version
        return Record.of(json_of(store.read(KEY))), version
    except NotThere:
        return None, ABSENT
    except (ValueError, TypeError):
        # Damaged: its attempt is unknown, so it is replaced by one above every attempt that left a trace.
        return None, store.stat(KEY).version


class Lease:
    """Held by the supervisor. `attempt` rises with every start of the gang, first or repeated."""

    def __init__(self, store: Store, record: Record, version: str) -> None:
        self._store, self._record, self._version = store, record, version

    @property
    def attempt(self) -> int:
        return self._record.attempt

    @classmethod
    def take(
        cls,
        store: Store,
        *,
        wait: bool = True,
        holder: str = "",
        stale_s: float = STALE_S,
        on_wait: Callable[[Record], None] = lambda record: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Lease:
        """Take it, or raise RunBusy: at once if its holder is seen alive here, or when it is renewed while we wait.

        A lease is stale when it has not changed for `stale_s` of our own clock, so clocks need not agree. Whoever calls
        again after a store's error gives the same `holder` (`new_holder()`): the first call may have succeeded.
        """
        holder = holder or new_holder()
        while True:
            found, version = read(store)
            if found is not None and found.holder == holder:
                return cls(store, found, version)  # our own, whose answer was lost
            if found is not None and found.holder is not None and found.seen is not False:
                if found.seen or not wait:
                    raise _busy(found)
                on_wait(found)
                _wait_until_stale(store, version, found, stale_s, clock, sleep)
            record = _mine(holder, _next_attempt(store, found))
            try:
                return cls(store, record, store.write(KEY, _encode(record), when=version))
            except Conflict:
                continue  # somebody was quicker: look again, and meet a live lease

    def renew(self) -> None:
        """Say that we live. LeaseLost when fenced; a store that is down raises its own error and loses nothing."""
        self._put(replace(self._record, beat=self._record.beat + 1))

    def advance(self) -> int:
        """The next attempt, under the same holder: called before the gang is started again in place."""
        self._put(replace(self._record, attempt=self._record.attempt + 1))
        return self.attempt

    def release(self) -> None:
        self._put(replace(self._record, holder=None))

    def _put(self, record: Record) -> None:
        try:
            self._version = self._store.write(KEY, _encode(record), when=self._version)
        except Conflict:
            found, version = read(self._store)
            if found is None or found.holder != self._record.holder or found.attempt > record.attempt:
                raise LeaseLost(
                    "this run was taken over by another start of it", where=self._store.url, fix="headway ps"
                ) from None
            self._version = version  # our own write, whose answer was lost
            if found != record:
                self._version = self._store.write(KEY, _encode(record), when=version)
        self._record = record


def _wait_until_stale(
    store: Store,
    version: str,
    found: Record,
    stale_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    since = clock()
    while clock() - since < stale_s:
        sleep(min(1.0, stale_s / 10))
        now, now_version = read(store)
        if now is None or now.holder is None or now.seen is False:
            return
        if now_version != version:
            raise _busy(found)


def _busy(record: Record) -> RunBusy:
    return RunBusy(
        f"this run is live: attempt {record.attempt} on {record.host} (pid {record.pid})",
        fix="headway stop RUN, or give this one another --name",
    )


def _next_attempt(store: Store, found: Record | None) -> int:
    if found is not None:
        return found.attempt + 1
    return 1 + max((segment.attempt for segment in segments(store, "events")), default=0)


def new_holder() -> str:
    """A name that nobody else has."""
    pid = os.getpid()
    return f"{socket.gethostname()}-{pid}-{processes.started(pid)}-{os.urandom(4).hex()}"


def _mine(holder: str, attempt: int) -> Record:
    pid = os.getpid()
    return Record(
        attempt=attempt,
        holder=holder,
        host=socket.gethostname(),
        boot=processes.here(),
        pid=pid,
        started=processes.started(pid),
    )


def _encode(record: Record) -> bytes:
    return (json.dumps(asdict(record), sort_keys=True) + "\n").encode()
