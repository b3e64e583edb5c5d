"""Every job file in examples/ is a job: read, checked, and with the data it names where that comes with Headway."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.planning import plan
from headway.plugins import RECIPES
from headway.spec import load

EXAMPLES = Path(__file__).parents[2] / "examples"
# Those of the plug-in need its package: tests/plugins/test_example.py runs them.
JOBS = sorted(path for path in EXAMPLES.rglob("*.yaml") if "plugin" not in path.relative_to(EXAMPLES).parts)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_an_example_is_a_job(path: Path) -> None:
    job = load(path)
    assert job.recipe is None or job.recipe in RECIPES


@pytest.mark.torch  # planning a recipe for this machine looks for it
@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_an_example_is_planned_on_each_of_its_targets(path: Path, tmp_path: Path) -> None:
    """As shipped, but without data in folders and shares that are not here."""
    given = load(path)
    sources = [source.source for part in (given.data.train, given.data.val) for source in part]
    changes = ["data={}"] if any("://" not in each and not each.startswith("builtin:") for each in sources) else []
    changes += [f"targets.{name}.share=null" for name, entry in given.targets.items() if entry.options.get("share")]
    changes += [] if "://" in given.outputs else [f"outputs={tmp_path}"]
    job = load(path, set=changes)
    for name in [name for name in job.targets if name != "local"] or ["local"]:
        made = plan(job, on=name)
        assert made.job["config"] == job.config


@pytest.mark.parametrize("name", ["translation", "leaves"])
def test_the_short_examples_need_no_data_of_ones_own(name: str) -> None:
    job = load(EXAMPLES / f"{name}.yaml")
    assert job.recipe is not None
    wanted = RECIPES[job.recipe].data_default
    assert {source.source for source in (*job.data.train, *job.data.val, *job.data.test)} == {wanted}
