"""Predictions and labels from tables: paired by id or order, and refused with all that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.core.errors import BadInput
from headway.metrics import ordinal
from headway.metrics.files import score_classification, score_ordinal


class Tables:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path


@pytest.fixture
def table(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def test_one_table_with_labels_and_predictions_is_enough(table: Tables) -> None:
    path = table("grades.csv", "id,label,prediction\na,1,1\nb,2,3\nc,3,3\n")
    assert score_ordinal(path) == ordinal.score([1, 2, 3], [1, 3, 3])


@pytest.mark.parametrize(
    "text",
    [
        '[{"label": 1, "prediction": 1}, {"label": 2, "prediction": 3}, {"label": 3, "prediction": 3}]',
        '{"label": 1, "prediction": 1}\n{"label": 2, "prediction": 3}\n\n{"label": 3, "prediction": 3.0}\n',
        "\ufefftarget,pred\r\n1,1\r\n2,3\r\n3,3\r\n",
    ],
)
def test_json_lines_and_other_names_will_do(table: Tables, text: str) -> None:
    assert score_ordinal(table("grades", text))["qwk"] == ordinal.score([1, 2, 3], [1, 3, 3])["qwk"]


def test_two_tables_are_paired_by_id_in_any_order(table: Tables) -> None:
    guesses = table("guesses.csv", "file,prediction\nc.jpg,3\na.jpg,1\nb.jpg,3\n")
    truth = table("truth.csv", "file,grade,extra\na.jpg,1,x\nb.jpg,2,x\nc.jpg,3,x\n")
    assert score_ordinal(guesses, truth)["confusion"] == ordinal.score([1, 2, 3], [1, 3, 3])["confusion"]


def test_two_tables_without_ids_are_paired_by_order(table: Tables) -> None:
    guesses, truth = table("guesses.csv", "grade\n1\n3\n3\n"), table("truth.csv", "grade\n1\n2\n3\n")
    assert score_ordinal(guesses, truth)["mae"] == pytest.approx(1 / 3)


def test_samples_in_one_table_only_are_named_and_counted(table: Tables) -> None:
    guesses = table("guesses.csv", "id,prediction\na,1\nb,2\nx,1\n")
    truth = table("truth.csv", "id,label\na,1\nb,2\ny,1\nz,1\n")
    with pytest.raises(BadInput) as refusal:
        score_ordinal(guesses, truth)
    assert "guesses.csv: 1 predictions without a label: x" in str(refusal.value)
    assert "truth.csv: 2 labels without a prediction: y, z" in str(refusal.value)
    answer = score_ordinal(guesses, truth, allow_missing=True)
    assert answer["samples"] == 2
    assert len(answer["notes"]) == 2


def test_probabilities_bring_calibration(table: Tables) -> None:
    path = table("grades.csv", "label,prediction,p_1,p_2,p_10\n1,1,.8,.1,.1\n2,2,.2,.7,.1\n")
    with pytest.raises(BadInput, match="consecutive"):
        score_ordinal(path)
    path = table("grades.csv", "label,prediction,p_3,p_1,p_2\n1,1,.1,.8,.1\n2,2,.1,.2,.7\n")
    assert score_ordinal(path)["ece"] == pytest.approx(0.25)
    rows = [{"label": 3, "prediction": 3, "probabilities": [0.1, 0.1, 0.8]}]
    assert score_ordinal(table("grades.json", json.dumps(rows)))["emd2"] == pytest.approx(0.01 + 0.04)


def test_classes_are_whatever_names_there_are(table: Tables) -> None:
    answer = score_classification(table("leaves.csv", "label,prediction\nscab,scab\nrust,scab\n10,10\n9,9\n"))
    assert answer["accuracy"] == 0.75
    assert answer["confusion"]["classes"] == ["9", "10", "rust", "scab"]


def test_classes_with_probabilities_are_their_columns(table: Tables) -> None:
    path = table("leaves.csv", "label,prediction,p_0,p_1,p_2\n0,0,.8,.1,.1\n1,2,.1,.4,.5\n")
    assert score_classification(path, top=(2,))["top_2"] == 1.0
    with pytest.raises(BadInput, match="class 7 has no probability"):
        score_classification(table("leaves.csv", "label,prediction,p_0,p_1\n0,7,.5,.5\n"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty"),
        ("label,prediction\n", "no samples to score"),
        ("label,prediction\n1\n", "1 rows without exactly 2 columns: row 2 has 1"),
        ("label,label\n1,1\n", "two columns have the same name"),
        ("grade\n1\n", "no column has the predicted class"),
        ("x,prediction\n1,1\n", "no column has the true class: the columns are x, prediction"),
        ("label,prediction\n1,\n,2\n", "rows without a usable prediction: row 1"),
        ("label,prediction\none,1\n", "1 labels that are not whole numbers: row 1: one"),
        ("label,prediction\n1,1.5\n", "1 predictions that are not whole numbers: row 1: 1.5"),
        ("label,prediction\n1,1e400\n", "not whole numbers: row 1: 1e400"),
        ("label,prediction\n1,99999999999999999999\n", "not whole numbers"),
        ('label,prediction\n1,"1\n', "not CSV"),
        ('{"label": 1}\n[1]\n', "rows that are not objects: number 1 is a list"),
        ('[{"label": 1, "prediction": true}]', "usable prediction"),
        ('[{"label": 1, "prediction": [1]}]', "usable prediction"),
        ("[1]", "rows that are not objects"),
        ('{"label": 1', "not JSON"),
        ("label,prediction,p_0,p_1\n1,1,x,1\n", "probabilities are not numbers: row 1"),
        (
            '[{"label":0,"prediction":0,"probabilities":[1,0]},{"label":0,"prediction":0,"probabilities":[1]}]',
            "1 rows without 2 probabilities like the first: row 2",
        ),
        ('[{"label":0,"prediction":0,"probabilities":[1,0]},{"label":0,"prediction":0}]', "like the first: row 2"),
    ],
)
def test_a_table_that_cannot_be_scored_says_why(table: Tables, text: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem.replace("[", r"\[")):
        score_ordinal(table("grades.txt", text))


def test_ids_used_twice_are_named(table: Tables) -> None:
    guesses, truth = table("guesses.csv", "id,prediction\na,1\na,2\n"), table("truth.csv", "id,label\na,1\n")
    with pytest.raises(BadInput, match="1 rows whose id was used before: a"):
        score_ordinal(guesses, truth)


def test_tables_of_different_length_without_ids_are_refused(table: Tables) -> None:
    guesses, truth = table("guesses.csv", "prediction\n1\n2\n"), table("truth.csv", "label\n1\n")
    with pytest.raises(BadInput, match=r"2 predictions in .*guesses\.csv, but 1 labels"):
        score_ordinal(guesses, truth)
