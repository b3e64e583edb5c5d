"""Runs and bundles recorded under the former names of options: they go on, to the bit, and are used as before.

The plans in old_records were written by the version before the new names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from headway.artifacts.compare import compare, read_run
from headway.artifacts.evaluate import evaluate, predict
from headway.artifacts.export import export_run
from headway.artifacts.predictor import open_service
from headway.artifacts.report import as_job_file
from headway.bundle.format import Bundle, BundleFile
from headway.core.errors import BadJob
from headway.core.plan import Plan
from headway.data.synthetic import cards, leaves, scenes
from headway.plugins import RECIPES
from headway.rundir.layout import RunFolder
from headway.spec import from_plain, loads, to_plain, undump
from headway.storage import open_store

pytestmark = pytest.mark.slow

RECORDS = Path(__file__).parent / "old_records"
KILLED = -9
STEPS = 8  # of the captioning record, in which the recorded share of 0.3 is 2


@dataclass(frozen=True)
class Pair:
    """The same training twice: as the former version recorded it, killed once; and as today's names say it."""

    recipe: str
    old: Path
    new: Path
    record: bytes


def attempt(folder: Path, **env: str) -> int:
    """One start of the run's only rank, as the supervisor would start it."""
    command = [sys.executable, "-m", "headway.recipes.__main__"]
    own = {**os.environ, "HEADWAY_RUN_URL": str(folder), "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False).returncode


def by_todays_names(plan: Plan) -> Plan:
    recipe = RECIPES[plan.job["recipe"]]
    config = from_plain(plan.job["config"], recipe.load_config())
    if recipe.name == "captioning":
        config = replace(config, warmup=config.warmup_steps(STEPS), warmup_share=0.1)
    return replace(plan, job={**plan.job, "config": to_plain(config)})


@pytest.fixture(scope="module", params=["captioning", "classification", "grading", "translation"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    root = tmp_path_factory.mktemp(request.param)
    record = (RECORDS / f"{request.param}.json").read_bytes()
    plans = {"old": record, "new": by_todays_names(Plan.from_json(record)).to_json().encode()}
    for name, plan in plans.items():
        (root / name).mkdir()
        (root / name / "plan.json").write_bytes(plan)
    assert attempt(root / "old", HEADWAY_DIE_AFTER_STEP="5") == KILLED
    assert attempt(root / "old") == 0
    assert attempt(root / "new") == 0
    return Pair(request.param, root / "old", root / "new", record)


def inputs_of(recipe: str, folder: Path) -> list[str]:
    from PIL import Image

    if recipe == "translation":
        return ["The old teacher did not find three green apples."]
    if recipe == "captioning":
        return [str(path) for path in scenes.write_examples(folder, 2)]
    if recipe == "classification":
        Image.fromarray(leaves.draw("test", 1)).save(folder / "leaf.png")
        return [str(folder / "leaf.png")]
    for name, pixels in zip(("front", "back"), cards.draw(cards.compose("test", 1)), strict=True):
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return [f"{folder}/front.png,{folder}/back.png"]


def answers(model: Path, inputs: list[str]) -> list[dict[str, Any]]:
    return predict(str(model), inputs)


def test_it_resumes_from_its_checkpoint_to_the_same_weights(pair: Pair) -> None:
    restored = [event for event in RunFolder(open_store(str(pair.old))).events() if event["kind"] == "restored"]
    assert [event["step"] for event in restored] == [4]
    assert (pair.old / "export" / "model.safetensors").read_bytes() == (
        pair.new / "export" / "model.safetensors"
    ).read_bytes()
    assert (pair.old / "plan.json").read_bytes() == pair.record


def test_it_is_evaluated_reported_and_compared_with_a_run_of_today(pair: Pair) -> None:
    old, new = (evaluate(str(folder)) for folder in (pair.old, pair.new))
    assert old["metrics"] == new["metrics"]
    differs = set(compare([read_run(str(pair.old)), read_run(str(pair.new))])["settings"])
    assert differs == ({"config.warmup", "config.warmup_share"} if pair.recipe == "captioning" else set())


def test_its_report_shows_a_job_file_of_today(pair: Pair) -> None:
    written = as_job_file(undump(Plan.from_json(pair.record).job))
    today = undump(Plan.from_json((pair.new / "plan.json").read_bytes()).job)
    if pair.recipe == "captioning":  # a share of the steps: nobody else knows how many those are
        with pytest.raises(BadJob, match="warmup is a number of steps"):
            loads(written)
        written = written.replace("warmup_share: 0.3", "warmup: 2")
    assert loads(written).config == today.config


def test_it_is_exported_anew(pair: Pair, tmp_path: Path) -> None:
    export_run(str(pair.old), to=str(tmp_path / "bundle"))
    assert Bundle.open(str(tmp_path / "bundle")).config.keys() >= to_plain(RECIPES[pair.recipe].load_config()()).keys()


def test_a_bundle_of_that_time_predicts_is_evaluated_and_is_served(pair: Pair, tmp_path: Path) -> None:
    bundle = old_bundle(pair, tmp_path / "bundle")
    inputs = inputs_of(pair.recipe, tmp_path)
    assert answers(bundle, inputs) == answers(pair.new / "export", inputs)
    assert evaluate(str(bundle))["metrics"] == evaluate(str(pair.new / "export"))["metrics"]
    assert open_service(Bundle.open(str(bundle))).fields


def old_bundle(pair: Pair, folder: Path) -> Path:
    """The run's bundle with the config.json that the former version would have written: that of its plan."""
    shutil.copytree(pair.new / "export", folder)
    (folder / "config.json").write_text(json.dumps(json.loads(pair.record)["job"]["config"]))
    record = json.loads((folder / "bundle.json").read_text())
    record["files"]["config.json"] = BundleFile.of(folder / "config.json").as_json()
    (folder / "bundle.json").write_text(json.dumps(record))
    return folder
