"""Training for real, small: it learns, and run, report, bundle and prediction agree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headway.artifacts.evaluate import evaluate_run, predict
from headway.artifacts.export import export_run
from headway.bundle.format import Bundle
from headway.data.synthetic import leaves
from headway.rundir.layout import RunFolder
from headway.storage import open_store
from tests.recipes.classification.tiny import trained_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: evaluations write into it."""
    return Path(shutil.copytree(trained_run(tmp_path_factory), tmp_path_factory.mktemp("runs") / "leaves-1"))


@pytest.mark.slow
def test_it_learns_to_tell_leaves_apart(trained: Path) -> None:
    """Guessing is right in one of sixteen."""
    scores = [one for one in RunFolder(open_store(str(trained))).metrics() if "accuracy" in one]
    assert max(one["accuracy"] for one in scores) > 0.5
    assert max(one["grouped_accuracy"] for one in scores) > 0.8


@pytest.mark.slow
def test_an_evaluation_tells_each_class_each_group_and_what_was_mistaken(trained: Path) -> None:
    told = evaluate_run(str(trained))
    assert told["count"] == sum(row["samples"] for row in told["per_class"]) == 64
    assert {"accuracy", "top_5", "grouped_accuracy", "macro_f1", "accuracy_without"} <= set(told["metrics"])
    right = sum(row["samples"] * row["accuracy"] for row in told["per_class"])
    assert told["metrics"]["accuracy"] == pytest.approx(right / 64)
    others = [row for row in told["per_class"] if row["class"] != "Aster___healthy"]
    without = sum(row["samples"] * row["accuracy"] for row in others) / sum(row["samples"] for row in others)
    assert told["metrics"]["accuracy_without"] == pytest.approx(without)
    assert sum(told["confusion"][0][name] for name in leaves.CLASSES) == 4
    assert {row["in truth"] for row in told["grouped_confusion"]} == {"healthy", "sick"}
    kept = json.loads((trained / "report_samples.json").read_text())["samples"]
    for name in ("accuracy", "grouped_accuracy"):
        assert np.mean(kept[name]["values"]) == pytest.approx(told["metrics"][name])
    page = (trained / "report.html").read_text()
    assert 'class="matrix"' in page
    assert page.count("<img") == 24 + 6 + 6  # some, the best and the worst


@pytest.mark.slow
def test_the_validation_of_the_best_is_repeated_from_its_checkpoint(trained: Path) -> None:
    told = evaluate_run(str(trained), split="val")
    assert told["metrics"]["accuracy"] == told["validation"]["accuracy"]
    assert told["validation"]["accuracy"] == Bundle.open(str(trained / "export")).metrics["accuracy"]


@pytest.mark.slow
def test_a_bundle_names_the_likeliest_classes_of_picture_files(trained: Path, tmp_path: Path) -> None:
    paths = []
    for number in range(16):
        paths.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(leaves.draw("train", number)).save(paths[-1])
    answers = predict(str(trained), paths)
    assert [answer["input"] for answer in answers] == paths
    first = answers[0]["classes"]
    assert len(first) == 5
    assert first[0]["probability"] >= first[1]["probability"]
    assert answers[0]["text"].startswith(first[0]["class"])
    right = sum(answer["classes"][0]["class"] == name for answer, name in zip(answers, leaves.CLASSES, strict=True))
    assert right >= 8
    models = export_run(str(trained), checkpoint="best", to=str(tmp_path / "models"))
    assert predict(models, paths[:2]) == answers[:2]
    assert json.loads((tmp_path / "models" / "classes.json").read_text()) == list(leaves.CLASSES)
