"""Drawn cards: a generated data set of graded picture pairs. Needs numpy; about 2 ms per card.

A card is a pure function of (split, index). Its grade follows from its damage by a fixed rule (`card_drawing`), so how
far the print is off-centre and how much of the edges is whitened are known exactly, as training targets.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headway.data.loading.sampler import uniforms
from headway.data.synthetic.card_drawing import (
    BACK_CENTRING,
    CRITERIA,
    GRADES,
    SIDE,
    STEP,
    Card,
    CardSide,
    Four,
    Mark,
    draw,
    grade_of,
    subgrades,
)

# Damage of card number `index` of a split, drawn so that every grade has every cause. Pure arithmetic.


GENERATION: Final = 1  # increment when the same index gives another card
SPLITS: Final = ("test", "train", "val")

EVEN: Final = tuple(1 for _ in GRADES)
# Distribution of 6,824 real graded cards over the grades 1 … 10: two of three have a grade of 8 or better.
SKEWED: Final = (87, 23, 32, 176, 294, 547, 889, 1582, 2211, 983)

_NUMBERS: Final = 128  # random numbers per card
_MARGIN: Final = 0.15  # share of a grade's range kept free at both ends: no card is on the border between two grades
_ALIKE: Final = 0.3  # probability that a criterion that does not decide the grade is as bad as the one that does


def compose(split: str, index: int, shares: Sequence[float] = EVEN) -> Card:
    """Compose card `index` of a split. `shares` are the relative frequencies of the grades 1 to 10."""
    draw = _Draws(uniforms(SPLITS.index(split), GENERATION, np.array([index]), _NUMBERS)[0])
    wanted = _grade(draw, shares)
    levels = _levels(draw, wanted)
    centring, corners, edges, marks = (levels[name] for name in CRITERIA)
    front_marks, back_marks = _marks(draw, GRADES[-1] - marks)
    front_off, back_off = _off_centre(draw, centring)
    front_worn, back_worn = _worn(draw, corners)
    front_white, back_white = _whitened(draw, edges)
    return Card(
        split=split,
        index=index,
        front=CardSide(*front_off, front_worn, front_white, front_marks),
        back=CardSide(*back_off, back_worn, back_white, back_marks),
    )


class _Draws:
    """A sequence of numbers in [0, 1)."""

    def __init__(self, numbers: NDArray[np.float64]) -> None:
        self._left = iter(numbers.tolist())

    def __call__(self, low: float = 0.0, high: float = 1.0) -> float:
        return float(low + (high - low) * next(self._left))

    def below(self, count: int) -> int:
        return int(count * next(self._left))


def _grade(draw: _Draws, shares: Sequence[float]) -> int:
    at = draw() * sum(shares)
    for grade, share in zip(GRADES, shares, strict=True):
        at -= share
        if at < 0:
            return grade
    return GRADES[-1]


def _levels(draw: _Draws, wanted: int) -> dict[str, int]:
    """Draw a sub-grade per criterion: one is the wanted grade, the others are as good or better."""
    decides = draw.below(len(CRITERIA))
    levels = {}
    for number, name in enumerate(CRITERIA):
        alike, better = draw() < _ALIKE, wanted + draw.below(GRADES[-1] - wanted + 1)
        levels[name] = wanted if number == decides or alike else better
    return levels


def _damage(draw: _Draws, level: int) -> float:
    """Draw damage inside the range that gives this sub-grade."""
    return STEP * (GRADES[-1] - level + draw(_MARGIN, 1 - _MARGIN))


def _off_centre(draw: _Draws, level: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Draw the centring. One direction of the front or the back decides the sub-grade; nothing else is worse."""
    most = _damage(draw, level)
    worst = [0.3 * most + 0.7 * most * draw() for _ in range(4)]
    worst[draw.below(4)] = most
    limits = (1.0, 1.0, 1 / BACK_CENTRING, 1 / BACK_CENTRING)
    signed = [(1 if draw() < 0.5 else -1) * min(0.96, w * limit) for w, limit in zip(worst, limits, strict=True)]
    if max(map(abs, signed[:2])) < most and max(map(abs, signed[2:])) * BACK_CENTRING < most:
        signed[0] = most if signed[0] > 0 else -most  # the back cannot be that far off-centre: let the front decide
    return (signed[0], signed[1]), (signed[2], signed[3])


def _worn(draw: _Draws, level: int) -> tuple[Four, Four]:
    most = _damage(draw, level)
    worn = [most * draw(0.4, 1.0) for _ in range(8)]
    worn[draw.below(8)] = most
    return (worn[0], worn[1], worn[2], worn[3]), (worn[4], worn[5], worn[6], worn[7])


def _whitened(draw: _Draws, level: int) -> tuple[Four, Four]:
    """Draw edge damage: one side has all of it, the other a share, uneven over the four edges with a fixed mean."""
    most = _damage(draw, level)
    other = most * draw(0.3, 1.0)
    front, back = (most, other) if draw() < 0.5 else (other, most)
    return _uneven(draw, front), _uneven(draw, back)


def _uneven(draw: _Draws, mean: float) -> Four:
    room = min(mean, 1 - mean) * 0.8
    one, two = room * draw(-1.0, 1.0), room * draw(-1.0, 1.0)
    return (mean + one, mean + two, mean - one, mean - two)


def _marks(draw: _Draws, count: int) -> tuple[tuple[Mark, ...], tuple[Mark, ...]]:
    made = [(draw() < 0.5, _mark(draw)) for _ in range(count)]
    front = tuple(mark for on_front, mark in made if on_front)
    return front, tuple(mark for on_front, mark in made if not on_front)


def _mark(draw: _Draws) -> Mark:
    x, y, strength = draw(0.2, 0.8), draw(0.2, 0.8), draw(0.7, 1.0)
    if draw() < 0.3:
        upright = draw() < 0.5
        ends = ((x, 0.12), (x, 0.88)) if upright else ((0.12, y), (0.88, y))
        return Mark(*ends, printed=True, strength=strength)
    dx, dy = draw(-0.3, 0.3), draw(-0.3, 0.3)
    if abs(dx) + abs(dy) < 0.2:
        dx, dy = dx + 0.2, dy + 0.1
    start = (min(max(x - dx / 2, 0.1), 0.9), min(max(y - dy / 2, 0.1), 0.9))
    end = (min(max(x + dx / 2, 0.1), 0.9), min(max(y + dy / 2, 0.1), 0.9))
    return Mark(start, end, printed=False, strength=strength)


__all__ = [
    "CRITERIA",
    "EVEN",
    "GENERATION",
    "GRADES",
    "SIDE",
    "SKEWED",
    "SPLITS",
    "Card",
    "CardSide",
    "Mark",
    "compose",
    "draw",
    "grade_of",
    "subgrades",
    "write_pairs",
]


def write_pairs(
    folder: str | Path, counts: dict[str, int] | None = None, *, shares: Sequence[float] = EVEN
) -> dict[str, list[dict[str, Any]]]:
    """Write PNG files and the `splits.json` that `headway data prepare` reads. Returns the contents of the latter."""
    from PIL import Image

    folder = Path(folder)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    splits: dict[str, list[dict[str, Any]]] = {}
    for split, count in (counts or {"train": 80, "val": 10, "test": 10}).items():
        splits[split] = []
        for index in range(count):
            card = compose(split, index, shares)
            entry: dict[str, Any] = {"cert_id": f"{split}-{index:05d}", "grade": grade_of(card)}
            for name, pixels in zip(("front", "back"), draw(card), strict=True):
                entry[name] = f"pictures/{entry['cert_id']}-{name}.png"
                Image.fromarray(pixels).save(folder / entry[name])
            sides = {"front": card.front, "back": card.back}
            entry["edge"] = {name: face.whitened for name, face in sides.items()}
            entry["center"] = {name: [abs(face.across), abs(face.down)] for name, face in sides.items()}
            splits[split].append(entry)
    (folder / "splits.json").write_text(json.dumps(splits, indent=1) + "\n", encoding="utf-8")
    return splits


# `python -m headway.data.synthetic.cards FOLDER --count N`: write drawn cards as PNG files, with splits.json.


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m headway.data.synthetic.cards", description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=100, help="total number; 80 %% are for training (default: 100)")
    parser.add_argument("--skewed", action="store_true", help="few low grades and many high ones, as in reality")
    args = parser.parse_args()
    tenth = max(1, args.count // 10)
    counts = {"train": max(1, args.count - 2 * tenth), "val": tenth, "test": tenth}
    write_pairs(args.folder, counts, shares=SKEWED if args.skewed else EVEN)
    sys.stdout.write(f"{args.folder}/splits.json\n")


if __name__ == "__main__":
    main()
