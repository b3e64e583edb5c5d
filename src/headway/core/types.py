"""The contract of a target (`Target`, seven methods) and the values that it exchanges with the launcher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from headway.core.errors import Problem

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job


RUN_LABEL = "headway.run"  # on every resource that a target creates, so that runs are found without a database
OWNER_LABEL, OWNER_NAME_LABEL = (
    "headway.owner",
    "headway.owner-name",
)  # id and readable name of the owner, for `gc` and for people
OWNER, OWNER_NAME = "{OWNER}", "{OWNER_NAME}"  # placeholders in a plan, filled in at launch: plans hold no user's name
ORIGIN = "origin"  # key in a handle's details: the folder for which they were written, if it is not the handle's own
EXPIRES_LABEL = "headway.expires"  # Unix seconds after which the resource may be removed whatever its state


class State(str, Enum):
    """State of a run. `LOST`: it ended without an `ended` event (killed, host gone); resumable, no known fault."""

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
    """One request that `submit` will make to the target, as data. `{RUN}` is a placeholder for the run's name."""

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
    """Record of a teardown: created, removed, and `left`: still there when listed again (empty: nothing is left)."""

    run: str
    created: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()  # a delete command reported success, but nothing could be listed afterwards


class Target(Protocol):
    """A place that runs plans. A new target is one file, one line in the registry and one test file."""

    def check(self, job: Job) -> list[Problem]:
        """Return everything that would prevent this job from running here. Spends nothing."""

    def render(self, plan: Plan) -> list[Request]:
        """Return the exact requests that `submit` will make. Pure."""

    def submit(self, plan: Plan, run: str) -> Handle:
        """Start the run, all or nothing: a submission that fails half-way removes what it created."""

    def status(self, handle: Handle) -> Status: ...

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]: ...

    def down(self, handle: Handle) -> Receipt:
        """Stop gracefully, then by force; remove all but the run folder. Idempotent; finds resources by label."""

    def found(self) -> list[Handle]:
        """List everything here that carries our label, without any local state."""


# One result of `headway doctor`: a check that passed, a note, or a problem and the command that fixes it.
@dataclass(frozen=True, slots=True)
class Finding:
    mark: str  # ok, note, bad
    what: str
    fix: str = ""
