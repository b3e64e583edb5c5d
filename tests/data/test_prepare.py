from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headway.core.errors import BadInput, DiskFull
from headway.data.dataset.manifest import read_manifest
from headway.data.dataset.shards import Shard
from headway.data.prepare import pipeline as module
from headway.data.prepare.executor import ClusterLost
from headway.data.prepare.images import Shape, decode
from headway.data.prepare.pipeline import PrepareOptions, Summary, prepare
from headway.data.prepare.quality import Threshold, TooManyBadRows
from headway.data.text import Rules, load_tokenizer
from headway.storage import open_store
from tests.data import layouts
from tests.data.layouts import picture, put
from tests.waiting import wait_until


def rows_of(summary: Summary, split: str) -> list[dict[str, Any]]:
    found = []
    for shard in summary.manifest.splits[split]:
        opened = Shard(Path(summary.url) / shard.key, summary.manifest.columns)
        cells = {column.name: opened.cells(column.name) for column in summary.manifest.columns}
        found += [{name: column[row] for name, column in cells.items()} for row in range(len(opened))]
    return found


def lines_of(summary_url: str, name: str = "dropped.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(summary_url) / name).read_text().splitlines()]


def here(source: Path, to: Path, **options: Any) -> Summary:
    return prepare(str(source), str(to), workers=1, **{"size": 32, **options})


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_coco_becomes_rows_with_pictures_and_captions(tmp_path: Path) -> None:
    summary = here(layouts.coco(tmp_path / "coco"), tmp_path / "out")
    assert summary.rows == {"train": 6, "val": 3}
    first = rows_of(summary, "train")[0]
    assert first["id"] == "0"
    assert first["captions"] == [f"A made-up picture number 0, said in way {k}." for k in range(5)]
    assert (first["width"], first["height"]) == (64, 48)
    assert decode(first["picture"], Shape(None)).pixels.shape == (32, 43, 3)
    words = json.loads((tmp_path / "out" / "words.json").read_text())
    assert words["made-up"] == 30  # of train alone: 6 pictures, 5 captions


def test_raw_pixels_are_squares_of_one_size(tmp_path: Path) -> None:
    summary = here(layouts.class_folders(tmp_path / "in", splits=("train",)), tmp_path / "out", encoding="raw")
    row = rows_of(summary, "train")[5]
    assert row["picture"].shape == (32, 32, 3)
    expected = decode(picture(5), Shape(32, "crop")).pixels
    assert np.array_equal(row["picture"], expected)
    assert row["label"] == 1
    assert summary.manifest.classes == ("class_0", "class_1", "class_2")


def test_graded_pairs_keep_both_pictures_and_the_whole_scale(tmp_path: Path) -> None:
    source = layouts.graded_pairs(tmp_path / "in", train=3)  # grades 1, 2, 3 and, in val, 4 and 1
    body = json.loads((source / "splits.json").read_text())
    body["val"][0]["grade"] = 7
    (source / "splits.json").write_text(json.dumps(body))
    summary = here(source, tmp_path / "out")
    assert summary.manifest.classes == ("1", "2", "3", "4", "5", "6", "7")
    assert [row["label"] for row in rows_of(summary, "train")] == [0, 1, 2]
    assert [column.name for column in summary.manifest.columns] == ["id", "back", "front", "label"]


def test_sentences_are_stored_with_their_subword_numbers(tmp_path: Path) -> None:
    summary = here(layouts.parallel(tmp_path / "in"), tmp_path / "out", options=PrepareOptions(bpe_size=400))
    tokenizer = load_tokenizer((tmp_path / "out" / "tokenizer.json").read_bytes())
    row = rows_of(summary, "train")[7]
    assert (
        tokenizer.decode(row["source_ids"].tolist())
        == row["source"]
        == "The en sentence number 7 of train has some words."
    )
    assert tokenizer.encode(row["target"]) == row["target_ids"].tolist()


def test_the_shards_are_the_same_bytes_whatever_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.data.prepare.shard_task._PICTURE_ROWS", 16)
    source = layouts.class_folders(tmp_path / "in", splits=("train", "val"), classes=2, each=20)
    put(source / "train" / "class_0" / "broken.jpg", b"\xff\xd8 not a picture")
    alone = here(source, tmp_path / "one", max_bad="10%")
    assert alone.chunks > 4
    prepare(str(source), str(tmp_path / "two"), size=32, workers=2, max_bad="10%")
    one, two = files_of(tmp_path / "one"), files_of(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        assert one[name] == two[name].replace(b'"name": "two"', b'"name": "one"'), name


def test_a_killed_preparation_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.data.prepare.shard_task._PICTURE_ROWS", 16)
    source = layouts.class_folders(tmp_path / "in", splits=("train",), classes=2, each=40)
    straight = here(source, tmp_path / "straight")
    script = (
        "import sys, headway.data.prepare.shard_task as chunk, headway.data.prepare.pipeline as module\n"
        "chunk._PICTURE_ROWS = 16\n"
        "module.prepare(sys.argv[1], sys.argv[2], size=32, workers=1)\n"
    )
    out, receipts = tmp_path / "killed", tmp_path / "killed" / "receipts"
    process = subprocess.Popen([sys.executable, "-c", script, str(source), str(out)])
    wait_until(lambda: process.poll() is not None or len(list(receipts.glob("*.json"))) >= 2)
    process.kill()
    process.wait()
    done = len(list(receipts.glob("*.json")))
    assert not (out / "manifest.json").exists() or done == 0
    resumed = here(source, out)
    assert resumed.kept == (done or resumed.chunks)
    assert resumed.manifest.fingerprint == straight.manifest.fingerprint
    assert not receipts.exists()


def test_a_finished_data_set_is_left_as_it_is(tmp_path: Path) -> None:
    source = layouts.coco(tmp_path / "in")
    here(source, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    again = here(source, tmp_path / "out")
    assert again.kept == again.chunks
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_another_data_set_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    source = layouts.coco(tmp_path / "in")
    here(source, tmp_path / "out")
    with pytest.raises(BadInput, match="--overwrite"):
        here(source, tmp_path / "out", size=40)
    put(source / "train2017" / "000000000000.jpg", picture(77))
    with pytest.raises(BadInput, match="--overwrite"):
        here(source, tmp_path / "out")
    assert here(source, tmp_path / "out", size=40, overwrite=True).manifest.settings["size"] == 40


def test_every_dropped_row_stands_in_the_report_with_its_reason(tmp_path: Path) -> None:
    source = layouts.vizwiz(tmp_path / "in", count=8)
    (source / "train" / "VizWiz_train_00000000.jpg").unlink()
    put(source / "train" / "VizWiz_train_00000001.jpg", picture(1)[:200])
    path = source / "annotations" / "train.json"
    body = json.loads(path.read_text())
    by_number = [[a for a in body["annotations"] if a["image_id"] == n] for n in range(8)]
    by_number[2][0]["is_rejected"] = True
    by_number[2][1]["caption"] = "Quality issues are too severe to recognize visual content."
    by_number[2][2]["caption"] = "  "
    by_number[2][3]["caption"] = "short"
    by_number[2][4]["caption"] = "long " * 70
    by_number[3][0]["caption"] = "Curly ’quotes’ and\u200b  spaces\r\nand tabs\tgo ."
    body["annotations"].append({"image_id": 999, "caption": "of a picture that is not there"})
    path.write_text(json.dumps(body))
    summary = here(source, tmp_path / "out", max_bad=5)
    assert [row["id"] for row in rows_of(summary, "train")] == ["3", "4", "5", "6", "7"]
    assert rows_of(summary, "train")[0]["captions"][0] == "Curly 'quotes' and spaces and tabs go ."
    reasons = {
        (line["row"].rpartition("/")[2], line["reason"]) for line in lines_of(summary.url) if line["split"] != "test"
    }
    assert reasons == {
        ("0", "picture missing"),
        ("1", "picture unreadable"),
        ("2", "rejected caption"),
        ("2", "pre-canned caption"),
        ("2", "empty caption"),
        ("2", "caption too short"),
        ("2", "caption too long"),
        ("2", "no caption left"),
        ("999", "caption without a picture"),
    }
    assert summary.manifest.dropped["no caption"] == 8  # the test split comes without any
    assert summary.bad_rows == 4
    everything = summary.manifest.rows("train") + summary.manifest.rows("val")
    assert everything + len({line["row"] for line in lines_of(summary.url)}) == 8 * 3 + 1


def test_too_many_bad_rows_stop_it_with_reasons_and_a_report(tmp_path: Path) -> None:
    source = layouts.class_folders(tmp_path / "in", splits=("train",), each=10)
    for path in sorted(source.rglob("*.jpg"))[:4]:
        path.write_bytes(b"junk")
    with pytest.raises(TooManyBadRows, match=r"4 of 30 rows are bad, more than the 1% allowed") as caught:
        here(source, tmp_path / "out")
    assert "4 × picture unreadable, such as train/class_0/0.jpg" in str(caught.value)
    assert len(lines_of(str(tmp_path / "out"))) == 4
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert here(source, tmp_path / "out", max_bad="20%").rows == {"train": 26}


@pytest.mark.parametrize(
    ("text", "allowed"), [("1%", 10), ("0.5 %", 5), ("250", 250), (0.02, 20), (7, 7), ("100%", 1000)]
)
def test_the_threshold_is_a_share_or_a_number(text: str | float, allowed: int) -> None:
    assert Threshold.parse(text).allows(1000) == allowed


@pytest.mark.parametrize("text", ["", "1.5", "-3", "many", "101%", -1, 2.5])
def test_a_threshold_that_makes_no_sense_is_refused(text: str | float) -> None:
    with pytest.raises(BadInput, match="--max-bad"):
        Threshold.parse(text)


def test_splits_are_made_by_group_and_class_where_none_are_given(tmp_path: Path) -> None:
    lines = [{"file": f"{n}.jpg", "class": "common" if n % 4 else "rare", "group": n // 3} for n in range(120)]
    for n in range(120):
        put(tmp_path / "in" / f"{n}.jpg", picture(n % 7))
    source = layouts.table(tmp_path / "in", lines)
    summary = here(source, tmp_path / "out", options=PrepareOptions(splits={"train": 0.5, "val": 0.25, "test": 0.25}))
    assert summary.rows == {"train": 60, "val": 30, "test": 30}
    groups = {s: {int(row["id"].removesuffix(".jpg")) // 3 for row in rows_of(summary, s)} for s in summary.rows}
    assert not groups["train"] & groups["val"] | groups["train"] & groups["test"] | groups["val"] & groups["test"]
    rare = {s: sum(row["label"] for row in rows_of(summary, s)) / summary.rows[s] for s in summary.rows}
    assert all(abs(share - 0.25) < 0.11 for share in rare.values())
    layouts.table(tmp_path / "in", lines[::-1])
    reordered = here(
        source, tmp_path / "again", options=PrepareOptions(splits={"train": 0.5, "val": 0.25, "test": 0.25})
    )
    for split in summary.rows:
        assert {row["id"] for row in rows_of(summary, split)} == {row["id"] for row in rows_of(reordered, split)}


def test_a_group_in_two_splits_is_kept_in_the_one_that_is_measured_on(tmp_path: Path) -> None:
    source = layouts.graded_pairs(tmp_path / "in", train=10, val=4)
    body = json.loads((source / "splits.json").read_text())
    body["train"].append(body["val"][0])
    (source / "splits.json").write_text(json.dumps(body))
    with pytest.raises(TooManyBadRows, match="group in two splits"):
        here(source, tmp_path / "out")
    summary = here(source, tmp_path / "out", max_bad=1)
    assert summary.rows == {"train": 10, "val": 4}
    (line,) = lines_of(summary.url)
    assert line["detail"] == "group 1010 is also in val"


def test_duplicates_are_reported_and_dropped_from_train_if_asked(tmp_path: Path) -> None:
    source = layouts.class_folders(tmp_path / "in", splits=("train", "test"), classes=2, each=5)
    same, alike = source / "train/class_0/same.jpg", source / "train/class_1/alike.jpg"
    shutil.copy(source / "test/class_0/0.jpg", same)
    Image.open(source / "test/class_1/1.jpg").resize((128, 96)).save(alike, quality=85)
    summary = here(source, tmp_path / "report")
    assert summary.duplicate_groups == {"exact": 1, "near": 2}
    assert {line["kind"] for line in lines_of(summary.url, "duplicates.jsonl")} == {"exact", "near"}
    assert summary.rows == {"train": 12, "test": 10}
    dropped = here(source, tmp_path / "drop", options=PrepareOptions(duplicates="drop"))
    assert dropped.rows == {"train": 10, "test": 10}
    assert {line["row"] for line in lines_of(dropped.url)} == {"train/class_0/same.jpg", "train/class_1/alike.jpg"}
    assert "the same file as test/class_0/0.jpg" in str(lines_of(dropped.url))


def test_the_rules_can_be_changed(tmp_path: Path) -> None:
    source = layouts.vizwiz(tmp_path / "in")
    path = source / "annotations" / "train.json"
    path.write_text(path.read_text().replace('"is_rejected": false', '"is_rejected": true'))
    rules = Rules(keep_flagged=True, max_words=9)
    summary = here(source, tmp_path / "out", options=PrepareOptions(rules=rules))
    assert summary.rows["train"] == 4
    assert "rejected caption" not in summary.manifest.dropped


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 3}, "--size"),
        ({"encoding": "png"}, "--encoding"),
        ({"encoding": "raw", "size": None}, "--fit"),
        ({"encoding": "raw", "options": PrepareOptions(fit="short")}, "--fit"),
        ({"options": PrepareOptions(quality=0)}, "1 to 100"),
        ({"options": PrepareOptions(splits={"train": 0.5})}, "add up to 0.5"),
        ({"max_bad": "lots"}, "--max-bad"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_done(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        here(layouts.class_folders(tmp_path / "in"), tmp_path / "out", **options)


def test_source_and_destination_must_lie_apart(tmp_path: Path) -> None:
    source = layouts.class_folders(tmp_path / "in")
    for to in (source, source / "out", tmp_path):
        with pytest.raises(BadInput, match="choose a folder beside the source"):
            here(source, to)
    assert not list(tmp_path.rglob(".work"))


def test_data_goes_to_an_object_store_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    source = layouts.coco(tmp_path / "in")
    summary = prepare(str(source), "memory://test-prepare/coco", size=32, workers=1)
    manifest = read_manifest("memory://test-prepare/coco")
    assert manifest == summary.manifest
    keys = {entry.key for entry in open_store("memory://test-prepare/coco").list()}
    assert keys == {"manifest.json", "dropped.jsonl", "duplicates.jsonl", "words.json"} | {
        shard.key for shards in manifest.splits.values() for shard in shards
    }


def test_two_preparations_do_not_write_to_one_place(tmp_path: Path) -> None:
    source = layouts.coco(tmp_path / "in")

    def second(what: str, done: int, total: int) -> None:
        with pytest.raises(BadInput, match="another preparation is writing"):
            here(source, tmp_path / "out")

    here(source, tmp_path / "out", progress=second)


def test_a_full_disk_is_said_and_the_next_start_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes fail once a quota is used up, as a full disk's do: with the store's own error."""
    from headway.storage.local import FolderStore

    source = layouts.class_folders(tmp_path / "in", splits=("train", "val"))
    write, room = FolderStore.write, [3]

    def limited(self: FolderStore, key: str, body: Any, **options: Any) -> str:
        room[0] -= 1
        if room[0] < 0:
            raise DiskFull("no space left on device", where=key)
        return write(self, key, body, **options)

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "write", limited)
        with pytest.raises(DiskFull):
            here(source, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert here(source, tmp_path / "out").kept == 1


@contextmanager
def scheduler(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A real Dask scheduler and worker, as on other machines."""
    environment = os.environ | {"PYTHONPATH": "src:."}
    file = tmp_path / "scheduler.json"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    python = [sys.executable, "-m"]
    start = [*python, "distributed.cli.dask_scheduler", "--no-dashboard", "--port", "0", "--host", "127.0.0.1"]
    work = [*python, "distributed.cli.dask_worker", "--no-nanny", "--no-dashboard", "--nthreads", "1"]
    processes = [subprocess.Popen([*start, "--scheduler-file", str(file)], **quiet)]
    try:
        wait_until(lambda: file.exists() and file.read_text(), "the scheduler listens")
        address = json.loads(file.read_text())["address"]
        processes.append(subprocess.Popen([*work, "--local-directory", str(tmp_path), address], **quiet))
        yield address, processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def workers_at(address: str) -> int:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        return len(client.nthreads())


def test_a_scheduler_that_dies_in_the_middle_is_a_clear_error_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.data.prepare.shard_task._PICTURE_ROWS", 16)
    source = layouts.class_folders(tmp_path / "in", splits=("train",), classes=2, each=160)
    with scheduler(tmp_path) as (address, processes):
        deadline = time.monotonic() + 60

        def strike(what: str, done: int, total: int) -> None:
            if what == "preparing" and done:
                processes[0].send_signal(signal.SIGKILL)

        while not workers_at(address):
            assert time.monotonic() < deadline
        with pytest.raises(ClusterLost, match="start it again"):
            prepare(str(source), str(tmp_path / "out"), size=32, dask=address, progress=strike)
    resumed = here(source, tmp_path / "out")
    assert resumed.kept > 0
    assert resumed.rows == {"train": 320}


def test_an_address_where_nothing_answers_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.data.prepare.executor.CONNECT_S", 0.5)
    with pytest.raises(BadInput, match=r"no Dask scheduler responds at tcp://127\.0\.0\.1:9"):
        prepare(str(layouts.class_folders(tmp_path / "in")), str(tmp_path / "out"), size=32, dask="tcp://127.0.0.1:9")


def test_progress_is_told_in_rows(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    here(layouts.coco(tmp_path / "in"), tmp_path / "out", progress=lambda *words: told.append(words))
    assert told[0][0] == "reading COCO captions"
    assert ("preparing", 9, 9) in told


def test_preparing_needs_no_torch() -> None:
    script = "import sys, headway.data.prepare.pipeline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
    assert module is not None


def test_everything_that_can_be_wrong_at_once_is_told_apart(tmp_path: Path) -> None:
    source = layouts.coco(tmp_path / "in", train=12, val=3)
    folder, path = source / "train2017", source / "annotations" / "captions_train2017.json"
    (folder / f"{0:012d}.jpg").unlink()
    put(folder / f"{1:012d}.jpg", b"")
    put(folder / f"{2:012d}.jpg", picture(2)[:-400])
    huge = bytearray(picture(3))
    at = huge.index(b"\xff\xc0")
    huge[at + 5 : at + 9] = (10_000).to_bytes(2, "big") * 2
    put(folder / f"{3:012d}.jpg", bytes(huge))
    put(folder / f"{4:012d}.jpg", b"<html>404</html>")
    body = json.loads(path.read_text())
    body["images"] += [{"id": 5, "file_name": "again.jpg"}, {"id": 90, "file_name": "/etc/passwd"}, "no object"]
    by_number = [[a for a in body["annotations"] if a["image_id"] == n] for n in range(12)]
    by_number[6][0]["caption"] = "lone \ud800 surrogate is here"
    by_number[6][1]["caption"] = None
    by_number[6][2]["caption"] = "\u200b \t"
    body["annotations"] += [{"image_id": 12345, "caption": "of nothing at all"}]
    path.write_text(json.dumps(body))
    summary = here(source, tmp_path / "out", max_bad="100%")
    reasons = {line["reason"]: line["detail"] for line in lines_of(summary.url)}
    assert set(reasons) == {
        "picture missing",
        "picture unreadable",
        "id used twice",
        "path leads outside",
        "wrong type",
        "not UTF-8",
        "empty caption",
        "caption without a picture",
    }
    details = " ".join(line["detail"] for line in lines_of(summary.url))
    for said in ("the file is empty", "damaged JPEG", "100 megapixels, more than the limit of 64", "not a picture"):
        assert said in details
    assert [row["id"] for row in rows_of(summary, "train")] == ["5", "6", "7", "8", "9", "10", "11"]
    assert len(rows_of(summary, "train")[1]["captions"]) == 2


def test_text_that_is_not_utf8_loses_its_line_alone(tmp_path: Path) -> None:
    source = layouts.parallel(tmp_path / "in", lines=300)
    body = (source / "train.de").read_bytes().splitlines(keepends=True)
    body[7] = b"\xff\xfe broken \xe4\n"
    (source / "train.de").write_bytes(b"".join(body))
    summary = here(source, tmp_path / "out", options=PrepareOptions(bpe_size=300))
    assert summary.rows["train"] == 299
    assert [(line["row"], line["reason"]) for line in lines_of(summary.url)] == [("train/8", "not UTF-8")]


def test_a_scratch_file_that_does_not_fit_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headway.data.prepare.staging._SCRATCH", "pragma max_page_count = 12; pragma journal_mode = off;"
    )
    with pytest.raises(DiskFull, match="finished shards are kept"):
        here(layouts.parallel(tmp_path / "in", lines=3000), tmp_path / "out")
