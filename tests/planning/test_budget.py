"""A budget that means something: none that a start alone spends, and no billed run without one by accident."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.cli.run import describe
from headway.core.errors import BadJob
from headway.core.plan import Plan
from headway.planning import plan
from headway.spec import Job
from headway.spec.loading import dump, undump

PAID = "targets: {local: {kind: local, price: 2.5}}\n"
RENTED = 'targets: {vm: {kind: ssh, up: "up {run}", down: "down {id}", list: "list {run}"}}\n'


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "requirements.txt").write_text("")

    def make(text: str = "", on: str = "local") -> Plan:
        (tmp_path / "headway.yaml").write_text(f"name: job\nscript: train.py\n{text}")
        return plan(Job.load(tmp_path / "headway.yaml"), on=on)

    return make


def test_a_billed_run_without_a_budget_ends_after_a_day_and_its_plan_says_so(made: Any) -> None:
    planned = made(PAID)
    assert planned.limits.budget_s == 86_400.0
    assert planned.price["ceiling_usd"] == 60.0
    assert "the job names no budget, so the run ends after 24 h, $60.00 at most" in describe(planned)
    assert made().limits.budget_s is None, "this machine is not billed"


def test_a_machine_that_is_rented_without_a_known_price_is_billed_too(made: Any) -> None:
    planned = made(RENTED, on="vm")
    assert planned.limits.budget_s == 86_400.0
    assert any("the run ends after 24 h (" in note for note in planned.notes)


def test_no_budget_has_a_word_that_means_it(made: Any) -> None:
    planned = made(PAID + "budget: none\n")
    assert planned.limits.budget_s is None
    assert "without end" in describe(planned)
    assert "not billed" not in describe(planned)
    assert dump(undump(planned.job)) == planned.job, "also after the plan was recorded"
    assert "unlimited" not in made(PAID + "budget: {hours: 1}\n").job["budget"], "as in plans of before"
    with pytest.raises(BadJob, match="budget must be a mapping"):
        made("budget: nothing\n")


@pytest.mark.parametrize(
    ("text", "fix"),
    [("budget: {hours: 0.0004}\n", "hours=0.0056"), (PAID + "budget: {usd: 0.001}\n", "usd=0.21"),
     (PAID + "budget: {usd: 5, hours: 0.001}\n", "hours=0.083")],
)  # fmt: skip
def test_a_budget_that_a_start_alone_would_spend_is_refused_with_one_that_is_not(
    made: Any, text: str, fix: str
) -> None:
    with pytest.raises(BadJob) as refused:
        made(text)
    (problem,) = refused.value.problems
    assert "a start alone takes about" in problem.what
    assert problem.fix.endswith(fix)
    key, _, value = fix.partition("=")
    assert made(f"{PAID if 'price' in text else ''}budget: {{{key}: {value}}}\n").limits.budget_s > 15
