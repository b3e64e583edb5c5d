"""Budget accounting: what a run has spent over all its attempts, computed from its folder alone, as durations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headway.core.errors import BadInput
from headway.core.plan import Plan
from headway.rundir import lease
from headway.rundir.layout import RunFolder

RESERVE_S = 60.0  # with less than this left, a new attempt would end at once


def spent_s(folder: RunFolder, *more: Mapping[str, Any]) -> float:
    """Return `lease.seconds_spent` of a folder. `more`: other records with a `spent_s`, such as the progress record."""
    record, _ = lease.read(folder.store)  # before the events: a lease is released after the last event
    return lease.seconds_spent([*folder.events(), *more], record)


def spent_usd(plan: Plan, seconds: float) -> float | None:
    """Convert seconds to dollars at the plan's price, disks included; None where nothing is billed."""
    rate = rate_usd(plan)
    return None if rate is None else seconds / 3600 * rate


def rate_usd(plan: Plan) -> float | None:
    """Return the plan's dollars per hour for all nodes; None where nothing is billed."""
    price: dict[str, Any] = dict(plan.price)
    if not price.get("usd_per_hour"):
        return None
    billed = price["spot_usd_per_hour"] if price.get("billed") == "spot" else price["usd_per_hour"]
    return float(billed) + float((price.get("disk") or {}).get("usd_per_hour", 0.0))


def remainder(plan: Plan, spent: float) -> Plan:
    """Return the plan with the remaining budget as its limit, for targets that count from each start anew."""
    budget = plan.limits.budget_s
    if budget is None or not spent:
        return plan
    return replace(plan, limits=replace(plan.limits, budget_s=max(RESERVE_S, budget - spent)))


def require_some_left(plan: Plan, spent: float, run: str) -> None:
    """Raise BadInput if another attempt would end at once because the budget is spent."""
    budget = plan.limits.budget_s
    if budget is not None and budget - spent < min(RESERVE_S, budget / 5):
        what = f"the budget of {run} is spent: {spent / 3600:.2f} of {budget / 3600:.2f} hours"
        raise BadInput(what, fix=f"headway resume {run} --budget-hours {budget / 3600 * 2:.4g}   (new total)")


def with_budget(plan: Plan, *, hours: float | None = None, usd: float | None = None) -> Plan:
    """Return the plan with a new total budget. Dollars become time at the plan's own price."""
    rate = rate_usd(plan)
    if usd is not None and rate is None:
        raise BadInput("nothing is billed on this target, so a budget in dollars has no effect", fix="--budget-hours N")
    limits = [value for value in (hours, usd / rate if usd is not None and rate else None) if value is not None]
    if not limits:
        return plan
    if min(limits) <= 0:
        raise BadInput("a budget must be greater than 0", fix="--budget-hours 8")
    allowed = min(limits)
    job = {**plan.job, "budget": {"usd": usd, "hours": hours}}
    price = {**plan.price, "ceiling_usd": round(allowed * rate, 3)} if rate else plan.price
    if rate:
        job["env"] = {**job["env"], "HEADWAY_BUDGET_USD": f"{allowed * rate:.6g}"}
    return replace(plan, job=job, price=price, limits=replace(plan.limits, budget_s=allowed * 3600))
