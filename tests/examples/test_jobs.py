"""Every job file in examples/ is a job: read, checked, and with the data it names where that comes with Headway."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.plugins import RECIPES
from headway.spec import load

EXAMPLES = Path(__file__).parents[2] / "examples"
JOBS = sorted(path for path in EXAMPLES.rglob("*.yaml"))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_an_example_is_a_job(path: Path) -> None:
    job = load(path)
    assert job.recipe is None or job.recipe in RECIPES


@pytest.mark.parametrize("name", ["translation", "leaves"])
def test_the_short_examples_need_no_data_of_ones_own(name: str) -> None:
    job = load(EXAMPLES / f"{name}.yaml")
    assert job.recipe is not None
    wanted = RECIPES[job.recipe].data_default
    assert {source.source for source in (*job.data.train, *job.data.val, *job.data.test)} == {wanted}
