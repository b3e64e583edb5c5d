"""What runs left behind on their targets: found by label, judged by their folders, removed. Needs no local state."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway import intent, launcher
from headway.errors import HeadwayError, NotThere, StoreError, UnknownRun
from headway.kept import kept_until
from headway.ledger import Ledger
from headway.runfolder import RunFolder
from headway.storage import open_store
from headway.targets import registry
from headway.targets.base import Handle, Receipt, State, Target

if TYPE_CHECKING:
    from headway.spec import Job

LOOKED_AT = 200  # of the newest runs in the index, whose targets are asked too
ORPHAN, LIVE, UNKNOWN = "orphan", "live", "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A target to ask, and how people call it."""

    name: str
    kind: str
    options: Mapping[str, Any]

    def build(self) -> Target:
        return registry.build(self.kind, self.options)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Something that carries our label."""

    place: Place
    handle: Handle
    verdict: str  # orphan, live or unknown
    why: str


def places(job: Job | None, *, on: str | None = None, ledger: Ledger | None = None) -> list[Place]:
    """Where to look: a target by name; or all of the job file, all that recent runs used, and this machine."""
    if on is not None:
        kind, options = (job.targets[on].kind, job.targets[on].options) if job and on in job.targets else (on, {})
        return [Place(name=on, kind=kind, options=options)]
    found = [Place(name="local", kind="local", options={})]
    if job is not None:
        found += [Place(name=name, kind=entry.kind, options=entry.options) for name, entry in job.targets.items()]
    found += list(_of_runs(ledger or Ledger()))
    found += list(_of_rentals())
    return list({(each.kind, _identity(each)): each for each in reversed(found)}.values())[::-1]


def _identity(place: Place) -> str:
    return json.dumps(dict(place.options), sort_keys=True, default=str) if place.kind != "local" else ""


def _of_runs(ledger: Ledger) -> Iterable[Place]:
    """Runs that were not seen to their end may be in places that no job file here names any more."""
    for row in ledger.rows(limit=LOOKED_AT):
        if row.state in (State.FINISHED.value, "gone"):
            continue
        try:
            known = intent.read(RunFolder(open_store(row.url)))
        except (HeadwayError, ValueError):  # its folder is gone or out of reach: its place cannot be known from here
            continue
        yield Place(name=str(known["target"]), kind=str(known["kind"]), options=known["options"])


def _of_rentals() -> Iterable[Place]:
    """Rented machines on record: they are billed, though their run may have finished or its folder be gone."""
    from headway.targets.ssh.rental import Records

    for rental in Records().all():
        options = rental.options
        if not options:  # recorded by an older version
            try:
                options = intent.read(RunFolder(open_store(rental.url)))["options"]
            except (HeadwayError, ValueError):
                continue
        yield Place(name=rental.target, kind="ssh", options=options)


def unseen_rentals(found: Iterable[Found]) -> list[str]:
    """Rented machines on record whose target was not asked, or could not tell."""
    from headway.targets.ssh.rental import Records

    urls = {each.handle.url for each in found if each.verdict != UNKNOWN}
    rentals = [rental for rental in Records().all() if rental.url not in urls]
    return [f"{rental.run}: machine {', '.join(rental.ids) or 'of unknown id'}" for rental in rentals]


def once(found: Iterable[Found]) -> list[Found]:
    """A rented machine on record is found by every target that rents: keep the one it was rented on, if it is there."""
    chosen: dict[object, Found] = {}
    for number, each in enumerate(found):
        key: object = each.handle.url if each.handle.details.get("rented") else number
        if key not in chosen or (each.place.name == each.handle.target != chosen[key].place.name):
            chosen[key] = each
    return list(chosen.values())


def look(place: Place) -> list[Found]:
    """Everything there that carries our label, each with a verdict. Raises what the target raises."""
    target = place.build()
    return [_judged(place, target, handle) for handle in target.found()]


def _judged(place: Place, target: Target, handle: Handle) -> Found:
    def found(verdict: str, why: str) -> Found:
        return Found(place=place, handle=handle, verdict=verdict, why=why)

    folder = RunFolder(open_store(handle.url))
    try:
        status = target.status(handle)
    except (UnknownRun, NotThere):
        return found(ORPHAN, "its run folder is gone")
    except StoreError as error:  # a bucket out of reach says nothing about the run
        return found(UNKNOWN, f"its folder cannot be read: {error.problem.what}")
    expires = _expires(handle)
    if expires is not None and expires < time.time():
        return found(ORPHAN, "it is past its latest end")
    if not status.state.ended:
        return found(LIVE, status.state.value)
    until = kept_until(folder)
    if until is not None:
        return found(LIVE, f"kept after a failure until {time.strftime('%H:%M', time.localtime(until))}")
    return found(ORPHAN, f"its run is {status.state.value}")


def _expires(handle: Handle) -> float | None:
    """When it may be removed whatever happens, where the target keeps that."""
    try:
        return float(handle.details["expires"])
    except (KeyError, TypeError, ValueError):
        return None


def remove(found: Found, *, say: Callable[[str], None], ledger: Ledger | None = None) -> Receipt:
    """Take it down, with a receipt in its folder where it still has one."""
    target = found.place.build()
    try:
        return launcher.reach(found.handle.url, target=target, ledger=ledger, say=say).down()
    except (UnknownRun, NotThere):
        return target.down(found.handle)
