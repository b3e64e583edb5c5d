"""Speed is claimed from benchmarks alone: each is recorded, and names the limit that it is measured against."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from benchmarks.page import slower

ROOT = Path(__file__).resolve().parents[2]
HELPERS = {"__init__", "__main__", "harness", "page"}
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in HELPERS)
# What is no speed of ours: what a kill leaves, torch against ONNX Runtime, a cost against itself at another size,
# differences of weights, seconds at a size that nobody has.
NO_SPEED = {"durability", "engines", "growth", "resume_exactness", "scale"}
KEPT = json.loads((ROOT / "docs" / "benchmarks.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_says_what_it_compares_and_is_recorded_with_date_and_machine(name: str) -> None:
    doc = ast.get_docstring(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text()))
    assert doc, "it does not say what it measures"
    assert name in KEPT, f"never recorded: on idle cores, python -m benchmarks --record {name}"
    assert re.match(r"20\d\d-\d\d-\d\d", KEPT[name]["date"])
    assert "Python" in KEPT[name]["machine"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_SPEED])
def test_every_speed_of_ours_stands_beside_its_limit(name: str) -> None:
    ours = [note for note in KEPT[name]["notes"] if "headway" in note["name"].lower()]
    assert any(note["floor"] and note["limit"] for note in ours), "no note of ours names its limit"


def test_what_was_removed_is_not_recorded_either() -> None:
    assert set(KEPT) <= set(NAMES)


def test_where_a_rival_is_faster_the_page_says_so_first() -> None:
    notes = [
        {"group": "write", "name": "Headway", "value": 40.0, "unit": "ms"},
        {"group": "write", "name": "boto3", "value": 20.0, "unit": "ms"},
        {"group": "write", "name": "plain HTTP (the limit)", "value": 1.0, "unit": "ms"},
        {"group": "read", "name": "Headway, 1", "value": 99.0, "unit": "rows/s"},
        {"group": "read", "name": "DDP, 1", "value": 100.0, "unit": "rows/s"},  # noise
        {"group": "read", "name": "DDP, 2", "value": 200.0, "unit": "rows/s"},
        {"group": "read", "name": "Headway, 2", "value": 100.0, "unit": "rows/s"},
    ]
    assert slower(notes) == [("write", "Headway", "boto3", 2.0), ("read", "Headway, 2", "DDP, 2", 2.0)]
    page = (
        (ROOT / "docs" / "benchmarks.md").read_text().partition("## Where Headway is slower\n")[2].partition("## ")[0]
    )
    for name, one in KEPT.items():
        for group, *_ in slower(one["notes"]):
            assert f"- {name}, {group}: " in page


def test_the_page_shows_all_that_was_recorded_and_says_where_a_promise_was_broken() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for name, one in KEPT.items():
        assert f"## {name}\n" in page
        assert one["said"] in page, f"the page is not that of benchmarks.json: {name}"
        assert one["broken"] == bool(re.search("broken|NOT kept", one["said"])), name
