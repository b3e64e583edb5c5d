"""A plan is a value: the same inputs give the same bytes, and it can be saved, reviewed and launched later."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.errors import BadInput, BadPlan
from headway.planning import Plan, plan
from headway.spec import Data, Job, Resources, Source
from headway.spec.model import Accelerator


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "train.py").write_text("print('hello')\n")
    return Job(name="job", script="train.py", root=str(tmp_path), outputs="out")


def test_the_same_inputs_give_the_same_bytes(job: Job) -> None:
    assert plan(job).to_json() == plan(job).to_json()


def test_a_saved_plan_reads_back_as_itself(job: Job) -> None:
    made = plan(job)
    again = Plan.from_json(made.to_json())
    assert again == made
    assert again.hash == made.hash


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"schema": 1}', '{"schema": 99}', '"plan"', '{"schema": 1, "code": [], "requests": 3}'],
)
def test_what_is_not_a_plan_says_so(text: str) -> None:
    with pytest.raises(BadPlan, match=r"plan"):
        Plan.from_json(text)


def test_a_plan_cut_off_anywhere_is_refused(job: Job) -> None:
    text = plan(job).to_json()
    for end in range(0, len(text) - 2, 97):
        with pytest.raises(BadPlan):
            Plan.from_json(text[:end])


def test_relative_paths_mean_the_job_files_own_folder(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert plan(job).job["outputs"] == str(tmp_path / "out")


def test_the_runs_name_is_not_in_it_but_stands_in_its_requests(job: Job) -> None:
    made = plan(job)
    assert made.requests
    assert "{RUN}" in json.dumps([dict(request.body) for request in made.requests])


def test_data_that_does_not_exist_is_found_before_anything_starts(job: Job) -> None:
    missing = replace(job, data=Data(train=(Source(source="no/such/data"),)))
    with pytest.raises(BadInput, match="no/such/data"):
        plan(missing)


def test_remote_data_is_unresolved_offline(job: Job) -> None:
    made = plan(replace(job, data=Data(train=(Source(source="gs://bucket/coco"),))))
    assert made.data == {"gs://bucket/coco": "unresolved"}


def test_one_process_for_each_accelerator(job: Job) -> None:
    assert plan(replace(job, resources=Resources(accelerator=Accelerator(kind="T4", count=4)))).processes == 4
    assert plan(replace(job, resources=Resources(processes=2))).processes == 2
    assert plan(job).processes == 1


def test_an_unknown_target_is_named(job: Job) -> None:
    with pytest.raises(BadInput, match="loacl"):
        plan(job, on="loacl")
