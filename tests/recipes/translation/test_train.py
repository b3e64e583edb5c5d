"""Training for real, small: it learns, ranks share the work, and run, bundle and command line say the same."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headway.artifacts.evaluate import evaluate_run, predict
from headway.artifacts.export import export_run
from headway.artifacts.models import open_model
from headway.artifacts.own_model import Choice
from headway.bundle.format import Bundle
from headway.cli.model import _from_stdin, _interactive, takes_typed_text
from headway.data.synthetic import phrases
from headway.metrics.samples import statistic
from headway.recipes.translation.train import schedule_options
from headway.rundir.layout import RunFolder
from headway.storage import open_store
from tests.recipes.folders import plan_of, run_folder
from tests.recipes.translation.tiny import job, settings, train_in, trained_run

FEW = {"train_samples": 60, "val_samples": 4}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: evaluations write into it."""
    return Path(shutil.copytree(trained_run(tmp_path_factory), tmp_path_factory.mktemp("runs") / "phrases-1"))


@pytest.mark.slow
def test_it_learns_to_translate(trained: Path) -> None:
    history = RunFolder(open_store(str(trained))).metrics()
    losses = [record["loss"] for record in history if "loss" in record]
    scores = [record for record in history if "bleu" in record]
    assert sum(losses[-10:]) < 0.4 * sum(losses[:10])
    assert max(record["bleu"] for record in scores) > 25
    assert scores[-1]["val_loss"] < scores[0]["val_loss"]


@pytest.mark.slow
def test_an_evaluation_says_how_it_counted_and_shows_sentences(trained: Path) -> None:
    told = evaluate_run(str(trained))
    assert told["count"] == 60
    assert {"bleu", "chrf", "exact", "bleu_seen", "bleu_held_out"} <= set(told["metrics"])
    assert "tok:13a" in told["signatures"][0]["signature"]
    assert sum(row["sentences"] for row in told["by_length"]) == 60
    kept = json.loads((trained / "report_samples.json").read_text())["samples"]
    bleu = statistic(kept["bleu"])(np.ones((1, 60)))[0]
    assert bleu == pytest.approx(told["metrics"]["bleu"], abs=0.01), "intervals are of the same score"
    page = (trained / "report.html").read_text()
    assert phrases.pairs("test", 1)[0].source in page


@pytest.mark.slow
def test_what_is_scored_and_exported_is_the_average_of_the_weights(trained: Path, tmp_path: Path) -> None:
    """The run's own validation is repeated from its checkpoint, and the bundle made from it is the run's."""
    exported = Bundle.open(str(trained / "export"))
    again = Bundle.open(export_run(str(trained), checkpoint="best", to=str(tmp_path / "models")))
    for name, weight in exported.weights().items():
        assert (again.weights()[name] == weight).all(), name
    assert exported.metrics["bleu"] == evaluate_run(str(trained), split="val")["validation"]["bleu"]


@pytest.mark.slow
def test_a_bundle_translates_what_is_given_typed_or_piped(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [pair.source for pair in phrases.pairs("train", 6)]
    answers = predict(str(trained), asked)
    assert [answer["input"] for answer in answers] == asked
    right = [answer["text"] == pair.target for answer, pair in zip(answers, phrases.pairs("train", 6), strict=True)]
    assert any(right)
    model = open_model(str(trained / "export"), Choice())
    assert takes_typed_text(model.service().fields)
    answer = model.answers
    typed = iter([asked[0], "word " * 100, ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    _interactive(answer)
    said = capsys.readouterr().out
    assert answers[0]["text"] in said
    assert "split it into sentences" in said, "a line that cannot be translated ends nothing"
    _from_stdin(answer, io.StringIO("\n".join([asked[1], "", asked[2]]) + "\n"), json=False)
    assert capsys.readouterr().out.splitlines() == [answers[1]["text"], "", answers[2]["text"]]


@pytest.mark.slow
def test_two_ranks_learn_the_same_as_one(tmp_path: Path) -> None:
    """The same batches, and a loss that is a mean over the tokens of both."""
    alone = losses(train_in(run_folder(tmp_path / "one", job(**FEW))))
    together = losses(_train_by_two(tmp_path / "two"))
    assert len(alone) == len(together) > 5
    assert together == pytest.approx(alone, rel=2e-3)


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in RunFolder(open_store(str(folder))).metrics() if "loss" in record]


def _train_by_two(folder: Path) -> Path:
    plan = json.loads(plan_of(job(**FEW)).to_json())
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps({**plan, "processes": 2}))
    env = {**os.environ, "HEADWAY_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "headway.runtime.worker", "--run", str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_each_schedule_is_told_what_it_wants_to_know() -> None:
    assert schedule_options(settings(schedule="noam"), 10) == {"width": 16, "warmup": 400}
    assert schedule_options(settings(schedule="inverse_sqrt"), 10) == {"warmup": 400}
    assert schedule_options(settings(schedule="cosine", epochs=3), 10) == {"steps": 30, "warmup": 400}
