"""How long a run may last in a cluster, in seconds: what stands behind the budget, engine by engine. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headway.planning.model import Limits
from headway.targets.kubernetes import gke
from headway.targets.kubernetes.options import Options, Trainer

if TYPE_CHECKING:
    from headway.planning.model import Plan
    from headway.spec import Job

DEFAULT_WAIT_S = 24 * 3600.0  # in the queue, where the job does not say: the cluster's own limits count waiting
MARGIN_S = 300.0  # for the farewell, and for clocks: the supervisor's own timer comes first
NEWEST: Trainer = "2.3"
WITH_DEADLINE = ("2.2", "2.3")  # releases of TrainJob that have one


def lifetime_s(budget_s: float | None, max_wait_s: float | None, grace_s: float, spent_s: float = 0.0) -> int | None:
    """From the first request to the last moment anything of the run may be there. None: no limit."""
    if budget_s is None:
        return None
    left = max(0.0, budget_s - spent_s)
    wait = DEFAULT_WAIT_S if max_wait_s is None else max_wait_s
    return math.ceil(wait + left + grace_s + MARGIN_S)


def of_plan(plan: Plan, spent_s: float = 0.0) -> int | None:
    limits = plan.limits
    return lifetime_s(limits.budget_s, limits.max_wait_s, limits.grace_s, spent_s)


def limits(job: Job, options: Options) -> Limits:
    """Durations as they hold in a cluster, and which limit stands behind the budget there."""
    budget_s = None if job.budget.hours is None else job.budget.hours * 3600
    spot = job.resources.spot and options.platform == "gke"
    grace = min(options.grace, gke.SPOT_GRACE_S) if spot else options.grace
    seconds = lifetime_s(budget_s, job.max_wait, grace)
    return Limits(budget_s=budget_s, max_wait_s=job.max_wait, grace_s=grace, second=_second(options, seconds))


def _second(options: Options, seconds: int | None) -> str:
    if seconds is None:
        return "none: without a budget nothing ends it but its own end"
    if options.engine == "pytorchjob":
        return f"the PyTorchJob's activeDeadlineSeconds of {seconds}, in which waiting counts"
    if options.engine == "trainjob":
        release = options.trainer or NEWEST
        if release in WITH_DEADLINE:
            return f"the TrainJob's activeDeadlineSeconds of {seconds}, in which waiting counts"
        return f"none in the cluster: TrainJob {release} has no deadline, and the supervisor's timer stands alone"
    return f"the reaper's timer of {seconds} s, and behind that its Job's activeDeadlineSeconds"
