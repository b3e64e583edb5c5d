"""Whatever takes longer than two seconds says so, and what is quicker says nothing."""

from __future__ import annotations

import pytest

from headway.cli import render
from headway.core.progress import report_progress, with_progress


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with render.progress_while("counting"):
        pass
    assert capsys.readouterr().err == ""


def test_what_takes_a_while_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "SHOW_AFTER_S", 0.05)
    monkeypatch.setattr(render, "PLAIN_S", 0.05)
    said = ""
    with render.progress_while("counting"):
        while "headway: counting, 0s" not in said:
            said += capsys.readouterr().err
        for number in with_progress(range(4), "counting to four", 4):
            while number == 1 and "headway: counting to four 25%, 0s" not in said:
                said += capsys.readouterr().err


def test_an_error_ends_it_and_is_not_hidden() -> None:
    def divide() -> None:
        with render.progress_while("dividing"):
            report_progress("dividing", 1, 0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        divide()


def test_nobody_need_listen() -> None:
    assert list(with_progress("abc", "letters", 3)) == ["a", "b", "c"]
