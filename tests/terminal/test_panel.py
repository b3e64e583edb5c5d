"""What the panel shows, at every size of a terminal."""

from __future__ import annotations

import re
from dataclasses import replace
from io import BytesIO, TextIOWrapper

import pytest
from rich.console import Console

from headway.core.types import LogLine, State, Status
from headway.dashboard.terminal import RunSnapshot, Screen, Series
from headway.rundir.spending import Spending

VIEW = RunSnapshot(
    run="night-owl",
    target="vertex",
    url="gs://bucket/night-owl",
    status=Status(state=State.RUNNING),
    progress={"step": 300, "steps": 1000, "epoch": 2, "epochs": 10, "rate": 12.34, "eta_s": 75, "attempt": 2},
    curves={"loss": Series.of([5 / (n + 1) for n in range(400)]), "accuracy": Series.of([0.1, 0.5, 0.9])},
    spent=Spending(seconds=600, budget_s=3600, usd=0.5, budget_usd=3.0),
)
WORDS = [LogLine(rank=rank, time="", text=f"line {rank} [red]not markup[/red] \x1b[2J") for rank in (-1, 0, 1)]


def drawn(width: int = 100, height: int = 30, view: RunSnapshot = VIEW, *, encoding: str = "utf-8") -> str:
    paper = TextIOWrapper(BytesIO(), encoding=encoding)
    console = Console(file=paper, width=width, height=height, force_terminal=True, no_color=True, highlight=False)
    console.print(Screen(view, WORDS, "q leaves"), height=height)
    paper.seek(0)
    return re.sub(r"\x1b\[[0-2]?m", "", paper.read())


def test_it_says_where_the_run_is_how_fast_and_what_it_costs() -> None:
    text = drawn()
    for said in ("night-owl", "vertex, attempt 2", "running", "epoch 3/10", "step 300/1000", "12.3 steps/s"):
        assert said in text
    for said in ("1m15s left", "spent 10m00s of 1h00m", "$0.500 of $3.00", "loss", "0.0125 to 5", "█", "q leaves"):
        assert said in text
    assert "line 1 [red]not markup[/red]" in text, "what a run prints is text, not markup"
    assert "\x1b[2J" not in text, "what a run prints does not move the cursor"


@pytest.mark.parametrize(("width", "height"), [(30, 13), (40, 20), (80, 24), (300, 90)])
def test_it_fits_terminals_of_any_size(width: int, height: int) -> None:
    many = {f"metric_with_a_long_name_{n}": VIEW.curves["loss"] for n in range(40)}
    lines = drawn(width, height, replace(VIEW, curves=many)).splitlines()
    assert len(lines) <= height + 1
    assert max(map(len, lines)) <= width


def test_a_terminal_that_knows_only_ascii_is_given_only_ascii() -> None:
    assert "loss" in drawn(encoding="ascii"), "and a mark that it does not know would have been an error"


def test_a_run_that_has_not_begun_is_waited_for() -> None:
    text = drawn(
        view=RunSnapshot(run="r", target="local", url="/r", status=Status(state=State.PENDING, reason="in a queue"))
    )
    assert "pending: in a queue" in text
    assert "waiting for the first step" in text
    assert "no curves yet" in text
