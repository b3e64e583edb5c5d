"""Before the money is spent: what it costs an hour, what it will come to, what it can cost at most, and a question."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from headway.core.errors import BAD_INPUT
from headway.core.format import usd
from headway.pricing.estimate import PastRun, remember, work_of
from headway.spec import Job, dump
from tests.cli.conftest import Headway

JOB = """\
name: job
script: train.py
resources: {nodes: 1}
targets: {local: {kind: local, price: 2.5}}
"""


@pytest.fixture
def project(headway: Headway) -> Path:
    folder = Path.cwd()
    (folder / "train.py").write_text("print('trained')\n")
    (folder / "headway.yaml").write_text(JOB)
    return folder


def test_prices_compare_regions_cheapest_first(headway: Headway) -> None:
    said = headway("prices", "T4", "--region", "us-east1")
    assert "$0.730" in said.out
    assert "2026-08-21" in said.out
    rows = json.loads(headway("prices", "T4:2", "--json").out)["prices"]
    assert len({row["region"] for row in rows}) == len(rows) > 10
    assert rows[0]["usd_per_hour"] <= rows[-1]["usd_per_hour"]


def test_prices_show_vertexs_fee_where_it_is_asked_for(headway: Headway) -> None:
    def price(*more: str) -> float:
        return float(
            json.loads(headway("prices", "T4", "--region", "us-east1", "--json", *more).out)["prices"][0][
                "usd_per_hour"
            ]
        )

    assert price("--vertex") == pytest.approx(0.73 * 1.15)
    assert price("--factor", "2") == pytest.approx(1.46)


def test_prices_of_everything_name_each_kind_once(headway: Headway) -> None:
    rows = json.loads(headway("prices", "--json").out)["prices"]
    kinds = [row["accelerator"].split(":")[0] for row in rows]
    assert {"T4", "L4", "V100", "A100", "H100"} <= set(kinds)
    assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize("words", [("T9",), ("T4", "--region", "moon"), ("T4", "--factor", "0"), ("T4:0",)])
def test_prices_of_what_is_not_sold_say_so(headway: Headway, words: tuple[str, ...]) -> None:
    said = headway("prices", *words)
    assert said.code == BAD_INPUT
    assert "fix:" in said.err


def test_a_newer_table_is_taken_from_a_file(headway: Headway, tmp_path: Path) -> None:
    head = "# Mine, USD an hour, 2999-01-01\nkind,name,count,vcpus,memory_gib,region,usd_per_hour,spot_usd_per_hour\n"
    rows = "accelerator,T4,1,,,us-east1,9,8\nmachine,n1-standard-8,1,8,30,us-east1,1,1\n"
    (tmp_path / "new.csv").write_text(head + rows)
    assert "2999-01-01" in headway("prices", "--update", tmp_path / "new.csv").out
    assert "$10.00" in headway("prices", "T4").out


def test_the_plan_has_the_four_prices(headway: Headway, project: Path) -> None:
    price = json.loads(headway("plan", "--json", "--set", "budget.usd=5").out)["price"]
    assert (price["usd_per_hour"], price["spot_usd_per_hour"]) == (2.5, 2.5)
    assert (price["expected_usd"], price["ceiling_usd"]) == (None, 5.0)


def test_the_plan_expects_what_a_past_run_took(headway: Headway, project: Path) -> None:
    job = json.loads(headway("plan", "--json").out)["job"]
    threads = int(json.loads(headway("plan", "--json").out)["environment"]["threads"])
    remember(PastRun(url="runs/a", what="script:train.py", work=work_of(job), device=f"cpu:{threads}", nodes=1,
                     length=1.0, seconds=7200.0))  # fmt: skip
    price = json.loads(headway("plan", "--json").out)["price"]
    assert (price["expected_usd"], price["expected_hours"], price["basis"]) == (5.0, 2.0, "measured")
    text = headway("plan").out
    assert "$5.00 in 2h00m, measured" in text
    for kind in ("T4", "L4", "V100", "A100"):
        assert f"  {kind} " in text


def test_what_is_believed_of_the_price_does_not_rename_a_plan(headway: Headway, project: Path) -> None:
    from headway.planning import Plan

    before = Plan.from_json(headway("plan", "--json").out)
    remember(PastRun(url="runs/a", what="script:train.py", work=work_of(before.job), device="cpu:64", nodes=1,
                     length=1.0, seconds=7200.0))  # fmt: skip
    after = Plan.from_json(headway("plan", "--json").out)
    assert after.price != before.price
    assert after.hash == before.hash


def test_a_plan_twice_is_the_same_bytes(headway: Headway, project: Path) -> None:
    assert headway("plan", "--json").out == headway("plan", "--json").out


def test_a_budget_in_dollars_becomes_time_by_the_price_of_all_nodes(headway: Headway, project: Path) -> None:
    made = json.loads(headway("plan", "--json", "--set", "budget.usd=5").out)
    assert made["limits"]["budget_s"] == 7200.0
    both = json.loads(headway("plan", "--json", "--set", "budget.usd=5", "--set", "budget.hours=1").out)
    assert both["limits"]["budget_s"] == 3600.0
    assert both["price"]["ceiling_usd"] == 2.5


def test_ranks_are_told_the_price_and_the_budget(headway: Headway, project: Path) -> None:
    env = json.loads(headway("plan", "--json", "--set", "budget.usd=5").out)["job"]["env"]
    assert env == {"HEADWAY_USD_PER_HOUR": "2.5", "HEADWAY_BUDGET_USD": "5"}
    env = json.loads(headway("plan", "--json", "--set", "budget=none").out)["job"]["env"]
    assert env == {"HEADWAY_USD_PER_HOUR": "2.5"}


def test_without_a_budget_the_plan_says_that_nothing_ends_it(headway: Headway, project: Path) -> None:
    text = headway("plan", "--set", "budget=none").out
    assert "ceiling   none" in text
    assert "without end" in text


def test_on_a_free_target_nothing_is_billed_and_dollars_have_no_effect(headway: Headway, project: Path) -> None:
    (project / "headway.yaml").write_text(JOB.replace(", price: 2.5", ""))
    said = headway("plan", "--set", "budget.usd=5").out
    assert "nothing is billed" in said
    assert "budget.usd has no effect here" in said


def test_a_paid_run_asks_and_a_no_starts_nothing(
    headway: Headway, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    said = headway("run", "--set", "budget.usd=5", "--no-rehearse")
    assert said.code == BAD_INPUT
    assert "$2.50/h on demand" in said.err
    assert "$5.00, by the budget" in said.err
    assert "nothing was spent" in said.err
    assert not list((project / "runs").glob("job-*"))


def test_a_paid_run_with_nobody_to_ask_is_refused_and_says_how(
    headway: Headway, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    said = headway("run", "--no-rehearse")
    assert said.code == BAD_INPUT
    assert "add -y to the command" in said.err


def test_yes_is_the_answer_given_beforehand(headway: Headway, project: Path) -> None:
    said = headway("run", "-y", "--no-rehearse", "--name", "paid")
    assert said.code == 0, said.err
    assert "$2.50/h" in said.err


def test_money_reads_as_people_write_it() -> None:
    assert [usd(amount) for amount in (0.0, 0.73, 4.404, 1234.5)] == ["$0.00", "$0.730", "$4.40", "$1,234.50"]


def test_a_dumped_job_can_be_digested() -> None:
    assert len(work_of(dump(Job(name="j", script="t.py")))) == 16


def test_a_paid_run_is_rehearsed_first_and_a_failure_there_costs_nothing(headway: Headway, project: Path) -> None:
    (project / "train.py").write_text("import no_such_module_here\n")
    said = headway("run", "-y", "--name", "never")
    assert said.code == 1
    assert "the rehearsal failed" in said.err
    assert "no_such_module_here" in said.err
    assert not (project / "runs" / "never").exists()


def test_what_a_run_took_is_shown_against_what_was_expected(headway: Headway, project: Path) -> None:
    first = headway("run", "-y", "--no-rehearse", "--name", "one")
    assert " finished after " in first.out
    second = headway("run", "-y", "--no-rehearse", "--name", "two", "--set", "budget.usd=5")
    assert "(estimate: " in second.out
    assert "of $5.00" in headway("status", "two").out
    told = json.loads(headway("status", "two", "--json").out)["spent"]
    assert told["budget_usd"] == 5.0
    assert told["usd"] >= 0


def test_a_checkpoint_that_takes_longer_than_the_grace_period_is_pointed_out(headway: Headway, project: Path) -> None:
    job = json.loads(headway("plan", "--json").out)["job"]
    remember(PastRun(url="runs/a", what="script:train.py", work=work_of(job), device="cpu:2", nodes=1, length=1.0,
                     seconds=60.0, checkpoint_s=45.0, checkpoint_bytes=10**9))  # fmt: skip
    assert "a checkpoint took 45 s in earlier runs, and the grace period is 30 s" in headway("plan").out
