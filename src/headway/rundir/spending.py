"""Display a run's time and money over all attempts, beside its budget. The coordinator enforces the budget.

The seconds are computed by `lease.seconds_spent` from the events and the lease. A live rank shows a running figure of
its own (`training.metrics.progress.CostMeter`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.core.format import duration, usd
from headway.rundir.lease import spent_s, spent_usd

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.rundir.layout import RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class Spending:
    """Seconds and dollars that a run has spent. None means no limit, no estimate, or nothing billed."""

    seconds: float
    budget_s: float | None = None
    expected_s: float | None = None
    usd: float | None = None
    budget_usd: float | None = None
    expected_usd: float | None = None

    @classmethod
    def at(cls, plan: Plan, seconds: float) -> Spending:
        """Return what so many seconds cost at the plan's price."""
        hours = plan.price.get("expected_hours")
        return cls(
            seconds=seconds,
            budget_s=plan.limits.budget_s,
            expected_s=None if hours is None else hours * 3600,
            usd=spent_usd(plan, seconds),
            budget_usd=plan.price.get("ceiling_usd"),
            expected_usd=plan.price.get("expected_usd"),
        )

    @classmethod
    def of(cls, folder: RunFolder, *more: Mapping[str, Any], plan: Plan | None = None) -> Spending:
        """Read a run's folder. `more`: other records with a `spent_s`, such as the progress record."""
        return cls.at(plan or folder.plan(), spent_s(folder, *more))

    def as_json(self) -> dict[str, float | None]:
        """Return the record that `status --json` and the dashboard show."""
        return {
            "seconds": round(self.seconds, 1),
            "usd": self.usd,
            "budget_usd": self.budget_usd,
            "budget_s": self.budget_s,
        }

    @property
    def time_text(self) -> str:
        """Return `7m of 8h`, or `7m` without a budget."""
        return of_budget(self.seconds, self.budget_s, duration)

    @property
    def money_text(self) -> str:
        """Return `$0.12 of $5.00`, `$0.12` without a budget, or nothing if the target is not billed."""
        return of_budget(self.usd, self.budget_usd, usd)

    @property
    def text(self) -> str:
        """Return time and money with their budgets."""
        return ", ".join(filter(None, (self.time_text, self.money_text)))


def of_budget(spent: float | None, budget: float | None, text_of: Callable[[float], str]) -> str:
    """Format an amount and its budget; empty if there is no amount."""
    if spent is None:
        return ""
    return f"{text_of(spent)} of {text_of(budget)}" if budget else text_of(spent)
