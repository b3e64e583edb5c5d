"""The contract of a place that runs plans. Seven verbs; everything else lives outside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from headway.core.errors import Problem

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job


RUN_LABEL = "headway.run"  # on everything a target creates: found again without a database
OWNER_LABEL, OWNER_NAME_LABEL = (
    "headway.owner",
    "headway.owner-name",
)  # whose it is, for `gc` and for people
OWNER, OWNER_NAME = "{OWNER}", "{OWNER_NAME}"  # stand in a plan where these will be: a plan is the same for everybody
ORIGIN = "origin"  # among a handle's details: the folder for which they were written, where it is not the handle's own
EXPIRES_LABEL = "headway.expires"  # when it may be removed whatever happens, in Unix seconds


class State(str, Enum):
    """Where a run is. `LOST` ended without a farewell (killed, host gone): resumable, nothing is known to be wrong."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    BUDGET = "budget"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        return self not in (State.PENDING, State.RUNNING)

    @property
    def resumable(self) -> bool:
        return self in (State.STOPPED, State.LOST, State.FAILED, State.BUDGET)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One thing `submit` will ask of the target, as data. `{RUN}` stands where the run's name will be."""

    name: str  # a file name for `plan --render`: "supervisor.json", "statefulset.yaml"
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """How to find a run again on its target. Plain JSON; kept in intent.json and in the local index."""

    target: str
    run: str
    url: str  # the run folder
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    state: State
    reason: str = ""
    exit_code: int | None = None  # the worker's


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    rank: int
    time: str  # ISO 8601, UTC
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """What was created, what was removed, and what a re-listing found afterwards (empty: nothing is left)."""

    run: str
    created: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()  # removed by the word of a command alone: nobody could be asked afterwards


class Target(Protocol):
    """A place that runs plans. A new one is one file, one registry line, one test file."""

    def check(self, job: Job) -> list[Problem]:
        """What would stop this job here, found without spending anything."""

    def render(self, plan: Plan) -> list[Request]:
        """The exact requests that `submit` will make. Pure."""

    def submit(self, plan: Plan, run: str) -> Handle:
        """Start it, all or nothing: what fails half-way leaves nothing behind."""

    def status(self, handle: Handle) -> Status: ...

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]: ...

    def down(self, handle: Handle) -> Receipt:
        """Stop gracefully, then by force, and remove all but the run folder. Idempotent; finds things by label."""

    def found(self) -> list[Handle]:
        """Everything here that carries our label, without any local state."""


# One thing that `headway doctor` found: what works, what is worth knowing, what does not and what to type.


@dataclass(frozen=True, slots=True)
class Finding:
    mark: str  # ok, note, bad
    what: str
    fix: str = ""
