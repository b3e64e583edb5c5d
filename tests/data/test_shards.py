from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headway.core.errors import BadInput
from headway.data.dataset.manifest import Column, Manifest, OtherFile, ShardFile, read_manifest
from headway.data.dataset.shards import Pixels, Shard, shard_bytes

COLUMNS = (
    Column(name="id", kind="text"),
    Column(name="picture", kind="picture", encoding="raw", height=4, width=6),
    Column(name="thumbnail", kind="picture", encoding="jpeg"),
    Column(name="captions", kind="texts"),
    Column(name="tokens", kind="integers"),
    Column(name="label", kind="integer"),
    Column(name="targets", kind="numbers"),
)
ROWS = 5
PIXELS = np.random.default_rng(0).integers(0, 256, (ROWS, 4, 6, 3), dtype=np.uint8)
VALUES: dict[str, Any] = {
    "id": ["a", "ä", "日本", "", "z" * 300],
    "picture": PIXELS,
    "thumbnail": [b"\xff\xd8" + bytes([i]) * i for i in range(ROWS)],
    "captions": [["one", "zwei"], [], ["drei"], ["vier", "fünf", "six"], [""]],
    "tokens": [[1, 2], [], [3], [4, 5, 6], [2**31 - 1]],
    "label": [3, 1, -1, 0, 2],
    "targets": [[0.5, float("nan")], [0.0, 1.0], [-2.5, 0.25], [float("nan")] * 2, [1e6, 3.0]],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "train-00000.arrow"
    file.write_bytes(shard_bytes(COLUMNS, VALUES).body)
    return file


def test_every_cell_is_read_back_as_it_was_written(path: Path) -> None:
    shard = Shard(path, COLUMNS)
    assert len(shard) == ROWS
    for row in range(ROWS):
        assert np.array_equal(shard.cells("picture")[row], PIXELS[row])
        assert bytes(shard.cells("thumbnail")[row]) == VALUES["thumbnail"][row]
        assert shard.cells("tokens")[row].tolist() == VALUES["tokens"][row]
        assert np.array_equal(shard.cells("targets")[row], VALUES["targets"][row], equal_nan=True)
        for name in ("id", "captions", "label"):
            assert shard.cells(name)[row] == VALUES[name][row]


def test_the_same_rows_give_the_same_bytes() -> None:
    first, second = shard_bytes(COLUMNS, VALUES), shard_bytes(COLUMNS, dict(reversed(VALUES.items())))
    assert first.body == second.body
    assert first.sha256 == second.sha256
    assert first.rows == ROWS


def test_pixels_are_read_in_place(path: Path) -> None:
    cells = Shard(path, COLUMNS).cells("picture")
    assert isinstance(cells, Pixels)
    assert not cells.view.flags.owndata
    assert not cells.view.flags.writeable


def test_an_open_shard_keeps_no_file_descriptor_and_outlives_its_file(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    shard = Shard(path, COLUMNS)
    cells = shard.cells("picture")
    assert len(os.listdir("/proc/self/fd")) == before
    path.unlink()
    assert np.array_equal(cells[2], PIXELS[2])


def test_pyarrow_reads_it(path: Path) -> None:
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table.column("captions").to_pylist() == VALUES["captions"]
    assert table.schema.field("picture").type == pa.binary(4 * 6 * 3)
    assert b"raw" in table.schema.field("picture").metadata[b"headway"]


def test_polars_reads_it(path: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_ipc(path)
    assert frame["label"].to_list() == VALUES["label"]
    assert frame["picture"][3] == PIXELS[3].tobytes()


def test_hugging_face_datasets_reads_it(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    datasets = pytest.importorskip("datasets")
    rows = datasets.load_dataset("arrow", data_files=str(path), cache_dir=str(tmp_path / "cache"))["train"]
    assert rows[3]["captions"] == VALUES["captions"][3]
    assert rows[1]["picture"] == PIXELS[1].tobytes()


def test_an_empty_shard_can_be_written_and_read(tmp_path: Path) -> None:
    file = tmp_path / "empty.arrow"
    file.write_bytes(shard_bytes(COLUMNS, {column.name: [] for column in COLUMNS}).body)
    shard = Shard(file, COLUMNS)
    assert len(shard) == 0
    assert [len(shard.cells(column.name)) for column in COLUMNS] == [0] * len(COLUMNS)


@pytest.mark.parametrize("damage", [lambda b: b[:100], lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"x" * 500])
def test_a_damaged_shard_is_a_clear_error(path: Path, damage: Any) -> None:
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadInput, match="headway data verify"):
        Shard(path, COLUMNS)


def made_manifest() -> Manifest:
    shard = ShardFile(key="shards/train-00000.arrow", rows=5, bytes=100, sha256="ab")
    return Manifest(
        name="tiny",
        task="captions",
        columns=COLUMNS,
        splits={"train": (shard,), "val": ()},
        classes=("cat", "dog"),
        files=(OtherFile(key="words.json", bytes=3, sha256="cd"),),
        dropped={"missing": 2},
        settings={"size": 256},
    )


def test_a_manifest_survives_being_written_and_read() -> None:
    manifest = made_manifest()
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.rows("train") == 5


def test_the_fingerprint_covers_rows_and_their_meaning_but_not_reports() -> None:
    from dataclasses import replace

    manifest = made_manifest()
    assert replace(manifest, name="other", dropped={}, files=(), settings={}).fingerprint == manifest.fingerprint
    assert replace(manifest, classes=("dog", "cat")).fingerprint != manifest.fingerprint
    assert replace(manifest, columns=COLUMNS[1:]).fingerprint != manifest.fingerprint
    other = replace(manifest.splits["train"][0], sha256="ee")
    assert replace(manifest, splits={"train": (other,), "val": ()}).fingerprint != manifest.fingerprint


def test_a_manifest_that_was_tampered_with_is_refused() -> None:
    with pytest.raises(BadInput, match="own fingerprint"):
        Manifest.from_json(made_manifest().to_json().replace('"rows": 5', '"rows": 6'))
    for text in ("", "[]", "{}", "null", made_manifest().to_json()[:-40]):
        with pytest.raises(BadInput):
            Manifest.from_json(text)


def test_where_there_is_no_manifest_there_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="headway data prepare"):
        read_manifest(str(tmp_path))
