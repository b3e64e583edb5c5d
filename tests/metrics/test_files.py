"""Caption files: what is wrong with them is named, counted and refused, and what is allowed is said."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import BadInput
from headway.metrics import captions
from headway.metrics.files import read_caption_files, score_captions
from tests.metrics.public_data import COCO, coco, needs_coco

DOG = {"image_id": 1, "caption": "A dog runs."}
CAT = {"image_id": 2, "caption": "A cat sleeps."}
ANNOTATIONS = [
    {"id": 10, "image_id": 1, "caption": "a dog is running"},
    {"id": 11, "image_id": 1, "caption": "the dog runs"},
    {"id": 12, "image_id": 2, "caption": "a cat sleeps"},
]


class Files:
    """Writes a results and an annotations file, and scores them."""

    def __init__(self, folder: Path) -> None:
        self.results, self.references = folder / "results.json", folder / "references.json"

    def score(self, results: object, references: object = None, **options: Any) -> dict[str, Any]:
        given = {"annotations": ANNOTATIONS} if references is None else references
        for path, content in ((self.results, results), (self.references, given)):
            path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return score_captions(self.results, self.references, meteor=False, **options)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_coco_files_give_the_scores_of_their_captions(files: Files) -> None:
    answer = files.score([DOG, CAT])
    expected = captions.score(
        [DOG["caption"], CAT["caption"]], [["a dog is running", "the dog runs"], ["a cat sleeps"]]
    )
    assert answer == {**expected, "pictures": 2, "references": 3, "notes": []}


def test_each_picture_has_its_scores_under_its_id(files: Files) -> None:
    answer = files.score([CAT, DOG], per_image=True)
    assert list(answer["per_image"]) == ["2", "1"]
    assert answer["per_image"]["2"]["rouge_l"] == pytest.approx(1)
    assert set(answer["per_image"]["1"]) == set(captions.METRICS)


def test_tokenised_captions_are_taken_as_they_are(files: Files) -> None:
    as_is = files.score([{"image_id": 1, "caption": "dog ."}], [{"image_id": 1, "caption": "dog ."}], tokenized=True)
    assert as_is["bleu_2"] == pytest.approx(1, abs=1e-6)


def test_a_list_of_annotations_alone_will_do(files: Files) -> None:
    assert files.score([DOG, CAT], ANNOTATIONS)["pictures"] == 2


def test_ids_may_be_names(files: Files) -> None:
    assert (
        files.score([{"image_id": "x.jpg", "caption": "a"}], [{"image_id": "x.jpg", "caption": "a"}])["pictures"] == 1
    )


def test_pictures_in_one_file_only_are_named_and_counted(files: Files) -> None:
    strangers = [{"image_id": 100 + number, "caption": "a dog"} for number in range(7)]
    with pytest.raises(BadInput) as refusal:
        files.score([DOG, *strangers])
    message = str(refusal.value)
    assert f"{files.results}: 7 pictures without references: 100, 101, 102, 103, 104 and 2 more" in message
    assert f"{files.references}: 1 pictures without a result: 2" in message
    assert "fix: --allow-missing" in message


def test_pictures_in_one_file_only_may_be_left_out(files: Files) -> None:
    answer = files.score([DOG, {"image_id": 9, "caption": "a dog"}], allow_missing=True)
    assert answer["pictures"] == 1
    assert [note.split(";")[0] for note in answer["notes"]] == [
        "results.json: 1 pictures without references",
        "references.json: 1 pictures without a result",
    ]


def test_files_without_a_picture_in_common_are_refused_even_then(files: Files) -> None:
    with pytest.raises(BadInput, match="no picture has both"):
        files.score([{"image_id": 9, "caption": "a dog"}], allow_missing=True)


def test_ids_that_are_text_in_one_file_and_numbers_in_the_other_are_pointed_out(files: Files) -> None:
    with pytest.raises(BadInput, match="text in one file and a number in the other"):
        files.score([{"image_id": "1", "caption": "a"}, {"image_id": "2", "caption": "b"}])


@pytest.mark.parametrize("empty", ["", "  ", "...", "\n"])
def test_empty_captions_are_refused(files: Files, empty: str) -> None:
    with pytest.raises(BadInput, match=r"1 captions without a word, of pictures: 2\n.*--allow-empty"):
        files.score([DOG, {"image_id": 2, "caption": empty}])


def test_empty_results_may_count_and_empty_references_be_left_out(files: Files) -> None:
    references = [*ANNOTATIONS, {"id": 13, "image_id": 2, "caption": " "}]
    answer = files.score([DOG, {"image_id": 2, "caption": ""}], references, allow_empty=True)
    assert answer["references"] == 3
    assert len(answer["notes"]) == 2
    assert answer["rouge_l"] == pytest.approx(files.score([DOG, CAT])["rouge_l"] - 0.5)


def test_a_second_result_for_a_picture_is_refused(files: Files) -> None:
    with pytest.raises(BadInput, match="1 results for a picture that has one already: 1"):
        files.score([DOG, CAT, DOG])


def test_an_annotation_id_used_twice_is_refused(files: Files) -> None:
    with pytest.raises(BadInput, match="1 annotations with an id used before: 12"):
        files.score([DOG, CAT], [*ANNOTATIONS, {"id": 12, "image_id": 2, "caption": "cat"}])


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (7, "1 results that are not objects: number 1 is a number"),
        (None, "1 results that are not objects: number 1 is null"),
        ({"caption": "a"}, "1 results without image_id: number 1"),
        ({}, "1 results without image_id and caption: number 1"),
        ({"image_id": 2.5, "caption": "a"}, "image_id is neither a whole number nor text: number 1: a number"),
        ({"image_id": True, "caption": "a"}, "image_id is neither a whole number nor text: number 1: true or false"),
        ({"image_id": None, "caption": "a"}, "image_id is neither a whole number nor text: number 1: null"),
        ({"image_id": [2], "caption": "a"}, "image_id is neither a whole number nor text: number 1: a list"),
        ({"image_id": 2, "caption": 5}, "1 results whose caption is not text: picture 2: a number"),
        ({"image_id": 2, "caption": ["a"]}, "1 results whose caption is not text: picture 2: a list"),
        ({"image_id": 2, "caption": None}, "1 results whose caption is not text: picture 2: null"),
    ],
)
def test_a_result_of_the_wrong_type_is_named(files: Files, result: object, problem: str) -> None:
    with pytest.raises(BadInput) as refusal:
        files.score([DOG, result])
    assert problem in str(refusal.value)


def test_all_problems_of_both_files_come_at_once(files: Files) -> None:
    with pytest.raises(BadInput) as refusal:
        files.score([DOG, DOG, 5, {"image_id": 3, "caption": "a"}], [*ANNOTATIONS, "x", {"image_id": 1}])
    assert str(refusal.value).count("results.json: ") == 3
    assert str(refusal.value).count("references.json: ") == 3


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not JSON"),
        (b"[{", "results.json:1:3: not JSON"),
        (b'{"a": 1}', "results must be a list, not an object"),
        (b"null", "results must be a list, not null"),
        (b"\xff\xfe[]", "not UTF-8 text: byte 0 is 0xff"),
        (b"[" * 100_000, "nested too deeply"),
        (b'[{"image_id": ' + b"9" * 5_000 + b', "caption": "a"}]', "limit"),
    ],
)
def test_what_is_no_results_file_is_said(files: Files, content: bytes, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        files.score(content)


@pytest.mark.parametrize("content", [b"{}", b"5", b'"x"', b'{"annotations": {}}'])
def test_what_is_no_annotations_file_is_said(files: Files, content: bytes) -> None:
    with pytest.raises(BadInput, match="references must be COCO annotations"):
        files.score([DOG], content)


def test_a_huge_id_is_an_id_and_never_fills_the_screen(files: Files) -> None:
    huge = 10**4000
    assert files.score([{"image_id": huge, "caption": "a"}], [{"image_id": huge, "caption": "a"}])["pictures"] == 1
    with pytest.raises(BadInput) as refusal:
        files.score([DOG, CAT, {"image_id": huge, "caption": "a"}])
    assert "a number of many digits" in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_a_file_that_is_not_there_or_no_file_is_said(files: Files, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.json: no such file"):
        score_captions(tmp_path / "nowhere.json", files.references)
    with pytest.raises(BadInput, match="cannot be read"):
        score_captions(tmp_path, files.references)


def test_a_byte_order_mark_is_no_problem(files: Files) -> None:
    assert files.score(b"\xef\xbb\xbf" + json.dumps([DOG, CAT]).encode())["pictures"] == 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["image_id", "caption", "id", "annotations", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values, json_values)
def test_any_json_is_scored_or_refused_with_a_reason(
    tmp_path_factory: pytest.TempPathFactory, results: object, references: object
) -> None:
    folder = tmp_path_factory.mktemp("any")
    with suppress(BadInput):  # any other exception is a fault of ours
        assert Files(folder).score(results, references, allow_missing=True, allow_empty=True)["pictures"] > 0


@needs_coco
def test_public_results_are_scored_where_they_meet_the_annotations() -> None:
    results, references = COCO / "captions_val2014_fakecap_results.json", COCO / "captions_val2017.json"
    answer = score_captions(results, references, allow_missing=True, meteor=False)
    assert answer["pictures"] == 126
    assert answer["cider"] == pytest.approx(coco("reference_fakecap126.json")["scores"]["CIDEr"], abs=1e-6)


def test_the_order_of_the_results_is_kept(files: Files) -> None:
    files.score([CAT, DOG])
    pair = read_caption_files(files.results, files.references, tokenized=False, allow_missing=False, allow_empty=False)
    assert pair.pictures == [2, 1]
