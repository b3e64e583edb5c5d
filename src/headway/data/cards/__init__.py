"""Drawn cards: graded pairs of pictures that are made, not downloaded. Needs numpy; about 2 ms a card.

A card is a pure function of (split, index). Its grade follows from its damage by a written rule (`rule`), so how far
the print is off-centre and how much of the edges is white are known exactly, and can be learnt from.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.data.cards.compose import EVEN, GENERATION, SKEWED, SPLITS, compose
from headway.data.cards.model import GRADES, SIDE, Card, Face, Mark
from headway.data.cards.pixels import draw
from headway.data.cards.rule import CRITERIA, grade, subgrades

__all__ = [
    "CRITERIA",
    "EVEN",
    "GENERATION",
    "GRADES",
    "SIDE",
    "SKEWED",
    "SPLITS",
    "Card",
    "Face",
    "Mark",
    "compose",
    "draw",
    "grade",
    "subgrades",
    "write_pairs",
]


def write_pairs(
    folder: str | Path, counts: dict[str, int] | None = None, *, shares: Sequence[float] = EVEN
) -> dict[str, list[dict[str, Any]]]:
    """PNG files and the `splits.json` that `headway data prepare` reads; returns what is in the latter."""
    from PIL import Image

    folder = Path(folder)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    splits: dict[str, list[dict[str, Any]]] = {}
    for split, count in (counts or {"train": 80, "val": 10, "test": 10}).items():
        splits[split] = []
        for index in range(count):
            card = compose(split, index, shares)
            entry: dict[str, Any] = {"cert_id": f"{split}-{index:05d}", "grade": grade(card)}
            for name, pixels in zip(("front", "back"), draw(card), strict=True):
                entry[name] = f"pictures/{entry['cert_id']}-{name}.png"
                Image.fromarray(pixels).save(folder / entry[name])
            sides = {"front": card.front, "back": card.back}
            entry["edge"] = {name: face.whitened for name, face in sides.items()}
            entry["center"] = {name: [abs(face.across), abs(face.down)] for name, face in sides.items()}
            splits[split].append(entry)
    (folder / "splits.json").write_text(json.dumps(splits, indent=1) + "\n", encoding="utf-8")
    return splits
