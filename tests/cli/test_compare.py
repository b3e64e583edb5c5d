"""`compare`, `eval`, `export --as` and `pull --as` as they are typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headway.cli import main
from headway.cli.model import spark
from tests.recipes.grading.trained import trained_grader

pytestmark = pytest.mark.torch


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to work in, from a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(trained_grader(tmp_path_factory), tmp_path / "runs" / "cards-1"))


@pytest.mark.slow
def test_two_evaluated_runs_are_shown_side_by_side(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(shutil.copytree(run, run.with_name("cards-2")))
    assert main(["eval", str(run)]) == 0
    assert main(["eval", str(other), "--checkpoint", "phase1_best"]) == 0
    told = capsys.readouterr().out
    assert "validation" in told
    assert "predicted" in told  # the row for each grade
    assert main(["compare", str(run), str(other), "--page", "page.html"]) == 0
    told = capsys.readouterr().out
    assert "qwk" in told
    assert "[" in told
    assert "note:" not in told
    assert "<svg" in Path("page.html").read_text()
    assert main(["compare", str(run), str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"value", "low", "high", "difference"} <= found["metrics"]["qwk"][1].keys()


def test_a_single_run_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(run)]) == 2
    assert "fix: headway compare RUN RUN" in capsys.readouterr().err


def test_pulling_as_pth_lists_what_was_written(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", str(run), "--as", "pth", "--to", "weights"]) == 0
    listed = capsys.readouterr().out.split()
    assert Path("weights/phase2_best.pth").resolve() in [Path(line).resolve() for line in listed]
    assert all(Path(line).is_file() for line in listed)
    assert main(["pull", str(run), "--as", "pth", "--only", "logs"]) == 2


def test_a_curve_is_drawn_from_its_first_value_to_its_last() -> None:
    assert spark([0.0, 0.5, 1.0]) == "0 ▁▅█ 1"
    assert spark([2.0, 2.0]) == "2 ▁▁ 2"
    assert spark([]) == ""
