"""Bundles: complete and unchanged, or refused with the name of the file that is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headway.bundle.format import FORMAT, Bundle, BundleParts
from headway.core.errors import BAD_INPUT, BadBundle


def parts(name: str = "captions", fill: float = 1.0) -> BundleParts:
    return BundleParts(
        recipe="captioning",
        name=name,
        config={"hidden": 3},
        weights={"layer.weight": torch.full((2, 3), fill), "layer.bias": torch.arange(3.0)},
        files={"vocabulary.json": b'["<pad>"]\n'},
        metrics={"bleu_4": 0.5},
        card="# captions\n",
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    parts().write(tmp_path / "bundle")
    return tmp_path / "bundle"


def test_what_was_written_is_read_back(folder: Path) -> None:
    bundle = Bundle.open(str(folder))
    assert (bundle.recipe, bundle.name, bundle.config) == ("captioning", "captions", {"hidden": 3})
    assert bundle.metrics == {"bleu_4": 0.5}
    assert bundle.read("vocabulary.json") == b'["<pad>"]\n'
    assert torch.equal(bundle.weights()["layer.weight"], torch.ones(2, 3))


def test_the_same_parts_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    parts().write(tmp_path / "again")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()
    }


def test_it_holds_its_checksums_and_its_card(folder: Path) -> None:
    record = json.loads((folder / "bundle.json").read_text())
    assert record["format"] == 1
    assert set(record["files"]) == {"README.md", "config.json", "model.safetensors", "vocabulary.json"}
    assert (folder / "README.md").read_text() == "# captions\n"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors", "vocabulary.json"])
@pytest.mark.parametrize(("harm", "words"), [(truncate, "bytes of"), (flip, "checksum"), (Path.unlink, "missing")])
def test_a_damaged_file_is_named_with_a_way_out(
    folder: Path, name: str, harm: Callable[[Path], None], words: str
) -> None:
    harm(folder / name)
    with pytest.raises(BadBundle, match=words) as caught:
        Bundle.open(str(folder))
    assert name in caught.value.problem.what
    assert caught.value.problem.fix == "export it again: headway export RUN"
    assert caught.value.exit_code == BAD_INPUT


def test_a_record_that_is_damaged_is_named(folder: Path) -> None:
    truncate(folder / "bundle.json")
    (folder / "bundle.json").write_text((folder / "bundle.json").read_text()[:40])
    with pytest.raises(BadBundle, match=r"bundle\.json is damaged"):
        Bundle.open(str(folder))


def test_a_bundle_of_a_later_format_says_which_headway_to_use(folder: Path) -> None:
    record = json.loads((folder / "bundle.json").read_text())
    record |= {"format": FORMAT + 1, "headway": "9.0"}
    (folder / "bundle.json").write_text(json.dumps(record))
    with pytest.raises(BadBundle, match=r"format 3, of Headway 9\.0") as caught:
        Bundle.open(str(folder))
    assert "at least as new" in caught.value.problem.fix


@pytest.mark.parametrize(
    ("name", "at"), [("../outside", None), ("model.safetensors", "../../secret"), ("a", "/etc/passwd")]
)
def test_a_record_cannot_lead_out_of_its_folder(folder: Path, name: str, at: str | None) -> None:
    record = json.loads((folder / "bundle.json").read_text())
    record["files"][name] = {"sha256": "0" * 64, "bytes": 1, **({"at": at} if at else {})}
    (folder / "bundle.json").write_text(json.dumps(record))
    with pytest.raises(BadBundle, match="cannot be a file of a bundle"):
        Bundle.open(str(folder))


def test_a_folder_without_a_record_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="is not a bundle"):
        Bundle.open(str(tmp_path))


def test_a_file_it_should_have_and_does_not_list_is_named(folder: Path) -> None:
    with pytest.raises(BadBundle, match=r"no word_to_id\.json"):
        Bundle.open(str(folder)).read("word_to_id.json")
