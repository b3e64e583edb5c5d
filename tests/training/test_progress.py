"""The progress line: where the run is, how fast, how long, and what it has cost."""

from __future__ import annotations

import pytest

from headway.core.errors import BadInput
from headway.training.metrics.progress import CostMeter, progress_line

ENV = {"HEADWAY_USD_PER_HOUR": "3.6", "HEADWAY_BUDGET_USD": "5", "HEADWAY_SPENT_S": "100"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_cost_is_that_of_all_attempts() -> None:
    clock = Clock()
    bill = CostMeter(ENV, clock=clock)
    assert bill.numbers == {"usd": 0.1, "budget_usd": 5.0}
    clock.now += 20
    assert bill.numbers["usd"] == 0.12


def test_the_line_says_it_in_a_few_words() -> None:
    numbers = {"epoch": 1, "epochs": 20, "step": 130, "steps": 2000, "loss": 1.2344, "rate": 12.34, "eta_s": 151.5}
    where = "epoch 2/20  step 130/2000  loss 1.234  12.3 steps/s  3 min left"
    assert progress_line(numbers) == where
    assert progress_line({**numbers, "usd": 0.12}) == f"{where}  $0.12"
    assert progress_line({**numbers, "usd": 0.12, "budget_usd": 5.0}) == f"{where}  $0.12 of $5.00"


def test_nothing_is_said_where_nothing_is_billed() -> None:
    assert CostMeter({}).numbers == {}
    assert CostMeter({"HEADWAY_USD_PER_HOUR": "0", "HEADWAY_BUDGET_USD": "5"}).numbers == {}


def test_a_price_that_is_none_is_bad_input() -> None:
    with pytest.raises(BadInput, match="HEADWAY_USD_PER_HOUR=cheap is not a number"):
        CostMeter({"HEADWAY_USD_PER_HOUR": "cheap"})
