"""`--keep-on-failure 60m`: after a failure the place stays as it is for so long, to look around in; then it ends.

The supervisor waits that long after it has said how the run ended, so the end needs nobody: the billing stops with it.
"""

from __future__ import annotations

import time

from headway.core.errors import HeadwayError
from headway.core.plan import Plan
from headway.rundir.accounting import rate_usd, spent_s
from headway.rundir.layout import RunFolder
from headway.rundir.submission import copied_from, unix

KEEP = "HEADWAY_KEEP_ON_FAILURE_S"  # in the plan's variables; read by the supervisor


def keep_s(plan: Plan) -> float:
    try:
        return max(0.0, float(plan.job.get("env", {}).get(KEEP, 0.0)))
    except ValueError:
        return 0.0


def kept_until(folder: RunFolder, *, now: float | None = None) -> float | None:
    """Unix seconds until which a failed run's place is kept; None where it is not, or no longer."""
    try:
        plan, ended, spent = folder.plan(), folder.ended(), spent_s(folder)
    except HeadwayError:
        return None
    seconds = keep_s(plan)
    if not seconds or ended is None or ended.get("state") != "failed" or copied_from(folder):
        return None
    until = unix(ended.get("time")) + _bounded(seconds, plan, spent)
    return until if until > (time.time() if now is None else now) else None


def _bounded(seconds: float, plan: Plan, spent: float) -> float:
    """Never beyond the budget."""
    budget = plan.limits.budget_s
    return seconds if budget is None else max(0.0, min(seconds, budget - spent))


def words(folder: RunFolder, until: float) -> str:
    """What a person must know of something that is kept."""
    left = max(0.0, until - time.time())
    rate = rate_usd(folder.plan())
    cost = f", at most ${left / 3600 * rate:.2f} more" if rate else ""
    clock = time.strftime("%H:%M", time.localtime(until))
    end = f"to end it now: headway down {folder.name}"
    return f"{folder.name} is kept until {clock} ({left / 60:.0f} min{cost}).   {end}"
