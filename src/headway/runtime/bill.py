"""What a run has cost so far, for its progress line: the price of all nodes times the time of all attempts.

HEADWAY_USD_PER_HOUR and HEADWAY_BUDGET_USD come with the plan, HEADWAY_SPENT_S from the supervisor when it starts the
rank. Time is measured, never taken from a calendar: clocks may jump.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headway.errors import BadInput

RATE, BUDGET, SPENT = "HEADWAY_USD_PER_HOUR", "HEADWAY_BUDGET_USD", "HEADWAY_SPENT_S"


class Bill:
    """Counts from the moment it is made."""

    def __init__(self, env: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._budget = _number(env, RATE), _number(env, BUDGET)
        self._before, self._clock, self._began = _number(env, SPENT) or 0.0, clock, clock()

    @property
    def numbers(self) -> dict[str, float]:
        """`usd`, and `budget_usd` where there is one; nothing where nothing is billed."""
        if not self._rate:
            return {}
        hours = (self._before + self._clock() - self._began) / 3600
        found = {"usd": round(hours * self._rate, 4)}
        return found if self._budget is None else {**found, "budget_usd": self._budget}


def words(numbers: Mapping[str, object]) -> str:
    """$0.12 of $5.00"""
    usd, budget = numbers.get("usd"), numbers.get("budget_usd")
    if not isinstance(usd, float):
        return ""
    return f"${usd:.2f}" + (f" of ${budget:.2f}" if isinstance(budget, float) else "")


def _number(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name, "")
    try:
        return float(text) if text else None
    except ValueError:
        raise BadInput(f"{name}={text} is not a number", where=name) from None
