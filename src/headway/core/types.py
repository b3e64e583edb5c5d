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
    """State of a run. `LOST`: it ended without an `ended` event (killed, host gone); resumable, no known fault.

    Example:
        >>> from headway.core.types import State
        >>> [state.value for state in State if state.ended]
        ['finished', 'failed', 'budget', 'stopped', 'lost']
    """

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    BUDGET = "budget"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        """Whether the run has ended, for whatever reason."""
        return self not in (State.PENDING, State.RUNNING)

    @property
    def resumable(self) -> bool:
        """Whether `headway resume` can continue it."""
        return self in (State.STOPPED, State.LOST, State.FAILED, State.BUDGET)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request that `submit` will make to the target, as data. `{RUN}` is a placeholder for the run's name.

    Attributes:
        name: A file name for `plan --render`: "supervisor.json", "statefulset.yaml".
        body: The request.
    """

    name: str  # a file name for `plan --render`: "supervisor.json", "statefulset.yaml"
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """How to find a run again on its target. Plain JSON; kept in intent.json and in the local index.

    Attributes:
        target: Name of the target in the job file.
        run: The run's name.
        url: The run folder.
        details: What the target needs besides: process ids, a region, an instance's id.
    """

    target: str
    run: str
    url: str  # the run folder
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """State of a run at one moment.

    Attributes:
        state: The state.
        reason: Why, in words; empty if there is nothing to say.
        exit_code: The worker's exit code; None while it runs or if it is not known.
    """

    state: State
    reason: str = ""
    exit_code: int | None = None  # the worker's


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line that a rank printed.

    Attributes:
        rank: The rank.
        time: When, as ISO 8601 in UTC.
        text: The line, without its line break.
    """

    rank: int
    time: str  # ISO 8601, UTC
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """Record of a teardown: what existed, what was removed, and what is still there.

    Attributes:
        run: The run's name.
        created: Everything that the run had created on the target.
        removed: What was removed.
        left: What was still there when listed again; empty if nothing is left.
        unverified: What a delete command reported as removed, although nothing could be listed afterwards.
    """

    run: str
    created: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()  # a delete command reported success, but nothing could be listed afterwards


class Target(Protocol):
    """A place that runs plans: the contract of a target, seven methods.

    A new target is one package, one entry in `headway.plugins.TARGETS` and one test file that runs
    `tests/contract/suite.py`. Its constructor takes an instance of its options dataclass. The launcher records a run in
    its folder before it calls `submit`, so that a run can be found and taken down whatever happens in between.

    Example:
        >>> from headway.core.types import Handle, Receipt, Request, State, Status, Target
        >>> class Nowhere:
        ...     def check(self, job):
        ...         return []
        ...     def render(self, plan):
        ...         return [Request(name="nothing.json", body={"code": plan.code.sha256})]
        ...     def submit(self, plan, run):
        ...         return Handle(target=plan.target, run=run, url=f"{plan.job['outputs']}/{run}")
        ...     def status(self, handle):
        ...         return Status(state=State.LOST, reason="nothing runs here")
        ...     def logs(self, handle, *, follow, rank):
        ...         return iter(())
        ...     def down(self, handle):
        ...         return Receipt(run=handle.run)
        ...     def found(self):
        ...         return []
        >>> target: Target = Nowhere()
        >>> target.down(Handle(target="nowhere", run="night", url="runs/night")).left
        ()
    """

    def check(self, job: Job) -> list[Problem]:
        """Return everything that would prevent this job from running here. Spends nothing.

        Args:
            job: The job, with absolute paths.

        Returns:
            All problems, not only the first; empty if the job can run.
        """

    def render(self, plan: Plan) -> list[Request]:
        """Return the exact requests that `submit` will make. Pure.

        Args:
            plan: The plan. The run's name is not known yet: `{RUN}` stands for it.

        Returns:
            The requests in their order, as data.
        """

    def submit(self, plan: Plan, run: str) -> Handle:
        """Start the run, all or nothing: a submission that fails half-way removes what it created.

        Args:
            plan: The plan, whose code archive is uploaded and which is recorded in the run folder.
            run: The run's name.

        Returns:
            How to find the run again.

        Raises:
            TargetError: If the target refuses.
            RunBusy: If that run is live already.
        """

    def status(self, handle: Handle) -> Status:
        """Return the run's state as its folder and the target show it. Changes nothing.

        Args:
            handle: The run.

        Returns:
            The state. A run whose resources are gone without an `ended` event is `LOST`.
        """

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        """Yield the lines that the ranks printed, by time.

        Args:
            handle: The run.
            follow: Whether to wait for further lines until the run ends.
            rank: Only this rank's lines. None: those of all ranks.

        Returns:
            The lines.
        """

    def down(self, handle: Handle) -> Receipt:
        """Stop gracefully, then by force; remove all but the run folder. Idempotent; finds resources by label.

        Args:
            handle: The run.

        Returns:
            What was removed, and what is left.

        Raises:
            TargetError: If the target cannot be reached.
        """

    def found(self) -> list[Handle]:
        """List everything here that carries Headway's label, without any local state. `headway gc` compares it with the
        index.

        Returns:
            One handle per run.
        """


# One result of `headway doctor`: a check that passed, a note, or a problem and the command that fixes it.
@dataclass(frozen=True, slots=True)
class Finding:
    """One result of `headway doctor`: a check that passed, a note, or a problem and the command that fixes it.

    Attributes:
        mark: `ok`, `note` or `bad`.
        what: What was found.
        fix: The command that fixes it.
    """

    mark: str  # ok, note, bad
    what: str
    fix: str = ""
