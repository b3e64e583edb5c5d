"""An in-memory target for testing code that drives targets. Starts no process, costs nothing.

Stricter than real targets: before `submit`, the plan and the submission record must be in the run folder and the code
archive must be uploaded. It writes the records that a supervisor would write, so a fake run reads like any other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headway.core.errors import Problem, TargetError
from headway.core.plan import RUN
from headway.core.types import RUN_LABEL, Handle, LogLine, Receipt, Request, State, Status, Target
from headway.rundir.layout import PLAN, SUBMISSION, RunFolder, SegmentWriter
from headway.rundir.lease import KEY, Lease, read
from headway.rundir.logs import tail
from headway.rundir.status import read_status_inputs
from headway.rundir.submission import Owner, owner, utc_now
from headway.storage import join, open_store

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job

POLL_S = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class FakeBehaviour:
    """The behaviour of every rank of a run. `{rank}` and `{world}` in its lines are filled in."""

    lines: tuple[str, ...] = ()
    exit_code: int = 0
    until_stopped: bool = False


@dataclass
class _Attempt:
    lease: Lease
    events: SegmentWriter
    logs: list[SegmentWriter]


@dataclass
class FakeTarget(Target):
    """An in-memory target. `behaviour` returns the behaviour of a plan's ranks.

    Without `behaviour` a run stays pending until the test calls `begin`, `print_line` and `end`.
    """

    options: Options = Options()
    behaviour: Callable[[Plan], FakeBehaviour] | None = None
    capacity: int | None = None  # worker capacity: exceeding it fails a submit half-way
    problems: list[Problem] = field(default_factory=list)
    workers: dict[str, list[str]] = field(default_factory=dict)  # url -> existing workers
    owners: dict[str, Owner] = field(default_factory=dict)  # url -> who submitted it last
    _attempts: dict[str, _Attempt] = field(default_factory=dict)

    def check(self, job: Job) -> list[Problem]:
        return list(self.problems)

    def render(self, plan: Plan) -> list[Request]:
        url = join(str(plan.job["outputs"]), RUN)
        return [
            Request(
                name=f"worker-{rank}.json",
                body={"rank": rank, "run": url, "labels": {RUN_LABEL: RUN}, "code": plan.code.sha256},
            )
            for rank in range(plan.nodes * plan.processes)
        ]

    def submit(self, plan: Plan, run: str) -> Handle:
        url = join(str(plan.job["outputs"]), run)
        handle = Handle(target=plan.target, run=run, url=url)
        folder = _folder(handle)
        _require_records(folder, plan)
        if self.workers.get(url):
            raise TargetError(f"{run} is running here already")
        try:
            for request in self.render(plan):
                self._create(url, f"worker {request.body['rank']} of {run}")
        except TargetError:
            self.down(handle)  # all or nothing: a partial process group cannot train, but is billed
            raise
        self.owners[url] = owner()
        if self.behaviour is not None:
            self.begin(url)
            self._simulate(url, self.behaviour(plan))
        return handle

    def status(self, handle: Handle) -> Status:
        exists = bool(self.workers.get(handle.url))
        inputs = read_status_inputs(_folder(handle))
        if inputs.end is not None:
            return inputs.end
        if exists:
            return Status(state=State.RUNNING if inputs.started else State.PENDING)
        return Status(state=State.LOST, reason="its workers no longer exist, and no exit status was recorded")

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        ended = (lambda: self.status(handle).state.ended) if follow else None
        return tail(_folder(handle), spool=None, ended=ended, rank=rank, sleep=lambda _: time.sleep(POLL_S))

    def down(self, handle: Handle) -> Receipt:
        if handle.url in self._attempts:
            self.end(handle.url, State.STOPPED, reason="taken down", exit_code=143)
        gone = tuple(self.workers.pop(handle.url, []))
        return Receipt(run=handle.run, created=gone, removed=gone)

    def list_runs(self) -> list[Handle]:
        return [
            Handle(target="fake", run=url.rpartition("/")[2], url=url, details=self._owner(url))
            for url in sorted(self.workers)
        ]

    def _owner(self, url: str) -> dict[str, str]:
        recorded = self.owners.get(url)
        return {"owner": recorded.id, "owner_name": recorded.name} if recorded else {}

    def begin(self, url: str) -> int:
        """Simulate a supervisor that takes the lease; return the attempt's number."""
        store, plan = open_store(url), RunFolder(open_store(url)).plan()
        lease = Lease.acquire(store, wait=False)
        ranks = range(plan.nodes * plan.processes)
        self._attempts[url] = _Attempt(
            lease=lease,
            events=SegmentWriter(store, "events", lease.attempt),
            logs=[SegmentWriter(store, "logs", lease.attempt, f"r{rank}", "log") for rank in ranks],
        )
        self._write_event(url, kind="attempt", number=lease.attempt, world=len(ranks))
        return lease.attempt

    def print_line(self, url: str, text: str, rank: int = 0) -> None:
        """Simulate a rank that prints a line."""
        writer = self._attempts[url].logs[rank]
        writer.add(f"{utc_now()} {text}")
        writer.flush()

    def end(self, url: str, state: State, *, reason: str = "", exit_code: int = 0) -> None:
        """Simulate the supervisor's `ended` event and release the lease. The workers exist until `down`."""
        self._write_event(url, kind="ended", state=state.value, reason=reason, exit_code=exit_code)
        self._attempts.pop(url).lease.release()

    def disappear(self, url: str) -> None:
        """Simulate a machine that disappears without an `ended` event, leaving a stale lease."""
        self._attempts.pop(url)
        self.workers.pop(url)
        store = open_store(url)
        record, version = read(store)
        assert record is not None  # an attempt holds it
        lease_record = json.loads(store.read(KEY))
        store.write(KEY, json.dumps({**lease_record, "started": "long ago"}).encode(), when=version)

    def _create(self, url: str, name: str) -> None:
        if self.capacity is not None and sum(map(len, self.workers.values())) >= self.capacity:
            raise TargetError("there is no room for another worker", fix="take one down")
        self.workers.setdefault(url, []).append(name)

    def _simulate(self, url: str, behaviour: FakeBehaviour) -> None:
        world = len(self._attempts[url].logs)
        for rank in range(world):
            for line in behaviour.lines:
                self.print_line(url, line.format(rank=rank, world=world), rank)
        if behaviour.until_stopped:
            return
        if behaviour.exit_code:
            self._write_event(
                url, kind="rank_exit", rank=0, code=behaviour.exit_code, signal="", lines=list(behaviour.lines[-20:])
            )
            reason = f"rank 0 exited with {behaviour.exit_code}"
            self.end(url, State.FAILED, reason=reason, exit_code=behaviour.exit_code)
        else:
            self.end(url, State.FINISHED)

    def _write_event(self, url: str, **event: Any) -> None:
        events = self._attempts[url].events
        events.add(json.dumps({"time": utc_now(), **event}))
        events.flush()


def _folder(handle: Handle) -> RunFolder:
    return RunFolder(open_store(handle.url))


def _require_records(folder: RunFolder, plan: Plan) -> None:
    """Fail unless the launcher's records exist before the first request. A missing one is a bug in the caller."""
    for key in (PLAN, SUBMISSION):
        folder.store.stat(key)
    open_store(join(str(plan.job["outputs"]), "code")).stat(f"{plan.code.sha256}.tar.gz")
