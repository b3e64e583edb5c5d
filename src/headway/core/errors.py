"""Errors for users: what happened, where, and what to type next. Also exit codes, install hints and safe JSON parsing.

Costs nothing to import.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# Exit codes of `headway`. Other people's scripts rely on these numbers.
FINISHED, FAILED, BAD_INPUT, BUDGET_ENDED, RESUMABLE, LEFT_BEHIND = range(6)

# Exit codes of a worker (the supervisor, process 1) to the platform that runs it.
WORKER_DONE, WORKER_RESTART = 0, 143


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One problem with the user's input.

    Attributes:
        what: What is wrong.
        where: file:line:column if there is one, or another location.
        fix: What to type or change next.

    Example:
        >>> from headway.core.errors import Problem
        >>> print(Problem(what="the file is empty", where="headway.yaml:1:1", fix="headway init writes one"))
        headway.yaml:1:1: the file is empty
            fix: headway init writes one
    """

    what: str
    where: str = ""
    fix: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n    fix: {self.fix}" if self.fix else head


class HeadwayError(Exception):
    """Base class of every error that Headway raises on purpose. The command line prints it without a traceback.

    Args:
        what: What happened.
        where: Where it happened.
        fix: What to type next.

    Attributes:
        problem: The three as a `Problem`.
        exit_code: The exit code of `headway` after this error.

    Example:
        >>> import headway
        >>> from headway.core.errors import HeadwayError
        >>> try:
        ...     headway.open_run("runs/none")
        ... except HeadwayError as error:
        ...     print(type(error).__name__, error.exit_code)
        UnknownRun 2
    """

    exit_code = FAILED

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.problem = Problem(what=what, where=where, fix=fix)

    def __str__(self) -> str:
        return str(self.problem)


class BadInput(HeadwayError):
    """An error that the user can fix: a file, an argument, a name."""

    exit_code = BAD_INPUT


class BadJob(BadInput):
    """A job file with problems. Lists all of them, not only the first.

    Args:
        problems: The problems, also an attribute.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class BadPlan(BadInput):
    """A saved plan that is damaged, of another version, or no longer true."""


class BadBundle(BadInput):
    """An exported model that is incomplete or does not match its checksums."""


class UnknownRun(BadInput):
    """No run has that name, or more than one does."""


class MissingExtra(BadInput):
    """The command needs an optional part of Headway that is not installed.

    Args:
        extra: Name of the pip extra.
        needed_for: What needs it.
        package: The package that could not be imported.
    """

    def __init__(self, extra: str, *, needed_for: str, package: str = "") -> None:

        because = f": {package} is not installed" if package else ""
        super().__init__(f"{needed_for} needs Headway's extra [{extra}]{because}", fix=install_command(extra))
        self.extra = extra


class StoreError(HeadwayError):
    """A folder or bucket refused a request. Subclasses say why."""


class NotThere(StoreError):
    """The object does not exist. (Not raised when the lookup itself failed.)"""


class NoBucket(StoreError):
    """The bucket, container or parent folder does not exist."""

    exit_code = BAD_INPUT


class Denied(StoreError):
    """Credentials are missing, expired, or not allowed to do this."""


class Conflict(StoreError):
    """A conditional write lost to another writer. Nothing was changed."""


class DiskFull(StoreError):
    """No space left. Existing objects are intact."""


class Transient(StoreError):
    """The store was busy, slow or unreachable: retry. Says nothing about whether the object exists or is damaged."""


class TargetError(HeadwayError):
    """A target refused or failed."""


class RunBusy(BadInput):
    """A live run was started a second time."""


class RunFailed(HeadwayError):
    """The training itself failed."""


class NoCheckpoint(HeadwayError):
    """Checkpoints were committed but none can be read: continuing would throw work away."""


# Optional dependencies


def install_command(extra: str) -> str:
    """Return the pip command that installs the packages of `extra`, as listed in Headway's metadata.

    It names the packages, never `headway` itself: a package index may hold another project by that name.

    Args:
        extra: Name of the pip extra.

    Returns:
        The command, or a sentence if the metadata has no such extra.

    Example:
        >>> from headway.core.errors import install_command
        >>> install_command("aws").startswith("pip install 'boto3")
        True
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        listed = requires("headway") or []
    except PackageNotFoundError:  # run from a source tree that was never installed
        listed = []
    marker = re.compile(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""")
    names = [line.partition(";")[0].strip() for line in listed if marker.search(line)]
    quoted = " ".join(f"'{name}'" for name in names)
    return f"pip install {quoted}" if names else f"install Headway again with its extra [{extra}]"


@contextmanager
def needs(extra: str, verb: str) -> Iterator[None]:
    """Wrap a command's imports: turn a missing package into a MissingExtra with the pip command that installs it.

    Args:
        extra: Name of the pip extra that has the package.
        verb: The verb of the command line that needs it.

    Yields:
        Nothing; put the imports into the `with` block.

    Raises:
        MissingExtra: If a package other than Headway's own cannot be imported.

    Example:
        >>> from headway.core.errors import needs
        >>> with needs("train", "eval"):
        ...     import no_such_package
        Traceback (most recent call last):
            ...
        headway.core.errors.MissingExtra: headway eval needs Headway's extra [train]: no_such_package is not installed
            fix: pip install ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "headway":
            raise  # our own bug, not something to install
        raise MissingExtra(extra, needed_for=f"headway {verb}", package=error.name or "a package") from None


def json_of(text: str | bytes | bytearray) -> Any:
    """Parse untrusted JSON.

    Args:
        text: The JSON.

    Returns:
        The value.

    Raises:
        ValueError: If it is not JSON, or nested too deeply. Nothing else is raised.

    Example:
        >>> from headway.core.errors import json_of
        >>> json_of('{"step": 3}')
        {'step': 3}
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
