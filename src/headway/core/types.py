"""The contract of a target (`Target`) and the values that it exchanges with the launcher."""

from __future__ import annotations

import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headway.core.errors import Problem

if TYPE_CHECKING:
    from headway.core.plan import Limits, Plan
    from headway.spec import Job


RUN_LABEL = "headway.run"  # on every resource that a target creates, so that runs are found without a database
OWNER_LABEL, OWNER_NAME_LABEL = (
    "headway.owner",
    "headway.owner-name",
)  # id and readable name of the owner, for `gc` and for people
OWNER, OWNER_NAME = "{OWNER}", "{OWNER_NAME}"  # placeholders in a plan, filled in at launch: plans hold no user's name
ORIGIN = "origin"  # key in a handle's details: the folder for which they were written, if it is not the handle's own
EXPIRES_LABEL = "headway.expires"  # Unix seconds after which the resource may be removed whatever its state
GRACE_S = 30.0  # for the last checkpoint after a request to stop, if a target does not set its own


class State(str, Enum):
    """State of a run. `LOST`: it ended without an `ended` event (killed, host gone); resumable, no known fault.
    `UNKNOWN`: its folder does not tell, and its target cannot be asked.

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
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """Whether the run has ended, for whatever reason."""
        return self not in (State.PENDING, State.RUNNING, State.UNKNOWN)

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
class Recorded:
    """Something rented for a run, by the record of this machine: billed even if the run or its folder is gone.

    Attributes:
        target: Name of the target in the job file.
        run: The run's name.
        url: The run folder.
        options: The target's options; empty if an older version wrote the record.
        what: The rented thing, in words.
    """

    target: str
    run: str
    url: str
    options: Mapping[str, Any]
    what: str


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

    @classmethod
    def of_listing(cls, run: str, created: Iterable[str], left: Iterable[str]) -> Receipt:
        """Make a receipt from what existed before a teardown and what a listing shows after it.

        Args:
            run: The run's name.
            created: Everything that the run had created on the target.
            left: What the listing shows.

        Returns:
            The receipt; whatever the listing does not show counts as removed.

        Example:
            >>> from headway.core.types import Receipt
            >>> Receipt.of_listing("night", ["pod a", "pod b"], left=["pod b"]).removed
            ('pod a',)
        """
        named, listed = tuple(dict.fromkeys(created)), tuple(left)
        removed = tuple(name for name in named if name not in listed)
        return cls(run=run, created=named, removed=removed, left=listed)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecCommand:
    """A command that runs Python on a run's machine with its standard streams connected, for `headway notebook`.

    Attributes:
        where: The machine, for messages.
        words: The command; it lacks only the arguments of that Python.
        url: The run folder's path or URL there.
        python: The interpreter that trains.
        quoted: Whether arguments after `words` go through a shell.
        here: Whether it runs on this machine, so that no tunnel is needed.
        install: Returns the command that installs JupyterLab there, given the interpreter.

    Example:
        >>> from headway.core.types import ExecCommand
        >>> ExecCommand(where="this machine", words=("python3",), url="runs/night").call("-c", "pass")
        ['python3', '-c', 'pass']
    """

    where: str
    words: tuple[str, ...]
    url: str
    python: str | None = None
    quoted: bool = False
    here: bool = False
    install: Callable[[str], str] = "{} -m pip install jupyterlab".format

    def call(self, *more: str) -> list[str]:
        """Return the command with further arguments.

        Args:
            *more: Arguments of that Python.

        Returns:
            The words of the command.
        """
        if not self.quoted:
            return [*self.words, *more]
        return [*self.words[:-1], f"{self.words[-1]} {shlex.join(more)}"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RentalCommands:
    """The shell commands by which the ssh target rents machines; `{run}` and `{id}` are filled in.

    Attributes:
        up: Rents the machines ($HEADWAY_NODES of them) and prints `host=ADDRESS id=ID` for each, or fails.
        down: Releases the machine `{id}`; succeeds if it is gone already.
        list: Prints a line for every machine of the run `{run}`; prints nothing once they are gone.
        self_down: A command on the machine itself that releases it if nobody else does; None if there is none.
        price: USD per hour of one machine; None if it is not known.
    """

    up: str
    down: str
    list: str
    self_down: str | None = None
    price: float | None = None


class MachineProvider(ABC):
    """A place that rents machines to the ssh target: the contract of an entry point of `headway.providers`.

    `targets: {gpu: {kind: ssh, provider: NAME, machine: {…}}}` then stands for the commands that it returns. The ssh
    target runs and records them like those of a job file, so that its guarantees about money hold for every provider.

    Example:
        >>> from headway.core.types import MachineProvider, RentalCommands
        >>> class Garage(MachineProvider):
        ...     def commands(self, machine):
        ...         up = f"garage rent {machine['type']} --label {{run}}"
        ...         return RentalCommands(up=up, down="garage return {id}", list="garage list --label {run}", price=0.4)
        >>> Garage().commands({"type": "big"}).up
        'garage rent big --label {run}'
    """

    @abstractmethod
    def commands(self, machine: Mapping[str, Any]) -> RentalCommands:
        """Return the commands that rent machines of this kind. Makes no request.

        Args:
            machine: The target's `machine` in the job file.

        Returns:
            The commands.

        Raises:
            BadInput: If a key is missing or wrong.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class NoOptions:
    """The options of a target that has none."""


class Target(ABC):
    """A place that runs plans: the contract of a target.

    Seven methods are abstract: `check`, `render`, `submit`, `status`, `logs`, `down` and `list_runs`. The others have
    defaults, those of a machine that is not billed and has no API to ask; a target overrides what differs. Nothing
    outside a target's package calls any other method of it. docs/plugins.md shows all on one screen.

    A new target is one class in any installed package, an entry point of the group `headway.targets` that names it, and
    one test file that inherits `headway.testing.TargetContract` (docs/plugins.md). Its constructor takes an instance of
    its `options_class`, a frozen dataclass. The launcher records a run in its folder before it calls `submit`, so
    that a run can be found and taken down whatever happens in between.

    Example:
        >>> from headway.core.types import Handle, Receipt, Request, State, Status, Target
        >>> class Nowhere(Target):
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
        ...     def list_runs(self):
        ...         return []
        >>> Nowhere().down(Handle(target="nowhere", run="night", url="runs/night")).left
        ()
        >>> Nowhere().billable_resources()
        []
    """

    __slots__ = ()
    sees_local_paths: ClassVar[bool] = False  # its processes see the paths of this machine: files need not be sent
    runs_in_place: ClassVar[bool] = False  # a project runs in its own folder, not in a copy of its code
    has_pods: ClassVar[bool] = False  # {pod.name} and {pod.ip} have values

    # What is known of it without making one. `headway.plugins.TargetPlugin` explains each.
    options_class: ClassVar[type[Any]] = NoOptions  # a frozen dataclass: its fields are the keys in the job file
    summary: ClassVar[str] = ""  # one line, to choose by
    on_this_machine: ClassVar[bool] = False
    own_python: ClassVar[bool] = False
    list_price_factor: ClassVar[float | None] = None
    scheduler_env: ClassVar[bool] = False
    shared_workdir: ClassVar[Literal["no", "yes", "ready-image"]] = "no"

    @classmethod
    def recorded(cls) -> list[Recorded]:
        """List what this machine has recorded as rented by this kind of target, for `gc`.

        Returns:
            The records. By default none.
        """
        return []

    @classmethod
    def configured_options(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read options that a job file leaves to this machine's configuration.

        Args:
            options: The options of the job file.

        Returns:
            Further options. By default none.
        """
        return {}

    @abstractmethod
    def check(self, job: Job) -> list[Problem]:
        """Return everything that would prevent this job from running here. Spends nothing.

        Args:
            job: The job, with absolute paths.

        Returns:
            All problems, not only the first; empty if the job can run.
        """

    @abstractmethod
    def render(self, plan: Plan) -> list[Request]:
        """Return the exact requests that `submit` will make. Pure.

        Args:
            plan: The plan. The run's name is not known yet: `{RUN}` stands for it.

        Returns:
            The requests in their order, as data.
        """

    @abstractmethod
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

    @abstractmethod
    def status(self, handle: Handle) -> Status:
        """Return the run's state as its folder and the target show it. Changes nothing.

        Args:
            handle: The run.

        Returns:
            The state. A run whose resources are gone without an `ended` event is `LOST`.
        """

    @abstractmethod
    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        """Yield the lines that the ranks printed, by time.

        Args:
            handle: The run.
            follow: Whether to wait for further lines until the run ends.
            rank: Only this rank's lines. None: those of all ranks.

        Returns:
            The lines.
        """

    @abstractmethod
    def down(self, handle: Handle) -> Receipt:
        """Stop gracefully, then by force; remove all but the run folder. Idempotent; finds resources by label.

        Args:
            handle: The run.

        Returns:
            What was removed, and what is left.

        Raises:
            TargetError: If the target cannot be reached.
        """

    @abstractmethod
    def list_runs(self) -> list[Handle]:
        """List everything here that carries Headway's label, without any local state. `headway gc` classifies each by
        its owner label and its run folder.

        Returns:
            One handle per run.
        """

    # Optional: asked while a plan is made

    def notes(self, job: Job, ranks: int) -> list[str]:
        """Return remarks for the plan that do not stop the job, such as a resource that has no effect here.

        Args:
            job: The job, with absolute paths.
            ranks: Ranks per node.

        Returns:
            One sentence each. By default none.
        """
        return []

    def limits(self, job: Job) -> Limits:
        """Return the durations that apply here.

        Args:
            job: The job.

        Returns:
            By default the job's own, enforced by the supervisor alone.
        """
        from headway.core.plan import Limits

        hours = job.budget.hours
        return Limits(
            budget_s=None if hours is None else hours * 3600,
            max_wait_s=job.max_wait,
            grace_s=GRACE_S,
            second="none (this machine is not billed)" if hours is None else "the supervisor's timer",
        )

    def cpus(self, job: Job, ranks: int) -> int:
        """Return the CPUs per node that the ranks' threads share.

        Args:
            job: The job.
            ranks: Ranks per node.

        Returns:
            The number. By default that of this machine.
        """
        return os.cpu_count() or 1

    def image_platform(self, job: Job) -> str:
        """Return the platform of the containers that run the job here, such as `linux/amd64`.

        Headway then brings the supervisor with an interpreter of its own, so that the job's image needs neither.

        Args:
            job: The job.

        Returns:
            The platform. By default empty: no container is started, or its image must have Headway inside.
        """
        return ""

    # Optional: asked over a network, where a person waits for the answer

    def online(self, plan: Plan) -> list[Problem] | None:
        """Return what only the target's API can tell would prevent this plan from running. Called at launch and by
        `plan --online`.

        Args:
            plan: The plan.

        Returns:
            All problems. By default None: there is no API to ask.
        """
        return None

    def online_notes(self, job: Job) -> list[str]:
        """Return remarks that only the target itself can make. Called by `plan --online`.

        Args:
            job: The job, with absolute paths.

        Returns:
            One sentence each. By default none.
        """
        return []

    def doctor(self, job: Job) -> Iterable[Finding]:
        """Check the setup that this job needs here, for `headway doctor --on`.

        Args:
            job: The job.

        Returns:
            The findings, each with the command that fixes it. By default none.
        """
        return ()

    def billable_resources(self) -> list[str]:
        """Return what stays billed although no run needs it, for `headway down` and `headway doctor`.

        Returns:
            One line each. By default none.
        """
        return []

    # Optional: asked about one run

    def links(self, handle: Handle) -> dict[str, str]:
        """Return the run's pages in a browser. Makes no request.

        Args:
            handle: The run.

        Returns:
            Address by title. By default none.
        """
        return {}

    def startup_events(self, handle: Handle) -> list[str]:
        """Return what the target has reported about a run that does not run yet, oldest first: for `headway run`.

        Args:
            handle: The run.

        Returns:
            One sentence each, such as `pulling image …`. By default none: `status` gives the reason.
        """
        return []

    def evidence(self, handle: Handle) -> list[str]:
        """Return what the target itself recorded about the run's end, for `headway why`.

        Args:
            handle: The run.

        Returns:
            Lines, oldest first. By default none.
        """
        return []

    def exec_command(self, handle: Handle) -> ExecCommand | None:
        """Return the command that runs Python beside the run's process, for `headway notebook`.

        Args:
            handle: The run.

        Returns:
            The command. By default None: not supported here.

        Raises:
            TargetError: If no process of the run is live.
        """
        return None
