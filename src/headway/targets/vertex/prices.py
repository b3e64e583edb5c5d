"""What each place costs an hour: a budget in dollars must hold in the dearest of them. Pure but for the price table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.price.quote import quote
from headway.spec.plain import to_plain
from headway.targets.vertex.options import Options
from headway.targets.vertex.places import Place, places

if TYPE_CHECKING:
    from headway.spec import Job


def usd_per_hour(job: Job, options: Options) -> list[tuple[Place, float | None]]:
    """Of all nodes, in each place, as it is billed there; None where the table does not know it."""
    return [(place, _of(place, job, options)) for place in places(job.resources, options)]


def hours(job: Job, options: Options) -> float | None:
    """The budget's, wherever the run ends up. None where nothing limits it."""
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


def _of(place: Place, job: Job, options: Options) -> float | None:
    resources = replace(job.resources, machine=place.machine, accelerator=place.accelerator, spot=place.spot)
    bill = quote(replace(job, resources=resources), "vertex", {**to_plain(options), "region": place.region})
    return None if bill is None or bill.missing else bill.billed_usd
