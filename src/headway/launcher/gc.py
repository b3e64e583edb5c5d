"""Find resources that runs left behind on their targets, by label; classify them by their run folders; remove them.

The run index and the records of rented machines only tell which targets to search, besides those of the job file.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headway import targets
from headway.core.errors import HeadwayError, NotThere, StoreError, UnknownRun
from headway.core.retry import wait_until
from headway.core.types import Handle, Receipt, Recorded, State, Status, Target
from headway.launcher import lifecycle
from headway.plugins import TARGETS
from headway.rundir import lease, submission
from headway.rundir.index import RunIndex
from headway.rundir.layout import RunFolder
from headway.rundir.status import folder_of, read_status_inputs
from headway.rundir.submission import owner_id
from headway.rundir.teardown import kept_until
from headway.storage import local_path, open_store

if TYPE_CHECKING:
    from headway.spec import Job

MAX_RECENT_RUNS = 200  # newest runs in the index whose targets are searched too
ORPHAN, LIVE, UNKNOWN, OTHER_OWNER = "orphan", "live", "unknown", "not yours"
Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetRef:
    """A target to search, and its name in the job file."""

    name: str
    kind: str
    options: Mapping[str, Any]

    def build(self) -> Target:
        return targets.build(self.kind, self.options)


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundResource:
    """A labelled resource found on a target, and the verdict on it."""

    target_ref: TargetRef
    handle: Handle
    verdict: str  # orphan, live, unknown or not yours
    reason: str
    also_on: tuple[TargetRef, ...] = ()  # other targets that show the same run, as those of one namespace do

    @property
    def names(self) -> str:
        """The names of all targets that show it."""
        return ", ".join(dict.fromkeys(each.name for each in (self.target_ref, *self.also_on)))


def target_refs(job: Job | None, *, on: str | None = None, run_index: RunIndex | None = None) -> list[TargetRef]:
    """List the targets to search: one by name; or those of the job file and of recent runs, and this machine."""
    if on is not None:
        kind, options = (job.targets[on].kind, job.targets[on].options) if job and on in job.targets else (on, {})
        return [TargetRef(name=on, kind=kind, options=options)]
    found = [TargetRef(name="local", kind="local", options={})]
    if job is not None:
        found += [TargetRef(name=name, kind=entry.kind, options=entry.options) for name, entry in job.targets.items()]
    found += list(_refs_of_runs(run_index or RunIndex()))
    found += list(_refs_of_rentals())
    return list({(each.kind, _identity(each)): each for each in reversed(found)}.values())[::-1]


def _identity(place: TargetRef) -> str:
    return json.dumps(dict(place.options), sort_keys=True, default=str) if place.kind != "local" else ""


def _refs_of_runs(run_index: RunIndex) -> Iterable[TargetRef]:
    """Yield the targets of runs not known to have finished: no job file here may name them any more."""
    for row in run_index.rows(limit=MAX_RECENT_RUNS):
        if row.state in (State.FINISHED.value, "gone"):
            continue
        try:
            known = submission.read(RunFolder(open_store(row.url)))
        except (HeadwayError, ValueError):  # its folder is gone or unreachable, so its target is unknown
            continue
        yield TargetRef(name=str(known["target"]), kind=str(known["kind"]), options=known["options"])


def _refs_of_rentals() -> Iterable[TargetRef]:
    """Yield the targets of recorded rented machines: billed even if their run has finished or its folder is gone."""
    for kind, rental in _rentals():
        options = rental.options
        if not options:  # recorded by an older version
            try:
                options = submission.read(RunFolder(open_store(rental.url)))["options"]
            except (HeadwayError, ValueError):
                continue
        yield TargetRef(name=rental.target, kind=kind, options=options)


def _rentals() -> Iterable[tuple[str, Recorded]]:
    """Yield what the targets have recorded on this machine as rented, each with its kind of target."""
    for kind, entry in TARGETS.working():
        yield from ((kind, rental) for rental in entry.load_recorded())


def unlisted_rentals(found: Iterable[FoundResource]) -> list[str]:
    """List recorded rented machines whose target was not searched or gave no verdict."""
    urls = {each.handle.url for each in found if each.verdict != UNKNOWN}
    return [f"{rental.run}: {rental.what}" for _, rental in _rentals() if rental.url not in urls]


# The most careful verdict first: of several on one run, it counts.
_CAREFUL = (OTHER_OWNER, LIVE, UNKNOWN, ORPHAN)


def deduplicate(found: Iterable[FoundResource]) -> list[FoundResource]:
    """Return one row per run and kind of target: targets that share a namespace, or rent machines, find the same.

    The target that rented a machine is preferred; `remove` asks all of them.
    """
    groups: dict[tuple[str, str], list[FoundResource]] = {}
    for each in found:
        groups.setdefault((each.target_ref.kind, each.handle.url), []).append(each)
    return [_one_of(group) for group in groups.values()]


def _one_of(group: list[FoundResource]) -> FoundResource:
    if group[0].handle.details.get("rented"):
        return next((each for each in group if each.target_ref.name == each.handle.target), group[0])
    chosen = min(group, key=lambda each: _CAREFUL.index(each.verdict))
    others = tuple(each.target_ref for each in group if each is not chosen)
    return replace(chosen, also_on=others)


def find_resources(
    place: TargetRef, *, say: Log = lambda text: None, patience_s: float = lease.STALE_S
) -> list[FoundResource]:
    """List everything on the target that carries our label, each with a verdict. Raises what the target raises.

    Resources of other owners get the verdict OTHER_OWNER. A resource without an owner (made by an older Headway) is an
    orphan only if its own run folder says that the run has ended. One that is past its expiry but seems to run is an
    orphan only if its lease is not renewed for `patience_s`.
    """
    target = place.build()
    us, judged = owner_id(), []
    for handle in _one_per_run(target.list_runs(), us):
        whose = str(handle.details.get("owner", ""))
        if whose and whose != us:
            verdict, why = OTHER_OWNER, f"owned by {handle.details.get('owner_name') or 'another user'}"
        else:
            verdict, why = _classify(target, handle, say, patience_s)
        judged.append(FoundResource(target_ref=place, handle=handle, verdict=verdict, reason=why))
    return judged


def _one_per_run(handles: list[Handle], us: str) -> list[Handle]:
    """Keep one handle per run. If several people started it, keep another owner's: teardown removes all of a run."""
    strangeness = {us: 0, "": 1}
    ranked = sorted(handles, key=lambda handle: strangeness.get(str(handle.details.get("owner", "")), 2))
    chosen = {handle.url: handle for handle in ranked}
    return [chosen[url] for url in sorted(chosen)]


def _classify(target: Target, handle: Handle, say: Log, patience_s: float) -> tuple[str, str]:
    """Classify a resource that is ours or has no owner."""
    ours = bool(handle.details.get("owner"))
    try:
        status = target.status(handle)
        has_ended = read_status_inputs(folder_of(handle)).end is not None
    except (UnknownRun, NotThere):
        return _classify_without_folder(handle)
    except StoreError as error:  # an unreachable bucket says nothing about the run
        return UNKNOWN, f"its folder cannot be read: {error.problem.what}"
    if status.state is State.UNKNOWN:
        return UNKNOWN, status.reason
    if not status.state.ended:
        return _classify_live(handle, status, say, patience_s if ours else None)
    until = kept_until(folder_of(handle)) or target.kept_until(handle)
    if until is not None and until > time.time():
        return LIVE, f"kept until {time.strftime('%H:%M', time.localtime(until))}"
    if not ours and not has_ended:
        return UNKNOWN, f"its run is {status.state.value}, and it has no owner label: headway down {handle.url}"
    return ORPHAN, f"its run is {status.state.value}"


def _classify_without_folder(handle: Handle) -> tuple[str, str]:
    """Classify a resource without a visible run folder: deleted, or not mounted here, or on another machine."""
    path, host = local_path(handle.url), str(handle.details.get("owner_name", "")).rpartition("@")[2]
    if not handle.details.get("owner"):
        return UNKNOWN, "its run folder is not visible from here, and it has no owner label"
    if path is not None and host not in ("", socket.gethostname()):
        return UNKNOWN, f"its run folder is on {host}, which is not visible from here"
    if path is not None and not path.parent.is_dir():
        return UNKNOWN, f"{path.parent} does not exist here: mount it; or, if it was deleted: mkdir -p {path.parent}"
    return ORPHAN, "its run folder no longer exists"


def _classify_live(handle: Handle, status: Status, say: Log, patience_s: float | None) -> tuple[str, str]:
    """Classify a running resource: live, even past its expiry (our clock may be wrong) unless its lease is silent."""
    expires = _expires_at(handle)
    if expires is None or expires > time.time():
        return LIVE, status.state.value
    if patience_s is not None and _lease_is_silent(folder_of(handle), patience_s, say):
        return ORPHAN, "it is past its deadline and does not respond"
    return LIVE, f"{status.state.value}, but past its deadline by this machine's clock: headway down {handle.url}"


def _lease_is_silent(folder: RunFolder, patience_s: float, say: Log) -> bool:
    """Return whether the lease is not renewed for `patience_s` of our own clock. A queued run holds no lease."""
    record, version = lease.read(folder.store)
    if record is None or record.holder is None:
        return False
    if record.alive_at(folder.url) is not None:
        return not record.alive_at(folder.url)
    say(f"{folder.name} is past its deadline: waiting up to {patience_s:.0f} s to see whether it is still running")
    interval_s = min(1.0, patience_s / 10)
    return not wait_until(lambda: lease.read(folder.store)[1] != version, interval_s, within_s=patience_s)


def _expires_at(handle: Handle) -> float | None:
    """Return the Unix time after which it may be removed whatever its state, if the target records that."""
    try:
        return float(handle.details["expires"])
    except (KeyError, TypeError, ValueError):
        return None


def remove(found: FoundResource, *, say: Log, run_index: RunIndex | None = None) -> Receipt:
    """Take it down, and write the receipt into its run folder if there still is one."""
    receipts = [_remove_from(ref, found.handle, say, run_index) for ref in (*found.also_on, found.target_ref)]
    created = tuple(dict.fromkeys(name for receipt in receipts for name in receipt.created))
    left = {name for receipt in receipts for name in receipt.left}
    unverified = {name for receipt in receipts for name in receipt.unverified} - left
    return replace(Receipt.of_listing(found.handle.run, created, sorted(left)), unverified=tuple(sorted(unverified)))


def _remove_from(ref: TargetRef, handle: Handle, say: Log, run_index: RunIndex | None) -> Receipt:
    target = ref.build()
    try:
        return lifecycle.open_run(handle.url, target=target, run_index=run_index, say=say).down()
    except (UnknownRun, NotThere):
        return target.down(handle)
