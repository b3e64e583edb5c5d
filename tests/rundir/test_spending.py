"""Time and money of a run, with their budgets, in words and as a record."""

from __future__ import annotations

from headway.rundir.spending import Spending


def test_amounts_are_shown_beside_their_budgets() -> None:
    spent = Spending(seconds=600, budget_s=3600, usd=0.5, budget_usd=3.0)
    assert spent.text == "10m00s of 1h00m, $0.500 of $3.00"
    assert spent.as_json() == {"seconds": 600, "usd": 0.5, "budget_usd": 3.0, "budget_s": 3600}


def test_a_missing_budget_or_price_is_left_out() -> None:
    assert Spending(seconds=600).text == "10m00s"
    assert Spending(seconds=600, usd=0.5).text == "10m00s, $0.500"
    assert Spending(seconds=600, usd=0.0, budget_usd=3.0).money_text.endswith(" of $3.00"), (
        "nothing yet is not unbilled"
    )
