"""Candidate regions of a run, in order, with machine and price: the target's own first, then each of `fallback`.

Pure, except for the price table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.pricing.quote import quote
from headway.spec.model import Accelerator, Resources
from headway.spec.serialize import from_plain, to_plain
from headway.targets.vertex import machines
from headway.targets.vertex.options import Options

if TYPE_CHECKING:
    from headway.spec import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    region: str
    machine: str
    accelerator: Accelerator | None
    spot: bool

    def __str__(self) -> str:
        gpus = f" with {self.accelerator.kind}:{self.accelerator.count}" if self.accelerator else ""
        return f"{self.machine}{gpus}{' (spot)' if self.spot else ''} in {self.region}"


def places(resources: Resources, options: Options) -> list[Region]:
    """Return the preferred region and the fallbacks to try if it has no capacity."""
    found = [_place(resources, options.region)]
    for other in options.fallback:
        changed = replace(resources, spot=resources.spot if other.spot is None else other.spot)
        if other.accelerator or other.machine:
            # Another accelerator may need another machine, so do not keep the one named for the first.
            machine = other.machine or (None if other.accelerator else resources.machine)
            accelerator = other.accelerator or _of_machine(other.machine) or resources.accelerator
            changed = replace(changed, machine=machine, accelerator=accelerator)
        found.append(_place(changed, other.region or options.region))
    return found


def of_job(job: Mapping[str, Any], options: Options) -> list[Region]:
    """Return the candidates of a plan's copy of the job."""
    return places(from_plain(job.get("resources", {}), Resources, where="resources"), options)


def regions(options: Options) -> list[str]:
    """Return every region that a run of this target may be in."""
    return list(dict.fromkeys([options.region, *(other.region for other in options.fallback if other.region)]))


def _place(resources: Resources, region: str) -> Region:
    machine = machines.chosen(resources)
    return Region(region=region, machine=machine, accelerator=resources.accelerator, spot=resources.spot)


def _of_machine(machine: str | None) -> Accelerator | None:
    known = machines.MACHINES.get(machine or "")
    return known.built_in if known else None


# Prices: a budget in dollars must hold in the most expensive region


def usd_per_hour(job: Job, options: Options) -> list[tuple[Region, float | None]]:
    """Return the price of all nodes per candidate, as billed there; None if the table lacks it."""
    return [(place, _of(place, job, options)) for place in places(job.resources, options)]


def hours(job: Job, options: Options) -> float | None:
    """Return the hours that the budget allows in the most expensive candidate; None if unlimited."""
    known = [usd for _, usd in usd_per_hour(job, options) if usd]
    if job.budget.usd is None or not known:
        return job.budget.hours
    allowed = job.budget.usd / max(known)
    return allowed if job.budget.hours is None else min(allowed, job.budget.hours)


def notes(job: Job, options: Options) -> Iterator[str]:
    (_, first), *others = usd_per_hour(job, options)
    if job.budget.usd is None:
        return
    dearer = [(place, usd) for place, usd in others if usd and first and usd > first]
    if dearer:
        dearest, price = max(dearer, key=lambda pair: pair[1])
        yield f"budget: reckoned with the dearest place that it may go to, {dearest}: ${price:.3f} an hour"
    for place, usd in others:
        if usd is None:
            yield f"no price is known for {place}: there the budget is kept by the hours of the other places"


def _of(place: Region, job: Job, options: Options) -> float | None:
    resources = replace(job.resources, machine=place.machine, accelerator=place.accelerator, spot=place.spot)
    bill = quote(replace(job, resources=resources), "vertex", {**to_plain(options), "region": place.region})
    return None if bill is None or bill.missing else bill.billed_usd
