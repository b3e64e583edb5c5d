"""HEADWAY_TIMING: one variable for the intervals and limits that tests and unusual environments change."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.errors import BadInput
from headway.core.platform import ignored_timing, timing, timing_with
from headway.supervisor.supervisor import _settings
from tests.supervisor.supervised import make_case


def test_names_are_set_one_by_one() -> None:
    assert timing({}) == {}
    assert timing({"HEADWAY_TIMING": ""}) == {}
    assert timing({"HEADWAY_TIMING": "renew=0.3, same_step_crashes=7,"}) == {"renew": 0.3, "same_step_crashes": 7}


def test_a_change_leaves_the_others_as_they_are() -> None:
    changed = timing_with({"HEADWAY_TIMING": "renew=0.3,halt=2"}, halt=5, restart_pause=0)
    assert timing({"HEADWAY_TIMING": changed}) == {"renew": 0.3, "halt": 5, "restart_pause": 0}
    assert timing_with({}, restart_pause=0) == "restart_pause=0"


def test_the_jobs_timing_reaches_the_supervisor_and_its_environment_takes_precedence() -> None:
    chosen = _settings({"HEADWAY_TIMING": "renew=2"}, {"HEADWAY_TIMING": "restart_pause=0,renew=9"})
    assert (chosen.first_pause_s, chosen.renew_s) == (0, 2)


def test_a_variable_that_was_replaced_is_reported_with_the_new_spelling() -> None:
    assert ignored_timing({"HEADWAY_TIMING": "renew=1", "PATH": "/bin"}) == []
    assert ignored_timing({"HEADWAY_LOOK_S": "3", "HEADWAY_RENEW_S": "0.5"}) == [
        "HEADWAY_RENEW_S is ignored: write HEADWAY_TIMING=renew=0.5",
        "HEADWAY_LOOK_S is ignored: write HEADWAY_TIMING=reaper_poll=3",
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("renewal=3", "HEADWAY_TIMING has no 'renewal'"),
        ("3", "HEADWAY_TIMING has no '3'"),
        ("renew", "renew is '', not a number of seconds"),
        ("renew=soon", "renew is 'soon', not a number of seconds"),
        ("renew=-1", "renew is '-1', not a number of seconds"),
        ("renew=nan", "renew is 'nan', not a number of seconds"),
        ("renew=inf", "renew is 'inf', not a number of seconds"),
        ("same_step_crashes=2.5", "same_step_crashes is '2.5', not a whole number"),
    ],
)
def test_what_it_does_not_know_is_refused(text: str, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        timing({"HEADWAY_TIMING": text})


def test_a_supervisor_starts_nothing_with_a_name_it_does_not_know(tmp_path: Path) -> None:
    case = make_case(tmp_path, 'mark("began")')
    supervisor = case.start(HEADWAY_TIMING="renewal=3")
    assert supervisor.ends() == BadInput.exit_code
    assert "HEADWAY_TIMING has no 'renewal'" in supervisor.printed
    assert "set NAME=NUMBER,… with renew, restart_pause" in supervisor.printed
    assert not (tmp_path / "began").exists()
