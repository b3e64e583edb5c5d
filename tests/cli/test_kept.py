"""`--keep-on-failure`: a failed run's place stays for a while, ends by itself, and can be ended before."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli.dispatch import locate
from headway.launcher import lifecycle
from headway.targets.local.target import LocalTarget
from tests.cli.conftest import Headway
from tests.contract.suite import copied
from tests.waiting import wait_until


def failing(code: int = 3) -> None:
    Path("headway.yaml").write_text("name: job\nscript: train.py\nretries: 0\n")
    Path("train.py").write_text(f"raise SystemExit({code})\n")


def mine(name: str) -> list[str]:
    return [handle.run for handle in LocalTarget().list_runs() if handle.run == name]


@pytest.mark.slow
def test_after_a_failure_the_place_is_kept_until_it_is_taken_down(headway: Headway) -> None:
    failing()
    said = headway("run", "--name", "kept-one", "--keep-on-failure", "10m")
    assert said.code == 1
    assert "kept-one is kept until" in said.err
    assert mine("kept-one")
    assert headway("gc", "-y", "--on", "local").code == 0
    assert mine("kept-one")
    down = headway("down", "kept-one")
    assert down.code == 0
    assert not mine("kept-one")


@pytest.mark.slow
def test_a_copy_of_what_is_kept_is_not_kept(headway: Headway) -> None:
    failing()
    assert headway("run", "--name", "kept-four", "--keep-on-failure", "10m").code == 1
    copy = copied(locate("kept-four"), "kept-copy")
    assert "is kept until" not in headway("status", copy).err
    assert headway("down", copy).code == 0
    assert mine("kept-four"), "the original is"
    assert headway("down", "kept-four").code == 0
    assert not mine("kept-four")


@pytest.mark.slow
def test_what_is_kept_ends_by_itself(headway: Headway) -> None:
    failing()
    assert headway("run", "--name", "kept-two", "--keep-on-failure", "2s").code == 1
    hold = lifecycle.open_run(locate("kept-two"))
    wait_until(lambda: not mine("kept-two"), "it ends")
    assert hold.ensure_torn_down() is not None


def test_a_run_that_finishes_is_not_kept(headway: Headway) -> None:
    failing(0)
    assert headway("run", "--name", "kept-three", "--keep-on-failure", "10m").code == 0
    assert not mine("kept-three")


def test_how_long_is_a_duration(headway: Headway) -> None:
    failing()
    said = headway("run", "--keep-on-failure", "soon")
    assert said.code == 2
    assert "--keep-on-failure 60m" in said.err
