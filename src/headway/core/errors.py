"""The errors a person sees: what happened, where, and what to type next. Costs nothing to import."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# What `headway` returns to the shell. Other people's scripts rely on these numbers.
FINISHED, FAILED, BAD_INPUT, BUDGET_ENDED, RESUMABLE, LEFT_BEHIND = range(6)

# What a worker (the supervisor, process 1) returns to the place that runs it.
WORKER_DONE, WORKER_AGAIN = 0, 143


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing wrong with what the user gave us. `where` is file:line:column when there is one."""

    what: str
    where: str = ""
    fix: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n    fix: {self.fix}" if self.fix else head


class HeadwayError(Exception):
    """Everything Headway raises on purpose. The command line prints it without a traceback."""

    exit_code = FAILED

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.problem = Problem(what=what, where=where, fix=fix)

    def __str__(self) -> str:
        return str(self.problem)


class BadInput(HeadwayError):
    """The user can mend this: a file, an argument, a name."""

    exit_code = BAD_INPUT


class BadJob(BadInput):
    """A job file with problems: all of them, not the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class BadPlan(BadInput):
    """A saved plan that is damaged, of another version, or no longer true."""


class BadBundle(BadInput):
    """An exported model that is incomplete or does not match its checksums."""


class UnknownRun(BadInput):
    """No run answers to that name, or more than one does."""


class MissingExtra(BadInput):
    """The verb needs an optional part of Headway that is not installed."""

    def __init__(self, extra: str, *, needed_for: str, lacking: str = "") -> None:

        because = f": {lacking} is not installed" if lacking else ""
        super().__init__(f"{needed_for} needs Headway's extra [{extra}]{because}", fix=install_command(extra))
        self.extra = extra


class StoreError(HeadwayError):
    """A folder or bucket said no. Subclasses say which kind of no."""


class NotThere(StoreError):
    """The object does not exist. (Not: it could not be looked up.)"""


class NoBucket(StoreError):
    """The bucket, container or parent folder does not exist."""

    exit_code = BAD_INPUT


class Denied(StoreError):
    """Credentials are missing, expired, or not allowed to do this."""


class Conflict(StoreError):
    """A conditional write lost: somebody else was first. Nothing was changed."""


class DiskFull(StoreError):
    """No space left. What was there before is still whole."""


class Transient(StoreError):
    """Try again: the store was busy, slow, or out of reach. Neither damage nor absence."""


class TargetError(HeadwayError):
    """The place that runs plans refused or failed."""


class RunBusy(BadInput):
    """A second start on a live run."""


class RunFailed(HeadwayError):
    """The training itself failed."""


class NoCheckpoint(HeadwayError):
    """Commits were recorded, and none can be read: going on would throw work away."""


# Optional parts of Headway: what to type when one is missing.
#
# The command names the packages, never `headway` itself: an index may hold another project by that name.


def install_command(extra: str) -> str:
    """The pip command that brings the packages of `extra`, as this Headway's own metadata lists them."""
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
    """Around the imports of a verb: a missing package becomes the pip command that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "headway":
            raise  # our own bug, not something to install
        raise MissingExtra(extra, needed_for=f"headway {verb}", lacking=error.name or "a package") from None


# Text of strangers, read with suspicion. Costs an import of json.


def json_of(text: str | bytes | bytearray) -> Any:
    """What the JSON says. ValueError is the only way it fails, also for what is nested without end."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
