"""Evaluating a grader: its own test split, other data, a bundle; every number beside the run's own validation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headway.artifacts.evaluate import SAMPLES, evaluate
from headway.core.errors import BadInput
from headway.data.prepare.pipeline import PrepareOptions, prepare
from headway.data.synthetic import cards
from tests.recipes.grading.trained import trained_grader

pytestmark = pytest.mark.torch


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """A copy to work in."""
    return Path(shutil.copytree(trained_grader(tmp_path_factory), tmp_path / "cards-1"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / "cards"
    cards.write_pairs(folder, {"val": 4, "test": 24})
    return folder


def test_a_report_has_a_row_for_each_grade_the_confusions_and_the_calibration(run: Path) -> None:
    told = evaluate(str(run))
    assert told == json.loads((run / "report.json").read_text())
    assert {"qwk", "mae", "accuracy", "within_one", "ece"} <= told["metrics"].keys()
    assert told["validation"].keys() == told["metrics"].keys()
    assert [row["grade"] for row in told["per_grade"]] == list(range(1, 11))
    assert sum(row["samples"] for row in told["per_grade"]) == told["count"] == 24
    assert len(told["confusion"]) == 10
    assert sum(row["samples"] for row in told["calibration"]) == 24
    page = (run / "report.html").read_text()
    assert 'class="matrix"' in page
    assert "Scores per grade" in page
    assert page.count("<figure class=") == 24 + 12, "all of them, the six best and the six worst"
    assert told["baseline"]["metrics"]["qwk"] == 0.0
    assert "it always predicts grade" in page


def test_what_each_input_adds_is_kept_for_comparisons(run: Path) -> None:
    told = evaluate(str(run))
    kept = json.loads((run / SAMPLES).read_text())
    assert len(kept["samples"]["mae"]["values"]) == 24
    assert sum(kept["samples"]["mae"]["values"]) / 24 == pytest.approx(told["metrics"]["mae"])
    assert kept["samples"]["qwk"]["kind"] == "kappa"


def test_the_validation_of_a_checkpoint_is_what_the_run_measured(run: Path) -> None:
    for checkpoint in ("phase1_best", "phase2_best"):
        told = evaluate(str(run), checkpoint=checkpoint, split="val")
        assert told["checkpoint"] == checkpoint
        assert told["metrics"] == pytest.approx(told["validation"], abs=1e-4)


def test_a_bundle_scores_as_its_run_and_nothing_is_written_into_it(run: Path) -> None:
    before = sorted(path.name for path in (run / "export").iterdir())
    of_bundle, of_run = evaluate(str(run / "export")), evaluate(str(run))
    assert of_bundle["metrics"] == of_run["metrics"]
    assert of_bundle["validation"] == of_run["validation"]
    assert sorted(path.name for path in (run / "export").iterdir()) == before


def test_prepared_data_and_a_splits_json_score_alike(run: Path, pairs: Path, tmp_path: Path) -> None:
    told = evaluate(str(run), data=str(pairs / "splits.json"))
    assert told["count"] == 24
    wishes = PrepareOptions(fit="squash")
    prepare(str(pairs), str(tmp_path / "shards"), size=96, encoding="raw", workers=1, options=wishes)
    again = evaluate(str(run), data=str(tmp_path / "shards"))
    assert again["metrics"] == told["metrics"]


def test_the_pictures_of_a_splits_json_may_lie_under_another_root(run: Path, pairs: Path, tmp_path: Path) -> None:
    whole = json.loads((pairs / "splits.json").read_text())
    for entry in whole["test"]:
        entry["front"] = str(pairs / entry["front"])  # absolute, as other tools write it
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "splits.json").write_text(json.dumps(whole))
    told = evaluate(str(run), data=str(tmp_path / "lists" / "splits.json"), root=str(pairs))
    assert told["metrics"] == evaluate(str(run), data=str(pairs / "splits.json"))["metrics"]


def test_what_cannot_be_evaluated_is_said_before_anything_is_done(run: Path, pairs: Path) -> None:
    with pytest.raises(BadInput, match="no split 'train'"):
        evaluate(str(run), data=str(pairs / "splits.json"), split="train")
    with pytest.raises(BadInput, match="--root"):
        evaluate(str(run), root=str(pairs))
    with pytest.raises(BadInput, match="one set of weights"):
        evaluate(str(run / "export"), checkpoint="phase1_best")
    (run / "splits.json").write_text(json.dumps({"test": [{"front": "../x.png", "back": "b.png"}]}))
    with pytest.raises(BadInput, match="is outside of"):
        evaluate(str(run), data=str(run / "splits.json"))
