from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headway.data.dataset.manifest import check_data
from headway.data.prepare.pipeline import prepare
from headway.spec.model import Data, Source
from tests.data import layouts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("checking")
    prepare(str(layouts.class_folders(root / "in", splits=("train", "val"))), str(root / "out"), size=32, workers=1)
    return str(root / "out")


def test_data_that_is_as_the_job_says_has_no_problems(made: str) -> None:
    source = Source(source=made, weight=2.0, limit=5, where={"label": ["class_0", 1], "id": "x"})
    data = Data(train=(source,), val=(Source(source=made), Source(source="builtin:scenes")))
    assert check_data(data, task="classes") == []


def test_every_problem_of_every_source_is_found_at_once(made: str, tmp_path: Path) -> None:
    good = Source(source=made)
    data = Data(
        train=(
            replace(good, weight=-1),
            replace(good, split="dev"),
            Source(source=str(tmp_path)),
            replace(good, where={"colour": 1, "picture": 2}),
            replace(good, where={"label": "unicorn"}, limit=0),
        ),
        val=(replace(good, weight=0.0),),
        test=(good,),
    )
    said = [(problem.where, problem.what) for problem in check_data(data)]
    assert said == [
        ("data.train[0]", "the weight must be at least 0, not -1"),
        ("data.train[1]", f"{made} has no rows in 'dev'"),
        ("data.train[2]", f"no prepared data set at {tmp_path}"),
        ("data.train[3]", "rows cannot be filtered by 'colour'"),
        ("data.train[3]", "rows cannot be filtered by 'picture'"),
        ("data.train[4]", "a limit of 0 leaves no row"),
        ("data.train[4]", "there is no label 'unicorn'"),
        ("data.val", "no source has a weight above 0"),
        ("data.test[0]", f"{made} has no rows in 'test'"),
    ]
    assert all(problem.fix for problem in check_data(data))


def test_data_of_another_kind_than_the_recipe_learns_is_a_problem(made: str) -> None:
    (problem,) = check_data(Data(train=(Source(source=made),)), task="captions")
    assert problem.what == f"{made} has classes, but this recipe needs captions"


def test_checking_imports_neither_torch_nor_numpy() -> None:
    script = (
        "import sys, headway.data.dataset.manifest; sys.exit(bool({'torch', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
