"""`scripts/results`, shortened: it trains what it is told to, once, and writes it down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.spec import Job

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]
JOBS = sorted((ROOT / "examples" / "results").glob("*.yaml"))


def results(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "results"), *words, "--to", str(folder / "docs")]
    env = {**os.environ, "HEADWAY_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    command += ["--runs", str(folder / "runs")]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_every_job_file_of_the_results_is_valid(path: Path) -> None:
    assert Job.load(path).name == path.stem


@pytest.mark.slow
def test_a_run_is_trained_once_and_recorded_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    done = results(tmp_path, "scenes", "--short", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    (record,) = map(json.loads, (tmp_path / "docs" / "results.jsonl").read_text().splitlines())
    assert record["job"] == "examples/results/scenes.yaml"
    assert record["seed"] == 2
    assert {"bleu_4", "cider", "exact_held_out"} <= set(record["test"])
    assert record["search"]["beam"] >= 1
    assert record["commit"]
    assert record["machine"]
    page = (tmp_path / "docs" / "results.md").read_text()
    assert "| [scenes.yaml](../examples/results/scenes.yaml)" in page
    assert (tmp_path / "docs" / "pictures" / "captions-wrong.png").read_bytes().startswith(b"\x89PNG")

    trained = (tmp_path / "runs" / "scenes-2" / "export" / "bundle.json").stat().st_mtime_ns
    page_path = tmp_path / "docs" / "results.md"
    page_path.write_text(page.replace("# Results", "# Results\n\nWords of my own."))
    assert results(tmp_path, "scenes", "--short", "--seeds", "2").returncode == 0
    assert (tmp_path / "runs" / "scenes-2" / "export" / "bundle.json").stat().st_mtime_ns == trained
    again = page_path.read_text()
    assert "Words of my own." in again
    assert again.count("[scenes.yaml]") == 1


def test_an_unknown_name_is_answered_with_those_there_are(tmp_path: Path) -> None:
    done = results(tmp_path, "sceens")
    assert done.returncode == 1
    assert "scenes" in done.stderr
