"""Build targets by name. A target's module is imported on first use, so unused targets cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import BadInput
from headway.plugins import TARGETS
from headway.spec.loading import from_plain
from headway.spec.model import TargetEntry

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.core.types import Target
    from headway.spec import Job


def entry(job: Job, name: str) -> TargetEntry:
    """Resolve `--on name` for this job: its own entry of that name, or the kind of that name with default options."""
    own = job.targets.get(name)
    if own is not None:
        return own
    if name in TARGETS:
        return TargetEntry(kind=name)
    known = sorted({*job.targets, *TARGETS})
    raise _unknown(f"no target is called {name!r}", name, known)


def make(job: Job, name: str) -> Target:
    """Build the target that this job calls `name`."""
    found = entry(job, name)
    return build(found.kind, found.options)


def of_plan(plan: Plan) -> Target:
    """Build the target that a plan was made for, from the plan alone."""
    return build(plan.kind, plan.options)


def build(kind: str, options: Mapping[str, Any]) -> Target:
    if kind not in TARGETS:
        raise _unknown(f"no kind of target is called {kind!r}", kind, sorted(TARGETS))
    home = TARGETS[kind]
    chosen = from_plain(options, home.load_options(), where=f"options of {kind}")
    return cast("Target", home.load_target()(chosen))


def _unknown(what: str, name: str, known: list[str]) -> BadInput:
    close = get_close_matches(name, known, n=1)
    return BadInput(what, fix=f"did you mean {close[0]!r}?" if close else f"one of: {', '.join(known)}")
