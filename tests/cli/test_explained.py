"""A failure explains itself: where it happens, and later by `headway why`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli.dispatch import _with_diagnosis
from headway.core.errors import TargetError
from tests.cli.conftest import Headway


@pytest.fixture
def failing(headway: Headway) -> Headway:
    Path("headway.yaml").write_text("name: job\nscript: train.py\nretries: 0\n")
    Path("train.py").write_text("import not_installed_anywhere\n")
    return headway


def test_a_failed_run_says_why_at_its_end_and_when_asked(failing: Headway) -> None:
    said = failing("run", "--name", "sad")
    assert said.code == 1
    assert "not_installed_anywhere is not installed on the training machine" in said.out
    assert "requirements.txt" in said.out
    again = failing("why", "sad")
    assert again.code == 0
    assert "not_installed_anywhere" in again.out
    assert json.loads(failing("why", "sad", "--json").out)["name"] == "missing-module"


def test_an_unknown_failure_shows_its_last_lines(failing: Headway) -> None:
    Path("train.py").write_text("print('all is well'); raise SystemExit(9)\n")
    assert failing("run", "--name", "odd").code == 1
    said = failing("why", "odd").out
    assert "unknown failure" in said
    assert "all is well" in said


def test_a_run_that_finished_has_nothing_to_explain(failing: Headway) -> None:
    Path("train.py").write_text("print('done')\n")
    assert failing("run", "--name", "good").code == 0
    assert "nothing has failed" in failing("why", "good").out


def test_an_error_without_advice_of_its_own_is_explained() -> None:
    assert "gcloud auth" in _with_diagnosis(TargetError("google: invalid_grant: Bad Request"))
    assert _with_diagnosis(TargetError("invalid_grant", fix="do this")) == ""
    assert _with_diagnosis(TargetError("something else")) == ""
