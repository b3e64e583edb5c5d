from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headway.cli import main
from headway.core.errors import BadInput
from headway.data.dataset.inspect import dropped, inspect, verify
from headway.data.prepare.pipeline import PrepareOptions, prepare
from tests.data import layouts


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inspect")
    source = layouts.coco(root / "in")
    path = source / "annotations" / "captions_train2017.json"
    body = json.loads(path.read_text())
    body["annotations"][0]["caption"] = "<script>alert('no & no')</script> is said here"
    body["annotations"][1]["caption"] = ""
    path.write_text(json.dumps(body))
    prepare(str(source), str(root / "out"), size=32, workers=1, max_bad=3)
    return root / "out"


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.append(tag)


def test_numbers_of_a_captioned_set(captions: Path) -> None:
    found = inspect(str(captions))
    assert {name: facts.rows for name, facts in found.splits.items()} == {"train": 6, "val": 3}
    assert found.splits["train"].captions == 29
    assert found.splits["val"].lengths == {9: 15}
    assert found.splits["val"].sizes == {"< 0.05": 3}
    assert {"said", "made-up", "picture"} <= {word for word, _ in found.common}
    assert found.manifest.dropped == {"empty caption": 1}
    assert [line["reason"] for line in dropped(str(captions), reason="empty caption")] == ["empty caption"]
    assert list(dropped(str(captions), reason="other")) == []


def test_the_page_shows_pictures_and_escapes_what_people_wrote(captions: Path) -> None:
    text = inspect(str(captions)).page()
    tags = Tags(text)
    assert tags.names.count("img") == 9
    assert "script" not in tags.names
    assert "&lt;script&gt;" in text
    assert "http://" not in text.replace(str(captions), "")


def test_class_balance_and_pairs_of_pictures(tmp_path: Path) -> None:
    prepare(str(layouts.graded_pairs(tmp_path / "in")), str(tmp_path / "out"), size=32, encoding="raw", workers=1)
    found = inspect(str(tmp_path / "out"))
    assert found.splits["train"].classes == {"1": 2, "2": 2, "3": 1, "4": 1}
    assert len(found.splits["train"].sheet) == 6
    assert "<img" in found.page()


def test_sentences(tmp_path: Path) -> None:
    prepare(
        str(layouts.parallel(tmp_path / "in")), str(tmp_path / "out"), workers=1, options=PrepareOptions(bpe_size=300)
    )
    found = inspect(str(tmp_path / "out"))
    assert found.vocabulary == 300
    assert sum(found.splits["train"].lengths.values()) == 40


def test_a_remote_set_is_inspected_by_its_first_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("headway.data.prepare.shard_task._PICTURE_ROWS", 16)
    source = layouts.class_folders(tmp_path / "in", splits=("train",), each=20)
    prepare(str(source), "memory://test-inspect/set", size=32, workers=1)
    facts = inspect("memory://test-inspect/set").splits["train"]
    assert facts.sampled
    assert facts.rows == 60
    assert sum(facts.classes.values()) == 16


def test_a_whole_set_verifies_and_every_damage_is_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(str(layouts.class_folders(tmp_path / "in", splits=("train", "val", "test"))), str(out), size=32, workers=1)
    told: list[tuple[str, int, int]] = []
    good = verify(str(out), progress=lambda *words: told.append(words))
    assert good.intact
    assert told[-1][1] == told[-1][2] == good.bytes
    flipped = bytearray((out / "shards/train-00000.arrow").read_bytes())
    flipped[len(flipped) // 2] ^= 1
    (out / "shards/train-00000.arrow").write_bytes(flipped)
    (out / "shards/val-00000.arrow").unlink()
    (out / "shards/test-00000.arrow").write_bytes(b"short")
    (out / "shards/stray.arrow").write_bytes(b"")
    assert {damage.key: damage.what for damage in verify(str(out)).damage} == {
        "shards/train-00000.arrow": "does not match its hash",
        "shards/val-00000.arrow": "is missing",
        "shards/test-00000.arrow": "has 5 bytes instead of " + f"{good.manifest.splits['test'][0].bytes:,}",
        "shards/stray.arrow": "is not in the manifest",
    }


def test_where_nothing_was_prepared_there_is_nothing_to_verify(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="headway data prepare"):
        verify(str(tmp_path))
    with pytest.raises(BadInput, match="headway data prepare"):
        inspect(str(tmp_path))


def test_shards_are_never_to_be_written_into_the_raw_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "splits.json").write_text("{}")
    assert main(["data", "inspect", str(raw)]) == 2
    assert f"headway data prepare {raw} --to {raw}-prepared" in capsys.readouterr().err
    assert main(["data", "inspect", str(tmp_path / "nothing")]) == 2
    assert f"headway data prepare SOURCE --to {tmp_path / 'nothing'}" in capsys.readouterr().err
