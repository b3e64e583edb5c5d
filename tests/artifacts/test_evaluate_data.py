"""What `headway eval --data` names, wherever list and pictures lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from headway.artifacts.evaluate import data_override, evaluate
from headway.cli import main
from headway.core.errors import BadInput
from headway.data.dataset.manifest import fingerprint
from headway.data.synthetic import cards
from headway.recipes.grading.inference import bundle
from headway.recipes.grading.model import Grader
from headway.spec import Data
from headway.storage import open_store
from tests.recipes.grading.jobs import grading_config, grading_job
from tests.storage.test_contract import make_s3_bucket


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / "cards"
    cards.write_pairs(folder, {"val": 2, "test": 5})
    return folder


@pytest.fixture
def bucket(pairs: Path, moto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same pictures in an object store, the list apart from them."""
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("ENDPOINT_URL", moto_url)):
        monkeypatch.setenv(f"AWS_{name}", value)
    make_s3_bucket(moto_url)
    place = f"s3://bucket/{tmp_path.name}"
    store = open_store(f"{place}/cards")
    for path in (pairs / "pictures").iterdir():
        store.write(f"pictures/{path.name}", path.read_bytes())
    open_store(f"{place}/lists").write("splits.json", (pairs / "splits.json").read_bytes())
    return place


def prepared(data: str, root: str | None = None) -> str:
    """The fingerprint of what is evaluated on."""
    with data_override(data, root, "test", grading_config(), otherwise=Data()) as read:
        return fingerprint(read.test[0].source)


def test_list_and_pictures_may_lie_in_an_object_store(bucket: str, pairs: Path) -> None:
    here = prepared(str(pairs / "splits.json"))
    assert prepared(f"{bucket}/lists/splits.json", f"{bucket}/cards") == here
    assert prepared(str(pairs / "splits.json"), f"{bucket}/cards") == here


def test_whole_urls_below_the_root_are_accepted(bucket: str, pairs: Path, tmp_path: Path) -> None:
    splits = json.loads((pairs / "splits.json").read_text())
    for entry in splits["test"]:
        entry["front"] = f"{bucket}/cards/{entry['front']}"
    (tmp_path / "splits.json").write_text(json.dumps(splits))
    assert prepared(str(tmp_path / "splits.json"), f"{bucket}/cards") == prepared(str(pairs / "splits.json"))


def test_a_picture_that_is_not_in_the_store_is_named(bucket: str) -> None:
    open_store(f"{bucket}/cards").delete("pictures/test-00003-back.png")
    with pytest.raises(BadInput, match="picture missing"):
        prepared(f"{bucket}/lists/splits.json", f"{bucket}/cards")


def test_a_path_that_leads_outside_of_the_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "splits.json").write_text(json.dumps({"test": [{"front": "../x.png", "back": "b.png"}]}))
    with pytest.raises(BadInput, match="is outside of"):
        prepared(str(tmp_path / "splits.json"))


def test_model_list_and_pictures_from_a_store_score_as_those_here(
    bucket: str, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    job = grading_job()
    bundle(Grader(grading_config(), range(1, 11)), grading_config(), job, {"qwk": 0.25}).write(tmp_path / "cards")
    store = open_store(f"{bucket}/models/cards")
    for path in (tmp_path / "cards").iterdir():
        store.write(path.name, path.read_bytes())
    here = evaluate(str(tmp_path / "cards"), data=str(pairs / "splits.json"))
    asked = ["--data", f"{bucket}/lists/splits.json", "--root", f"{bucket}/cards", "--split", "test", "--json"]
    assert main(["eval", f"{bucket}/models/cards", *asked]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["count"] == 5
    assert told["metrics"] == here["metrics"]
    assert told["validation"] == {"qwk": 0.25}
    assert [row["grade"] for row in told["per_grade"]] == list(range(1, 11))
