"""The lease: which supervisor may run a run now.

One conditional put decides. The attempt number in the lease is the fencing token for everything written later. Two
clients that start the same run are kept apart earlier, by `submission`. The lease also counts the seconds and dollars
spent, over all attempts; `spending` formats them.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from headway.core import platform
from headway.core.errors import BadInput, BadPlan, Conflict, HeadwayError, NotThere, RunBusy, json_of
from headway.core.plan import BUDGET_USD, Plan
from headway.core.retry import poll
from headway.rundir.layout import RunFolder, segments
from headway.storage import is_same_folder
from headway.storage.base import ABSENT, Store

KEY = "lease.json"
RENEW_S, STALE_S = 10.0, 60.0
_URL_VARIABLES = (
    "HEADWAY_RUN_URL",
    "HEADWAY_CLIENT_URL",
)  # variables that name the run folder, as its own machine and as its client see it


class LeaseLost(HeadwayError):
    """Another supervisor has taken over this run: stop at once and write nothing more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRecord:
    attempt: int
    holder: str | None  # None: released
    host: str = ""
    boot: str = ""
    pid: int = 0
    started: str = ""
    beat: int = 0
    spent_s: float = 0.0  # by the run before this holder took it; includes a dead holder's own once its lease is freed
    renew_s: float = RENEW_S  # seconds that one beat counts for
    free_s: float = 0.0  # seconds of its beats that are not spent: nodes were missing, and those there are not billed

    @classmethod
    def parse(cls, raw: Any) -> LeaseRecord:
        """Parse a record. Raises TypeError unless every field has the type that we write.

        A missing field was unknown to an earlier Headway; an unknown field is a later one's and is ignored.
        """
        names = {field.name for field in fields(cls)}
        found = cls(**{name: value for name, value in {**raw}.items() if name in names})
        numbers, strings = (found.attempt, found.pid, found.beat), (found.host, found.boot, found.started)
        if not all(type(value) is int for value in numbers) or not all(isinstance(value, str) for value in strings):
            raise TypeError("not a lease")
        if not all(_is_duration(value) for value in (found.beat, found.spent_s, found.renew_s, found.free_s)):
            raise TypeError("not a lease")
        return found

    def alive_at(self, url: str) -> bool | None:
        """Return whether the process that runs the folder at `url` is alive, if this host can see it; otherwise None.

        In a copy of a live run's folder, the record names a live process that runs the original folder, not the copy.
        """
        if self.boot != platform.pid_namespace_id():
            return None
        if not platform.is_alive(self.pid, self.started):
            return False
        labels = self._labels()
        return None if labels is None else not labels or any(is_same_folder(label, url) for label in labels)

    def labelled_at(self, url: str) -> bool:
        """Return whether a live process of this host declares in its environment that it runs the folder at `url`."""
        return bool(self.alive_at(url) and self._labels())

    def _labels(self) -> list[str] | None:
        """Return the folders that its process declares: empty if started by hand, None if it cannot be inspected."""
        variables = platform.headway_variables(self.pid)
        return None if variables is None else [variables[name] for name in _URL_VARIABLES if variables.get(name)]


def read(store: Store) -> tuple[LeaseRecord | None, str]:
    """Return the record and its version; (None, ABSENT) if nobody ever took the lease."""
    try:
        version = store.stat(KEY).version
        return LeaseRecord.parse(json_of(store.read(KEY))), version
    except NotThere:
        return None, ABSENT
    except (ValueError, TypeError):
        # Damaged: its attempt is unknown. The next holder takes a number above every attempt that has left events.
        return None, store.stat(KEY).version


def seconds_spent(events: Sequence[Mapping[str, Any]], record: LeaseRecord | None) -> float:
    """Count the seconds that a run has spent over all its attempts.

    All readers compute the total here; a live supervisor adds its own running time.

    A holder counts by its own clock and records the total in its events, so clocks may jump and time in a queue is not
    counted. For a holder that was killed, the lease counts: the total when it was taken, plus its beats.
    All of these are running totals and the maximum is taken, so nothing is counted twice, in whatever order it is read.
    """
    recorded = max((float(event.get("spent_s") or 0.0) for event in events), default=0.0)
    if record is None:
        return recorded
    if record.holder is None or _recorded_end(events, record.attempt):
        return max(recorded, record.spent_s)
    # Leases of earlier versions do not record where they count from: there the newest attempt's first event does.
    starts = [float(event.get("held_from_s", 0.0)) for event in events if event.get("kind") == "attempt"]
    before = max([record.spent_s, *starts[-1:]])
    return max(recorded, before + max(0.0, record.beat * record.renew_s - record.free_s))


def release_dead_holder(store: Store, is_gone: Callable[[LeaseRecord], bool], *, version: str | None = None) -> bool:
    """Release the lease of a holder that is certainly gone, so that nobody has to wait for it to go stale.

    One conditional write releases it and credits what the holder had spent. Returns False, with nothing written, if
    nobody holds it, if `is_gone(record)` is false, or if it was written meanwhile (since `version`, if given).
    """
    record, found = read(store)
    if record is None or record.holder is None or version not in (None, found) or not is_gone(record):
        return False
    released = replace(record, holder=None, spent_s=_total_spent_s(store, record))
    try:
        store.write(KEY, _encode(released), when=found)
    except Conflict:
        return False
    return True


class Lease:
    """A held lease, owned by the supervisor. `attempt` rises with every start of the ranks, first or repeated."""

    def __init__(self, store: Store, record: LeaseRecord, version: str) -> None:
        self._store, self._record, self._version = store, record, version

    @property
    def attempt(self) -> int:
        return self._record.attempt

    @property
    def record(self) -> LeaseRecord:
        return self._record

    @classmethod
    def acquire(
        cls,
        store: Store,
        *,
        wait: bool = True,
        holder: str = "",
        stale_s: float = STALE_S,
        renew_s: float = RENEW_S,
        on_wait: Callable[[LeaseRecord], None] = lambda record: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Lease:
        """Take the lease. Raises RunBusy: at once if its holder is seen alive here, or if it is renewed while we wait.

        A lease is stale when it has not changed for `stale_s` of our own clock, so clocks need not agree. To retry
        after a store error, pass the same `holder` (`new_holder()`): the first call may have succeeded.
        The new record includes what the former holder had spent: the same put overwrites the beats that show it.
        """
        holder = holder or new_holder()
        while True:
            found, version = read(store)
            if found is not None and found.holder == holder:
                return cls(store, found, version)  # our own write, whose response was lost
            seen = found.alive_at(store.url) if found is not None and found.holder is not None else False
            if found is not None and seen is not False:
                if seen or not wait:
                    raise _busy_error(found)
                on_wait(found)
                _wait_until_stale(store, version, found, stale_s, clock, sleep)
            record = _new_record(holder, _next_attempt(store, found), _total_spent_s(store, found), renew_s)
            try:
                return cls(store, record, store.write(KEY, _encode(record), when=version))
            except Conflict:
                continue  # another process was faster: read again and find a live lease

    def renew(self, free_s: float = 0.0) -> None:
        """Renew (heartbeat). Raises LeaseLost when fenced; if the store is down, its own error, and nothing is lost.

        `free_s`: how much of this holder's time is not spent.
        """
        self._put(replace(self._record, beat=self._record.beat + 1, free_s=round(free_s, 3)))

    def advance(self) -> int:
        """Begin the next attempt under the same holder: called before the ranks are restarted in place."""
        self._put(replace(self._record, attempt=self._record.attempt + 1))
        return self.attempt

    def release(self, spent_s: float | None = None) -> None:
        """Release the lease. `spent_s` is the run's total, from a holder whose events do not include it."""
        total = self._record.spent_s if spent_s is None else spent_s
        self._put(replace(self._record, holder=None, spent_s=total))

    def _put(self, record: LeaseRecord) -> None:
        try:
            self._version = self._store.write(KEY, _encode(record), when=self._version)
        except Conflict:
            found, version = read(self._store)
            if found is None or found.holder != self._record.holder or found.attempt > record.attempt:
                raise LeaseLost(
                    "this run was taken over by a newer attempt", where=self._store.url, fix="headway ps"
                ) from None
            self._version = version  # our own write, whose response was lost
            if found != record:
                self._version = self._store.write(KEY, _encode(record), when=version)
        self._record = record


def _wait_until_stale(
    store: Store,
    version: str,
    found: LeaseRecord,
    stale_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    for waited_s in poll(min(1.0, stale_s / 10), within_s=stale_s, sleep=sleep, clock=clock):
        if not waited_s:
            continue  # `found` has just been read
        now, now_version = read(store)
        if now is None or now.holder is None or now.alive_at(store.url) is False:
            return
        if now_version != version:
            raise _busy_error(found)


def _busy_error(record: LeaseRecord) -> RunBusy:
    return RunBusy(
        f"this run is already running: attempt {record.attempt} on {record.host} (pid {record.pid})",
        fix="headway stop RUN, or choose another --name",
    )


def _next_attempt(store: Store, found: LeaseRecord | None) -> int:
    if found is not None:
        return found.attempt + 1
    return 1 + max((segment.attempt for segment in segments(store, "events")), default=0)


def new_holder() -> str:
    """Return a unique holder name."""
    pid = os.getpid()
    return f"{socket.gethostname()}-{pid}-{platform.process_start_time(pid)}-{os.urandom(4).hex()}"


def _total_spent_s(store: Store, found: LeaseRecord | None) -> float:
    """Return the run's total including what this record shows, before the record is replaced."""
    if found is None:
        return 0.0
    if found.holder is None:
        return found.spent_s
    try:
        events = RunFolder(store).events()
    except BadPlan:  # damaged: the supervisor reads them again under its lease and reports it in the folder
        events = []
    return seconds_spent(events, found)


def _recorded_end(events: Sequence[Mapping[str, Any]], attempt: int) -> bool:
    """Return whether that attempt has recorded its end, and with it what was spent."""
    return any(
        event.get("kind") == "ended" and event.get("attempt") == attempt and "spent_s" in event for event in events
    )


def _is_duration(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e15


def _new_record(holder: str, attempt: int, spent_s: float, renew_s: float) -> LeaseRecord:
    pid = os.getpid()
    return LeaseRecord(
        attempt=attempt,
        holder=holder,
        host=socket.gethostname(),
        boot=platform.pid_namespace_id(),
        pid=pid,
        started=platform.process_start_time(pid),
        spent_s=spent_s,
        renew_s=renew_s,
    )


def _encode(record: LeaseRecord) -> bytes:
    return (json.dumps(asdict(record), sort_keys=True) + "\n").encode()


# Budget accounting: what a run has spent over all its attempts, computed from its folder alone, as durations.


RESERVE_S = 60.0  # with less than this left, a new attempt would end at once


def spent_s(folder: RunFolder, *more: Mapping[str, Any]) -> float:
    """Return `lease.seconds_spent` of a folder. `more`: other records with a `spent_s`, such as the progress record."""
    record, _ = read(folder.store)  # before the events: a lease is released after the last event
    return seconds_spent([*folder.events(), *more], record)


def spent_usd(plan: Plan, seconds: float) -> float | None:
    """Convert seconds to dollars at the plan's price, disks included; None where nothing is billed."""
    rate = usd_per_hour(plan)
    return None if rate is None else seconds / 3600 * rate


def usd_per_hour(plan: Plan) -> float | None:
    """Return the plan's dollars per hour for all nodes; None where nothing is billed."""
    price: dict[str, Any] = dict(plan.price)
    if not price.get("usd_per_hour"):
        return None
    billed = price["spot_usd_per_hour"] if price.get("billed") == "spot" else price["usd_per_hour"]
    return float(billed) + float((price.get("disk") or {}).get("usd_per_hour", 0.0))


def with_remaining_budget(plan: Plan, spent: float) -> Plan:
    """Return the plan with the remaining budget as its limit, for targets that count from each start anew."""
    budget = plan.limits.budget_s
    if budget is None or not spent:
        return plan
    return replace(plan, limits=replace(plan.limits, budget_s=max(RESERVE_S, budget - spent)))


def require_budget_left(plan: Plan, spent: float, run: str) -> None:
    """Raise BadInput if another attempt would end at once because the budget is spent."""
    budget = plan.limits.budget_s
    if budget is not None and budget - spent < min(RESERVE_S, budget / 5):
        what = f"the budget of {run} is spent: {spent / 3600:.2f} of {budget / 3600:.2f} hours"
        raise BadInput(what, fix=f"headway resume {run} --budget-hours {budget / 3600 * 2:.4g}   (new total)")


def with_budget(plan: Plan, *, hours: float | None = None, usd: float | None = None) -> Plan:
    """Return the plan with a new total budget. Dollars become time at the plan's own price."""
    rate = usd_per_hour(plan)
    if usd is not None and rate is None:
        raise BadInput("nothing is billed on this target, so a budget in dollars has no effect", fix="--budget-hours N")
    limits = [value for value in (hours, usd / rate if usd is not None and rate else None) if value is not None]
    if not limits:
        return plan
    if min(limits) <= 0:
        raise BadInput("a budget must be greater than 0", fix="--budget-hours 8")
    allowed = min(limits)
    job = {**plan.job, "budget": {"usd": usd, "hours": hours}}
    price = {**plan.price, "ceiling_usd": round(allowed * rate, 3)} if rate else plan.price
    if rate:
        job["env"] = {**job["env"], BUDGET_USD: f"{allowed * rate:.6g}"}
    return replace(plan, job=job, price=price, limits=replace(plan.limits, budget_s=allowed * 3600))
