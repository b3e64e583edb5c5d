"""Build targets by name. A target's module is imported on first use, so unused targets cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import BadInput
from headway.plugins import TARGETS
from headway.plugins.registry import declare, is_path, unknown_path
from headway.spec.loading import from_plain
from headway.spec.model import TargetEntry

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.core.types import Target
    from headway.spec import Job


def entry(job: Job, name: str) -> TargetEntry:
    """Resolve `--on name` for this job: its own entry of that name, or the kind of that name with default options.

    Args:
        job: The job.
        name: The name.

    Returns:
        Kind and options.

    Raises:
        BadInput: If neither exists.

    Example:
        >>> import headway
        >>> from headway import targets
        >>> targets.entry(headway.Job.load("headway.yaml"), "docker").kind
        'docker'
    """
    if is_path(name):
        declare(name, job.root, remember=True)
    own_entry = job.targets.get(name) or (TargetEntry(kind=name) if name in TARGETS else None)
    if own_entry is not None:
        plugin = TARGETS.get(own_entry.kind)
        if is_path(str(own_entry.options.get("provider"))):
            declare(own_entry.options["provider"], job.root, remember=True)
        configured = plugin.local_options(own_entry.options) if plugin else {}
        added = {name: value for name, value in configured.items() if own_entry.options.get(name) is None}
        return replace(own_entry, options={**own_entry.options, **added}) if added else own_entry
    known = sorted({*job.targets, *TARGETS})
    raise _unknown_name(f"no target is called {name!r}", name, known)


def make(job: Job, name: str) -> Target:
    """Build the target that this job calls `name`.

    Args:
        job: The job.
        name: The name, as for `--on`.

    Returns:
        The target.

    Raises:
        BadInput: If there is none of that name.
        MissingExtra: If packages that it needs are not installed.

    Example:
        >>> import headway
        >>> from headway import targets
        >>> job = headway.Job.load("headway.yaml")
        >>> targets.make(job, "local").check(job)
        []
    """
    target_entry = entry(job, name)
    return build(target_entry.kind, target_entry.options)


def of_plan(plan: Plan) -> Target:
    """Build the target that a plan was made for, from the plan alone.

    Args:
        plan: The plan.

    Returns:
        The target.

    Raises:
        BadInput: If this Headway has no such kind of target.
        MissingExtra: If packages that it needs are not installed.

    Example:
        >>> import headway
        >>> from headway import targets
        >>> plan = headway.plan(headway.Job.load("headway.yaml"))
        >>> targets.of_plan(plan).render(plan) == list(plan.requests)
        True
    """
    return build(plan.kind, plan.options)


def build(kind: str, options: Mapping[str, Any]) -> Target:
    """Build a target from its kind and options.

    Args:
        kind: A key of `headway.plugins.TARGETS`.
        options: The options as plain values, as a plan records them.

    Returns:
        The target.

    Raises:
        BadInput: If there is no such kind, or the options do not fit it.
        MissingExtra: If packages that it needs are not installed.

    Example:
        >>> from headway import targets
        >>> targets.build("local", {"price": 1.5}).options.price
        1.5
    """
    if kind not in TARGETS:
        if is_path(kind):
            raise unknown_path(kind)
        raise _unknown_name(f"no kind of target is called {kind!r}", kind, sorted(TARGETS))
    plugin = TARGETS[kind]
    typed_options = from_plain(options, plugin.load_options(), where=f"options of {kind}")
    return cast("Target", plugin.load_target()(typed_options))


def _unknown_name(what: str, name: str, known: list[str]) -> BadInput:
    close = get_close_matches(name, known, n=1)
    return BadInput(what, fix=f"did you mean {close[0]!r}?" if close else f"one of: {', '.join(known)}")
