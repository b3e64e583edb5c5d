"""A failure explains itself: where it happens, and later by `headway why`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli.dispatch import _with_diagnosis, locate
from headway.core.errors import TargetError
from headway.rundir.layout import RunFolder
from headway.storage import open_store
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
    assert "pip install not_installed_anywhere, then headway run" in said.out
    assert "requirements.txt" not in said.out, "nothing is installed from it on this machine"
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


def test_the_next_step_after_an_exception_is_to_edit_its_line(failing: Headway) -> None:
    Path("headway.yaml").write_text("name: job\nscript: train.py\n")
    Path("train.py").write_text("def half(x):\n    return x / 0\n\nprint('begins', flush=True)\nhalf(1)\n")
    said = failing("run", "--name", "bug")
    assert said.code == 1
    assert said.out.count("begins") == 2, "once more, and not a third time"
    assert "ZeroDivisionError at train.py:2, as in the attempt before, so it is not retried" in said.out
    assert said.out.splitlines()[-1] == "next: edit train.py:2, then headway run"
    why = failing("why", "bug").out
    assert why.splitlines()[-1] == "next: edit train.py:2, then headway run"
    assert why.count("Traceback") == 1
    events = RunFolder(open_store(locate("bug"))).events()
    assert [event["reason"] for event in events if event["kind"] == "not_retried"]


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("import not_installed_anywhere\n", "ModuleNotFoundError at train.py:1"),
        ("from os import no_such_name\n", "ImportError at train.py:1"),
        ("def f(:\n", "SyntaxError at train.py:1"),
        ("import argparse\nargparse.ArgumentParser().parse_args(['--no'])\n", "bad input, not retried"),
    ],
)
def test_what_is_certain_to_fail_again_is_not_tried_again(failing: Headway, script: str, what: str) -> None:
    Path("headway.yaml").write_text("name: job\nscript: train.py\n")
    Path("train.py").write_text(f"print('starts', flush=True)\n{script}" if "(:" not in script else script)
    said = failing("run", "--name", "sure")
    assert what.replace("train.py:1", "train.py:2" if "(:" not in script else "train.py:1") in said.out
    assert "attempt 2" not in said.out


def test_a_traceback_of_a_copy_names_the_users_own_file(failing: Headway) -> None:
    """A second run at a time runs in a copy of the folder."""
    Path("train.py").write_text("import time\ntime.sleep(600)\n")
    assert failing("run", "-d", "--name", "first").code == 0
    try:
        Path("bug.py").write_text("raise KeyError('no such key')\n")
        said = failing("run", "--name", "second", "--set", "script=bug.py")
    finally:
        failing("down", "first")
    assert "so this runs in a copy" in said.err
    assert f'File "{Path.cwd()}/bug.py", line 1' in said.out
    assert "local/code/bug.py" not in said.out
    assert said.out.splitlines()[-1].startswith("next: edit bug.py:1, then headway run")
    assert f'File "{Path.cwd()}/bug.py", line 1' in failing("logs", "second").out
    assert f'File "{Path.cwd()}/bug.py", line 1' in failing("why", "second").out
