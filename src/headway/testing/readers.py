"""The promises of a reader: a reader's tests inherit `ReaderContract` and write a sample of its format."""

from __future__ import annotations

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import get_args

import pytest

from headway.core.errors import BadInput
from headway.data.readers.base import SPLITS, Bad, Caption, Found, Row, Task
from headway.data.readers.detect import detect, reader_for
from headway.data.readers.files import Tree


class ReaderContract(ABC):
    """Subclasses give `name`, as for `headway data prepare --format`, and `write_sample`."""

    name: str

    @abstractmethod
    def write_sample(self, folder: Path) -> int:
        """Write at least ten good examples in this format into a folder; return how many rows they are."""

    @pytest.fixture
    def sample(self, tmp_path: Path) -> Path:
        folder = tmp_path / "sample"
        folder.mkdir()
        self.rows_written = self.write_sample(folder)
        return folder

    def found(self, folder: Path, work: Path) -> list[Found]:
        return list(reader_for(Tree(str(folder), work), self.name).read_rows())

    def test_its_files_are_recognised(self, sample: Path, tmp_path: Path) -> None:
        assert detect(Tree(str(sample), tmp_path / "work")) == self.name

    def test_an_empty_folder_is_not_taken_for_its_format(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(BadInput):
            detect(Tree(str(tmp_path / "empty"), tmp_path / "work"))

    def test_it_reads_every_row_of_a_known_task(self, sample: Path, tmp_path: Path) -> None:
        reader = reader_for(Tree(str(sample), tmp_path / "work"), self.name)
        rows = [one for one in reader.read_rows() if isinstance(one, Row)]
        assert reader.task in get_args(Task)
        assert reader.name
        assert len({row.id for row in rows}) == self.rows_written
        assert {row.split for row in rows} <= {"", *SPLITS}

    def test_reading_twice_is_the_same(self, sample: Path, tmp_path: Path) -> None:
        assert self.found(sample, tmp_path / "one") == self.found(sample, tmp_path / "two")

    def test_pictures_are_in_the_source_and_captions_belong_to_rows(self, sample: Path, tmp_path: Path) -> None:
        found = self.found(sample, tmp_path / "work")
        rows = {one.id for one in found if isinstance(one, Row)}
        for one in found:
            if isinstance(one, Row):
                assert [key for key in one.pictures.values() if not (sample / key).is_file()] == []
            elif isinstance(one, Caption):
                assert one.row in rows
            else:
                assert not one.fault, one

    @pytest.mark.parametrize("damage", ["cut off", "overwritten"])
    def test_damaged_files_are_reported_and_raise_nothing_else(self, sample: Path, tmp_path: Path, damage: str) -> None:
        for path in sorted(sample.rglob("*")):
            if path.is_file():
                body = path.read_bytes()
                path.write_bytes(body[: len(body) * 2 // 3] if damage == "cut off" else b"\xff\x00{[\n" + body[5:])
        try:
            found = self.found(sample, tmp_path / "work")
        except BadInput:
            return
        assert all(isinstance(one, Row | Caption | Bad) for one in found)

    def test_headway_prepares_it(self, sample: Path, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow", reason="the data extra is not installed")
        words = ["data", "prepare", str(sample), "--format", self.name, "--to", str(tmp_path / "prepared")]
        command = [sys.executable, "-m", "headway", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        manifest = json.loads((tmp_path / "prepared" / "manifest.json").read_text())
        assert sum(shard["rows"] for shards in manifest["splits"].values() for shard in shards) > 0
