from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.core.errors import BadInput
from headway.data.readers.base import Bad, Caption, Row, split_name
from headway.data.readers.detect import detect, reader_for
from headway.data.readers.files import Tree, arrays
from headway.plugins import READERS
from headway.storage import open_store
from tests.data import layouts


def read(root: Path | str, kind: str | None = None, **options: object) -> tuple[list[Row], list[Caption], list[Bad]]:
    found = list(reader_for(Tree(str(root), Path("/nonexistent")), kind, **options).read_rows())
    rows = [thing for thing in found if isinstance(thing, Row)]
    captions = [thing for thing in found if isinstance(thing, Caption)]
    return rows, captions, [thing for thing in found if isinstance(thing, Bad)]


LAYOUTS: list[tuple[str, Callable[[Path], Path]]] = [
    ("coco", layouts.coco),
    ("coco", lambda root: layouts.coco(root, year="2014")),
    ("coco", lambda root: layouts.coco(root, flat=True)),
    ("vizwiz", layouts.vizwiz),
    ("flickr8k", layouts.flickr8k),
    ("folders", layouts.class_folders),
    ("folders", lambda root: layouts.class_folders(root, splits=("train", "valid"))),
    ("parallel", layouts.parallel),
    ("pairs", layouts.graded_pairs),
]


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
def test_the_layout_is_recognised_and_every_picture_is_found(
    tmp_path: Path, kind: str, layout: Callable[[Path], Path]
) -> None:
    root = layout(tmp_path)
    assert detect(Tree(str(root), tmp_path)) == kind
    rows, _, bad = read(root)
    assert rows
    assert not bad
    assert all((root / key).is_file() for row in rows for key in row.pictures.values())


def test_the_registry_is_sorted() -> None:
    assert list(READERS) == sorted(READERS)


@pytest.mark.parametrize("year", ["2014", "2017"])
def test_coco_rows_have_splits_numbers_and_five_captions(tmp_path: Path, year: str) -> None:
    rows, captions, _ = read(layouts.coco(tmp_path, year=year))
    assert [row.split for row in rows] == ["train"] * 6 + ["val"] * 3
    assert [row.name for row in rows] == [str(n) for n in range(9)]
    by_row = [sum(caption.row == row.id for caption in captions) for row in rows]
    assert by_row == [5] * 9


def test_two_years_of_coco_are_not_mixed_up(tmp_path: Path) -> None:
    layouts.coco(layouts.coco(tmp_path, year="2014"), year="2017")
    with pytest.raises(BadInput, match="--year 2017"):
        read(tmp_path)
    assert len(read(tmp_path, year="2014")[0]) == 9


def test_coco_entries_of_wrong_types_are_reported_one_by_one(tmp_path: Path) -> None:
    root = layouts.coco(tmp_path)
    path = root / "annotations" / "captions_train2017.json"
    body = json.loads(path.read_text())
    body["images"] += [
        7,
        {"id": None, "file_name": "x.jpg"},
        {"id": 5000},
        {"id": 5001, "file_name": "../../etc/passwd"},
    ]
    body["annotations"] += ["text", {"image_id": True, "caption": "x"}, {"image_id": 1, "caption": ["a"]}]
    path.write_text(json.dumps(body))
    rows, _, bad = read(root)
    assert len(rows) == 9
    assert [thing.reason for thing in bad] == ["wrong type"] * 3 + ["path leads outside"] + ["wrong type"] * 3


@pytest.mark.parametrize("text", ['{"images": [{"id": 1', "[1, 2]", "", '{"images": [1 2]}', "\udcff"])
def test_a_broken_json_file_is_an_error_with_its_place(tmp_path: Path, text: str) -> None:
    path = layouts.put(tmp_path / "annotations" / "captions_train2017.json", text.encode(errors="surrogateescape"))
    with pytest.raises(BadInput, match=r"captions_train2017.json: character \d+"):
        read(path.parent.parent, "coco")


def test_a_json_file_is_read_in_the_memory_of_one_element(tmp_path: Path) -> None:
    path = layouts.put(tmp_path / "big.json", json.dumps(layouts.coco_json(range(20_000), captions=2)))
    tracemalloc.start()
    count = sum(1 for _ in arrays(path, frozenset(("images", "annotations"))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 60_000
    assert peak < 3_000_000 < path.stat().st_size


def test_vizwiz_flags_are_kept(tmp_path: Path) -> None:
    root = layouts.vizwiz(tmp_path)
    path = root / "annotations" / "train.json"
    body = json.loads(path.read_text())
    body["annotations"][0]["is_rejected"] = True
    body["annotations"][1]["is_precanned"] = True
    path.write_text(json.dumps(body))
    rows, captions, _ = read(root)
    assert [caption.flag for caption in captions][:3] == ["rejected", "pre-canned", ""]
    assert {row.split for row in rows} == {"train", "val", "test"}


def test_flickr8k_lines_that_make_no_sense_are_reported(tmp_path: Path) -> None:
    root = layouts.flickr8k(tmp_path)
    path = root / "Flickr8k_text" / "Flickr8k.token.txt"
    path.write_bytes(path.read_bytes() + b"no tab here\n\xff\xfe\t\n99_new.jpg#0\tIn no list .\n\n")
    rows, _, bad = read(root)
    assert len(rows) == 8
    assert [row.split for row in rows] == ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    assert [(thing.reason, thing.fault) for thing in bad] == [
        ("wrong format", True),
        ("not UTF-8", True),
        ("in no split", False),
    ]


def test_class_folders_give_labels_and_splits(tmp_path: Path) -> None:
    rows, _, _ = read(layouts.class_folders(tmp_path, splits=("train", "Valid", "test2017"), each=1))
    assert [(row.split, row.label) for row in rows if row.label == "class_1"] == [
        ("val", "class_1"),
        ("test", "class_1"),
        ("train", "class_1"),
    ]


def test_a_picture_outside_of_any_class_is_reported(tmp_path: Path) -> None:
    layouts.put(layouts.class_folders(tmp_path) / "stray.jpg", b"")
    assert [thing.reason for thing in read(tmp_path)[2]] == ["in no class"]


def test_a_table_gives_classes_splits_and_groups(tmp_path: Path) -> None:
    rows = [{"file": f"{n}.jpg", "class": "ab"[n % 2], "split": "dev", "group": n // 2} for n in range(4)]
    for n in range(4):
        layouts.put(tmp_path / "images" / f"{n}.jpg", layouts.picture(n))
    found, _, bad = read(layouts.table(tmp_path, rows))
    assert not bad
    assert [(row.label, row.split, row.group) for row in found] == [
        ("a", "val", "0"),
        ("b", "val", "0"),
        ("a", "val", "1"),
        ("b", "val", "1"),
    ]
    assert found[0].pictures == {"picture": "images/0.jpg"}


def test_a_table_of_grades_wants_whole_numbers(tmp_path: Path) -> None:
    layouts.put(tmp_path / "0.jpg", layouts.picture(0))
    rows, _, bad = read(layouts.table(tmp_path, [{"image": "0", "grade": 3}, {"image": "1", "grade": "high"}]))
    assert [(row.label, row.pictures["picture"]) for row in rows] == [("3", "0.jpg")]
    assert [thing.detail for thing in bad] == ["the grade is 'high', not a whole number"]


def test_a_table_of_captions_collects_those_of_a_picture(tmp_path: Path) -> None:
    layouts.put(tmp_path / "images" / "a.jpg", layouts.picture(0))
    lines = [{"caption": f"way, {k}", "file_name": "a"} for k in range(3)]
    rows, captions, _ = read(layouts.table(tmp_path, lines, "captions.tsv"))
    assert [row.pictures for row in rows] == [{"picture": "images/a.jpg"}]
    assert [caption.text for caption in captions] == ["way, 0", "way, 1", "way, 2"]


def test_a_line_of_a_table_that_is_not_utf8_does_not_end_the_reading(tmp_path: Path) -> None:
    layouts.put(tmp_path / "0.jpg", layouts.picture(0))
    layouts.put(tmp_path / "t.csv", b"file,class\n0.jpg,\xff\n0.jpg,leaf\n")
    rows, _, bad = read(tmp_path, "table")
    assert [row.label for row in rows] == ["leaf"]
    assert [thing.reason for thing in bad] == ["not UTF-8"]


def test_parallel_text_reads_english_first_or_what_is_asked_for(tmp_path: Path) -> None:
    rows, _, _ = read(layouts.parallel(tmp_path))
    assert rows[0].texts["source"].startswith("The en")
    assert [row.split for row in rows] == ["test"] * 6 + ["train"] * 40 + ["val"] * 6
    swapped, _, _ = read(tmp_path, languages=("de", "en"))
    assert swapped[0].texts["target"].startswith("The en")


def test_three_languages_need_a_choice(tmp_path: Path) -> None:
    layouts.parallel(tmp_path, languages=("en", "de", "fr"))
    with pytest.raises(BadInput, match="--languages"):
        read(tmp_path)
    with pytest.raises(BadInput, match=r"no text ends in \.xx"):
        read(tmp_path, languages=("en", "xx"))


def test_files_of_different_length_are_an_error(tmp_path: Path) -> None:
    path = layouts.parallel(tmp_path) / "val.de"
    path.write_text(path.read_text() + "one more\n")
    with pytest.raises(BadInput, match=r"val\.en ends after 6"):
        read(tmp_path)


def test_a_tsv_of_pairs_reports_lines_with_other_columns(tmp_path: Path) -> None:
    layouts.put(tmp_path / "train.tsv", "a b\tc d\nonly one\ne\tf\tg\n\nh\ti\n")
    rows, _, bad = read(tmp_path)
    assert [dict(row.texts) for row in rows] == [{"source": "a b", "target": "c d"}, {"source": "h", "target": "i"}]
    assert [thing.row for thing in bad] == ["train/2", "train/3"]


def test_graded_pairs_have_two_pictures_a_grade_and_a_group(tmp_path: Path) -> None:
    rows, _, _ = read(layouts.graded_pairs(tmp_path))
    assert rows[0].name == rows[0].group == "1000"
    assert set(rows[0].pictures) == {"front", "back"}
    assert [row.label for row in rows] == ["1", "2", "3", "4", "1", "2", "3", "4"]
    assert [row.split for row in rows] == ["train"] * 6 + ["val"] * 2


def test_graded_pairs_of_wrong_types_are_reported(tmp_path: Path) -> None:
    good = {"cert_id": "a", "grade": 5, "front": "f.jpg", "back": str(tmp_path / "b.jpg")}
    wrong: list[object] = [
        3,
        good | {"cert_id": None},
        good | {"grade": 2.5},
        good | {"grade": True},
        good | {"back": 1},
    ]
    wrong.append(good | {"front": "/etc/passwd"})
    layouts.put(tmp_path / "splits.json", json.dumps({"train": [good, *wrong], "notes": "kept apart"}))
    rows, _, bad = read(tmp_path)
    assert [dict(row.pictures) for row in rows] == [{"front": "f.jpg", "back": "b.jpg"}]
    assert len(bad) == 6


def test_graded_pairs_may_say_what_is_known_of_edges_and_centring(tmp_path: Path) -> None:
    plain = {"grade": 5, "front": "f.jpg", "back": "b.jpg"}
    known = [
        plain | {"cert_id": "both", "edge": {"back": 0, "front": 0.5}, "center": {"back": [0.1, 0], "front": [1, 0.2]}},
        plain | {"cert_id": "one", "center": {"front": [None, 0.3]}, "edge": None},
        plain | {"cert_id": "none"},
    ]
    wrong = [
        plain | {"cert_id": "number", "edge": 0.5},
        plain | {"cert_id": "side", "edge": {"top": 0.5}},
        plain | {"cert_id": "range", "edge": {"front": 1.5}},
        plain | {"cert_id": "truth", "edge": {"front": True}},
        plain | {"cert_id": "single", "center": {"front": 0.5}},
        plain | {"cert_id": "nan", "center": {"front": [float("nan"), 0.5]}},
    ]
    layouts.put(tmp_path / "splits.json", json.dumps({"train": [*known, *wrong]}))
    rows, _, bad = read(tmp_path)
    assert [list(row.numbers.get("targets", ())) for row in rows] == [
        [0.0, 0.1, 0.0, 0.5, 1.0, 0.2],
        [None, None, None, None, None, 0.3],
        [],
    ]
    assert [thing.row for thing in bad] == ["number", "side", "range", "truth", "single", "nan"]
    assert "edge of the front is 1.5, not a number from 0 to 1" in bad[2].detail


def test_a_source_may_lie_in_an_object_store(tmp_path: Path) -> None:
    local = layouts.flickr8k(tmp_path / "here")
    store = open_store("memory://test-sources/flickr")
    for path in local.rglob("*"):
        if path.is_file():
            store.write(str(path.relative_to(local)), path.read_bytes())
    tree = Tree("memory://test-sources/flickr", tmp_path / "work", store)
    found = [thing for thing in reader_for(tree).read_rows() if isinstance(thing, Row)]
    assert [row.pictures for row in found] == [row.pictures for row in read(local)[0]]


def test_an_unknown_layout_says_what_was_seen(tmp_path: Path) -> None:
    layouts.put(tmp_path / "only.jpg", layouts.picture(0))
    with pytest.raises(BadInput, match=r"1 pictures in 1 folders, 0 other files.*\n.*--format"):
        read(tmp_path)
    with pytest.raises(BadInput, match="unknown format 'mnist'"):
        read(tmp_path, "mnist")
    with pytest.raises(BadInput, match="the format folders has no option --year"):
        read(tmp_path, "folders", year="2014")


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("train2014", "train"),
        ("Flickr_8k.devImages.txt", "val"),
        ("captions_val2017.json", "val"),
        ("test_2016_flickr", "test"),
        ("Validation", "val"),
        ("contest", ""),
        ("trainer", ""),
    ],
)
def test_splits_go_by_many_names(text: str, split: str) -> None:
    assert split_name(text) == split
