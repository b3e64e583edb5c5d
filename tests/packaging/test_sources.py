"""What a plan says of the data: its fingerprint, and every problem of every source before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.core.errors import BadInput, BadJob
from headway.data.dataset.manifest import Column, Manifest, ShardFile
from headway.packaging.upload import data_fingerprint
from headway.planning import plan
from headway.spec import Data, Job, Source


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    shards = {"train": (ShardFile(key="shards/train-00000.arrow", rows=3, bytes=9, sha256="0" * 64),), "val": ()}
    columns = (Column(name="id", kind="text"), Column(name="captions", kind="texts"))
    folder = tmp_path / "data"
    folder.mkdir()
    manifest = Manifest(name="few", task="captions", columns=columns, splits=shards)
    (folder / "manifest.json").write_text(manifest.to_json())
    return folder


def job(tmp_path: Path, recipe: str = "captioning", **data: tuple[Source, ...]) -> Job:
    return Job(name="job", recipe=recipe, root=str(tmp_path), outputs="out", data=Data(**data))


def test_prepared_data_is_known_by_its_own_fingerprint(prepared: Path) -> None:
    stated = json.loads((prepared / "manifest.json").read_text())["fingerprint"]
    assert data_fingerprint(str(prepared)) == stated


@pytest.mark.torch
def test_a_plan_pins_it(prepared: Path, tmp_path: Path) -> None:
    made = plan(
        job(tmp_path, train=(Source(source=str(prepared)),), val=(Source(source=str(prepared), split="train"),))
    )
    assert made.data == {str(prepared): data_fingerprint(str(prepared))}


def test_training_data_without_the_split_to_validate_on_is_said_before_anything_starts(
    prepared: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadJob, match=r"data\.val: .* has no rows in 'val'"):
        plan(job(tmp_path, train=(Source(source=str(prepared)),)))


def test_all_that_the_data_does_not_have_is_said_at_once(prepared: Path, tmp_path: Path) -> None:
    sources = (Source(source=str(prepared), split="dev"), Source(source=str(prepared), where={"colour": "red"}))
    with pytest.raises(BadJob) as caught:
        plan(job(tmp_path, train=sources, val=(Source(source=str(prepared)),)))
    told = str(caught.value)
    for words in ("no rows in 'dev'", "cannot be filtered by 'colour'", "no rows in 'val'", "data.train[1]"):
        assert words in told


def test_data_of_another_kind_is_refused(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(BadJob, match="has captions, but this recipe needs grades"):
        plan(job(tmp_path, "grading", train=(Source(source=str(prepared)),)))


def test_a_script_may_name_what_it_likes(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    data = Data(train=(Source(source=str(prepared), split="dev"), Source(source=str(tmp_path))))
    made = plan(Job(name="job", script="train.py", root=str(tmp_path), outputs="out", data=data))
    assert made.data[str(tmp_path)] == "unresolved"


def test_a_damaged_manifest_and_a_missing_folder_are_told_apart(prepared: Path) -> None:
    (prepared / "manifest.json").write_text("{")
    with pytest.raises(BadInput, match="damaged"):
        data_fingerprint(str(prepared))
    with pytest.raises(BadInput, match="no such data"):
        data_fingerprint("/nowhere")
