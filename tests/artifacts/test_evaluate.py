"""Evaluating, exporting and predicting from a run's folder alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headway.artifacts.evaluate import evaluate_run, predict
from headway.artifacts.export import export_run
from headway.bundle.format import Bundle
from headway.core.errors import BadInput, NoCheckpoint, UnknownRun
from headway.data.synthetic import scenes
from headway.spec import Job
from tests.recipes.folders import captioning_job, plan_of, run_folder
from tests.recipes.trained_run import trained_run


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """A copy to work in."""
    return Path(shutil.copytree(trained_run(tmp_path_factory), tmp_path / "captions-1"))


@pytest.mark.slow
def test_an_evaluation_writes_both_reports_beside_the_runs_own_validation(run: Path) -> None:
    told = evaluate_run(str(run))
    assert told == json.loads((run / "report.json").read_text())
    page = (run / "report.html").read_text()
    assert page.count("<figure class=") == 48 + 12, "24 of each group, the six best and the six worst"
    assert told["baseline"]["metrics"]["bleu_4"] < told["metrics"]["bleu_4"]
    assert "it gives every picture the most frequent caption, “" in page
    assert told["count"] == 80
    assert told["checkpoint"] == "best"
    assert told["validation"]["bleu_4"] == Bundle.open(str(run / "export")).metrics["bleu_4"]
    assert told["metrics"]["bleu_4"] > 0.3
    assert told["environment"]["threads"] == 1


@pytest.mark.slow
def test_evaluating_twice_gives_the_same_numbers(run: Path) -> None:
    assert evaluate_run(str(run))["metrics"] == evaluate_run(str(run))["metrics"]


@pytest.mark.slow
def test_a_checkpoint_is_chosen_by_name_or_step(run: Path) -> None:
    last = evaluate_run(str(run), checkpoint="last", split="val")
    by_step = evaluate_run(str(run), checkpoint=str(last["step"]), split="val")
    assert by_step["metrics"] == last["metrics"]
    assert by_step["split"] == "val"
    with pytest.raises(BadInput, match="no checkpoint 'phase9_best'") as caught:
        evaluate_run(str(run), checkpoint="phase9_best")
    assert "best" in caught.value.problem.fix


@pytest.mark.slow
def test_the_validation_of_a_checkpoint_is_what_the_run_measured(run: Path) -> None:
    """The same weights, the same pictures, the same search: the same numbers to the last digit."""
    config = json.loads((run / "plan.json").read_text())
    config["job"]["config"]["beam"] = 1
    (run / "plan.json").write_text(json.dumps(config))
    told = evaluate_run(str(run), split="val")
    assert told["validation"]
    assert {name: told["metrics"][name] for name in told["validation"]} == pytest.approx(told["validation"])


@pytest.mark.slow
def test_a_bundle_made_from_a_checkpoint_is_the_one_the_run_exported(run: Path, tmp_path: Path) -> None:
    original = {path.name: path.read_bytes() for path in (run / "export").iterdir()}
    assert export_run(str(run), checkpoint="best", to=str(tmp_path / "models")) == str(tmp_path / "models")
    assert {path.name: path.read_bytes() for path in (tmp_path / "models").iterdir()} == original


@pytest.mark.slow
def test_exporting_without_a_name_takes_what_is_there_or_makes_it(run: Path, tmp_path: Path) -> None:
    assert export_run(str(run)) == str(run / "export")
    export_run(str(run), to=str(tmp_path / "models"))
    assert Bundle.open(str(tmp_path / "models")).name == "captions"
    shutil.rmtree(run / "export")
    export_run(str(run))
    assert Bundle.open(str(run / "export")).name == "captions"


@pytest.mark.slow
def test_a_run_predicts_with_its_own_bundle(run: Path, tmp_path: Path) -> None:
    paths = [str(path) for path in scenes.write_examples(tmp_path / "examples", 2)]
    assert predict(str(run), paths) == predict(str(run / "export"), paths)
    shutil.rmtree(run / "export")
    with pytest.raises(BadInput, match="exported no bundle yet"):
        predict(str(run), paths)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_not_evaluated(run: Path) -> None:
    step = json.loads((run / "checkpoints" / "best.json").read_text())["step"]
    (weights,) = (run / "checkpoints" / f"{step:08d}").glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(NoCheckpoint, match=f"step {step}") as caught:
        evaluate_run(str(run))
    assert "--checkpoint" in caught.value.problem.fix


def test_a_run_without_checkpoints_says_so(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "fresh", captioning_job())
    with pytest.raises(NoCheckpoint, match="no checkpoint yet"):
        evaluate_run(str(folder))


def test_a_script_without_a_model_is_sent_to_its_weights(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan_of(Job(name="own", script="train.py")).to_json())
    with pytest.raises(BadInput, match="as files: headway export"):
        evaluate_run(str(tmp_path))


def test_a_folder_that_is_no_run_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownRun):
        evaluate_run(str(tmp_path))


def test_an_unknown_split_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no split 'dev'"):
        evaluate_run(str(tmp_path), split="dev")
