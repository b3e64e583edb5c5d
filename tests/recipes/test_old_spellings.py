"""Options by their former names: refused where people type them, understood where they were recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadJob, BadPlan
from headway.core.plan import Plan
from headway.plugins import RECIPES
from headway.pricing.estimate import work_of
from headway.spec import from_plain, loads, to_plain, undump
from headway.spec.constraints import keys_of
from headway.spec.renamed import FormerKey, Renamed, current_config

RECORDS = sorted((Path(__file__).parent / "old_records").glob("*.json"))  # plans of the version before the new names
TABLE = [
    (recipe, name, former)
    for recipe in sorted(RECIPES)
    for name, former in sorted(RECIPES[recipe].load_config().RENAMED.items())
]
# What each record asked for, by the names of today.
MEANT: dict[str, dict[str, Any]] = {
    "captioning": {"warmup": None, "warmup_share": 0.3, "ema_decay": 0.9, "attention_size": 24, "embedding_size": 20},
    "captioning-default": {"warmup": None, "warmup_share": 0.1, "batch_size": 16, "image_size": 32, "hidden_size": 32},
    "classification": {"rotate": 15.0, "sampler": "uniform", "class_weights": True, "batch_size": 16, "warmup": 3},
    "classification-sampler": {"sampler": "balanced", "class_weights": False, "color_jitter": 0.3},
    "grading": {"sampler": "uniform", "color_jitter": 0.2, "phase1_lr": 2e-3, "model_size": "small", "weights": "none"},
    "grading-sampler": {"sampler": "balanced", "image_size": 96, "train_samples": 48},
    "translation": {"ema_decay": 0.9, "batch_tokens": 512, "warmup": 7, "d_model": 16, "dim_feedforward": 32},
}


def job_file(recipe: str, option: str) -> str:
    return f"name: a\nrecipe: {recipe}\nconfig:\n  {option}\n"


def former_values(recipe: str, name: str, former: FormerKey) -> list[Any]:
    """Values that the option could have under its former name."""
    if isinstance(former, Renamed) and former.values:
        return list(former.values)
    if not isinstance(former, Renamed):
        return [0.05]
    return [to_plain(RECIPES[recipe].load_config()())[former.new_name]]


def record(path: Path) -> Plan:
    return Plan.from_json(path.read_text())


def config_of(path: Path) -> Any:
    job = undump(record(path).job)
    assert job.recipe is not None
    return from_plain(job.config, RECIPES[job.recipe].load_config())


@pytest.mark.parametrize(("recipe", "name", "former"), TABLE, ids=lambda part: part if isinstance(part, str) else "")
def test_a_former_spelling_is_refused_with_its_place_and_the_new_one(recipe: str, name: str, former: FormerKey) -> None:
    for value in former_values(recipe, name, former):
        with pytest.raises(BadJob) as typed:
            loads(job_file(recipe, f"{name}: {json.dumps(value)}"), where="job.yaml")
        (problem,) = typed.value.problems
        assert problem.where == "job.yaml:4:3"
        assert f"config.{name}" in problem.what
        assert former.new_name in problem.what + problem.fix


@pytest.mark.parametrize(("recipe", "name", "former"), TABLE, ids=lambda part: part if isinstance(part, str) else "")
def test_a_former_spelling_is_refused_in_an_override(recipe: str, name: str, former: FormerKey) -> None:
    for value in former_values(recipe, name, former):
        setting = f"config.{name}={value if isinstance(value, str) else json.dumps(value)}"
        with pytest.raises(BadJob) as typed:
            loads(job_file(recipe, "dropout: 0.1"), set=[setting])
        (problem,) = typed.value.problems
        assert problem.where == f"--set {setting}"
        assert former.new_name in problem.what + problem.fix


@pytest.mark.parametrize(("recipe", "name", "former"), TABLE, ids=lambda part: part if isinstance(part, str) else "")
def test_what_is_to_be_written_instead_is_accepted(recipe: str, name: str, former: FormerKey) -> None:
    for value in former_values(recipe, name, former):
        if former.instead(value):
            continue  # a number that only the user knows
        with pytest.raises(BadJob) as typed:
            loads(job_file(recipe, f"{name}: {json.dumps(value)}"))
        fixed = typed.value.problems[0].fix.removeprefix("write ").replace(", ", "\n  ")
        assert loads(job_file(recipe, fixed)).config == to_plain(
            RECIPES[recipe].load_config()(**former.translate(value))
        )


def test_the_fix_of_an_override_is_an_override() -> None:
    with pytest.raises(BadJob) as typed:
        loads(job_file("grading", "dropout: 0.1"), set=["config.use_sampler=false"])
    assert typed.value.problems[0].fix == "write --set config.sampler=uniform"


def test_a_former_spelling_with_a_value_that_never_was_is_refused_by_its_new_name() -> None:
    with pytest.raises(BadJob) as typed:
        loads(job_file("classification", "imbalance: perhaps"))
    (problem,) = typed.value.problems
    assert (problem.what, problem.fix) == ("config.imbalance is now sampler", "write sampler: …")


def test_a_share_of_the_steps_is_refused_with_how_to_convert_it() -> None:
    with pytest.raises(BadJob) as typed:
        loads(job_file("captioning", "warmup: 0.05"))
    (problem,) = typed.value.problems
    assert problem.what == "config.warmup: warmup is a number of steps, no longer a share of them"
    assert "warmup: 100 for 0.05 of 2,000 steps" in problem.fix
    with pytest.raises(BadJob, match="remove it"):
        loads(job_file("captioning", "warmup: 0.1"))
    assert loads(job_file("captioning", "warmup: 100")).config["warmup"] == 100
    assert "warmup_share" not in loads(job_file("captioning", "warmup: 100")).config


@pytest.mark.parametrize(("recipe", "name", "former"), TABLE, ids=lambda part: part if isinstance(part, str) else "")
def test_a_former_spelling_is_no_option_of_today(recipe: str, name: str, former: FormerKey) -> None:
    keys = keys_of(RECIPES[recipe].load_config())
    assert former.new_name in keys
    assert name not in keys or name == former.new_name


def test_recipes_share_one_vocabulary() -> None:
    """No recipe has an option by a name that another one has given up for it."""
    given_up = {(name, former.new_name) for _, name, former in TABLE if name != former.new_name}
    for recipe in RECIPES:
        keys = keys_of(RECIPES[recipe].load_config())
        # captioning's `width` counts channels of its CNN; translation gave it up for another thing
        found = {(old, new) for old, new in given_up if old in keys} - {("width", "d_model")}
        assert not found, recipe


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_recorded_plan_keeps_its_bytes_and_is_understood(path: Path) -> None:
    assert record(path).to_json() == path.read_text()
    config = config_of(path)
    assert {name: getattr(config, name) for name in MEANT[path.stem]} == MEANT[path.stem]
    assert from_plain(to_plain(config), type(config)) == config, "what is recorded today is read back"


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_an_old_record_and_a_new_one_of_the_same_values_are_the_same_work(path: Path) -> None:
    job = record(path).job
    today = {**job, "config": to_plain(config_of(path))}
    assert current_config(job) == today["config"]
    assert work_of(job) == work_of(today)


def test_a_record_with_a_value_that_never_was_is_refused() -> None:
    config = RECIPES["grading"].load_config()
    with pytest.raises(BadPlan, match="use_sampler"):
        from_plain({"use_sampler": "perhaps"}, config)


def test_a_warmup_of_records_rises_in_as_many_steps_as_it_did() -> None:
    config = RECIPES["captioning"].load_config()
    for share, steps in ((0.3, 8), (0.1, 2250), (0.05, 2250), (0.0, 100)):
        assert from_plain({"warmup": share}, config).warmup_steps(steps) == round(steps * share)
    assert replace(config(), warmup=112).warmup_steps(2250) == 112
    assert config().warmup_steps(2000) == 200
