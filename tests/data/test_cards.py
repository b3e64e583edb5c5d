"""Drawn cards: the same everywhere, graded by the written rule, and every cause leaves its trace in the pixels."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.dataset.rows import Rows
from headway.data.prepare.pipeline import prepare
from headway.data.synthetic import cards

SPOTLESS = cards.CardSide(0.0, 0.0, (0.0,) * 4, (0.0,) * 4, ())
CLEAN = cards.Card("train", 3, SPOTLESS, SPOTLESS)


def test_a_card_without_damage_is_a_ten() -> None:
    assert cards.subgrades(CLEAN) == {"centring": 10, "corners": 10, "edges": 10, "surface": 10}
    assert cards.grade_of(CLEAN) == 10


@pytest.mark.parametrize(
    ("change", "criterion", "graded"),
    [
        ({"across": 0.1}, "centring", 9),  # 55 : 45
        ({"down": -0.35}, "centring", 7),
        ({"corners": (0.0, 0.2, 0.05, 0.0)}, "corners", 8),
        ({"edges": (0.8, 0.4, 0.0, 0.0)}, "edges", 7),  # three tenths of all four
        ({"marks": (cards.Mark((0.2, 0.2), (0.5, 0.5), False, 1.0),) * 4}, "surface", 6),
    ],
)
def test_each_kind_of_damage_costs_what_the_rule_says(change: dict[str, object], criterion: str, graded: int) -> None:
    hurt = replace(CLEAN, front=replace(SPOTLESS, **change))
    assert cards.subgrades(hurt)[criterion] == graded
    assert cards.grade_of(hurt) == graded


def test_the_backs_centring_counts_half() -> None:
    assert cards.grade_of(replace(CLEAN, back=replace(SPOTLESS, across=0.35))) == 9


def test_the_lowest_of_the_four_decides() -> None:
    hurt = replace(CLEAN, front=replace(SPOTLESS, across=0.25, corners=(0.6, 0, 0, 0)))
    assert cards.grade_of(hurt) == cards.subgrades(hurt)["corners"] == 4


@given(st.integers(0, 10**6), st.sampled_from(cards.SPLITS), st.integers(1, 10))
def test_a_card_asked_for_by_grade_has_it_by_the_rule(index: int, split: str, wanted: int) -> None:
    shares = [float(grade == wanted) for grade in cards.GRADES]
    card = cards.compose(split, index, shares)
    assert cards.grade_of(card) == wanted
    for face in (card.front, card.back):
        assert abs(face.across) < 1
        assert abs(face.down) < 1
        assert all(0 <= share <= 1 for share in (*face.edges, *face.corners))


def test_every_criterion_decides_about_as_often() -> None:
    decides: Counter[str] = Counter()
    for index in range(600):
        levels = cards.subgrades(cards.compose("train", index))
        lowest = [name for name, level in levels.items() if level == min(levels.values())]
        decides.update(lowest if len(lowest) == 1 else [])
    assert min(decides[name] for name in cards.CRITERIA) > 0.6 * max(decides.values())


def test_grades_are_even_unless_the_real_imbalance_is_asked_for() -> None:
    even = Counter(cards.grade_of(cards.compose("val", index)) for index in range(1000))
    skewed = Counter(cards.grade_of(cards.compose("val", index, cards.SKEWED)) for index in range(1000))
    assert min(even.values()) > 70
    assert skewed[9] == pytest.approx(1000 * 2211 / 6824, rel=0.2)
    assert skewed[2] < 15


def test_the_pixels_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256()
    for index in range(6):
        for side in cards.draw(cards.compose("test", index)):
            assert side.shape == (cards.SIDE, cards.SIDE, 3)
            digest.update(side.tobytes())
    assert digest.hexdigest()[:16] == "969b488dea8f5cf2"


def test_splits_share_no_card() -> None:
    drawn = {cards.draw(cards.compose(split, index))[0].tobytes() for split in cards.SPLITS for index in range(5)}
    assert len(drawn) == 15


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"corners": (1.0, 0.0, 0.0, 0.0)}, (slice(0, 30), slice(0, 30))),
        ({"edges": (1.0, 0.0, 0.0, 0.0)}, (slice(0, 128), slice(0, 14))),
        ({"across": 0.5}, (slice(40, 90), slice(10, 30))),
        ({"marks": (cards.Mark((0.4, 0.5), (0.6, 0.5), False, 1.0),)}, (slice(60, 68), slice(50, 78))),
    ],
)
def test_damage_shows_where_it_is_and_nowhere_else(change: dict[str, object], where: tuple[slice, slice]) -> None:
    clean, _ = cards.draw(CLEAN)
    hurt, back = cards.draw(replace(CLEAN, front=replace(SPOTLESS, **change)))
    differs = (clean != hurt).any(axis=2)
    assert differs[where].sum() > 10
    assert np.array_equal(back, cards.draw(CLEAN)[1])
    if "across" not in change:
        differs[where] = False
        assert not differs.any()


def test_worse_damage_changes_more_pixels() -> None:
    clean, _ = cards.draw(CLEAN)
    changed = [
        int((clean != cards.draw(replace(CLEAN, front=replace(SPOTLESS, edges=(e,) * 4)))[0]).any(axis=2).sum())
        for e in (0.1, 0.4, 0.7, 1.0)
    ]
    assert changed == sorted(changed)
    assert changed[-1] > 5 * changed[0]


def test_written_pairs_can_be_prepared(tmp_path: Path) -> None:
    told = cards.write_pairs(tmp_path / "cards", {"train": 6, "val": 2, "test": 2})
    assert json.loads((tmp_path / "cards" / "splits.json").read_text()) == told
    prepare(str(tmp_path / "cards"), str(tmp_path / "shards"), size=128, encoding="raw", workers=1)
    rows = Rows(str(tmp_path / "shards"), "train")
    assert {column.name for column in rows.columns} >= {"front", "back", "label"}
    front, back = cards.draw(cards.compose("train", 0))
    assert np.array_equal(rows.cell("front", 0), front)
    assert np.array_equal(rows.cell("back", 0), back)
