"""The data model of a drawn card, and the rule that determines its grade.

There are four sub-grades from 1 to 10, and the grade is the lowest of them:

- **centring**: one grade for every full 10 points that the print is off-centre. 55 : 45 is 10 points, 60 : 40 is 20.
  The worse of the two directions counts, and the back counts half.
- **corners**: one grade for every full tenth of wear of the worst of the eight corners.
- **edges**: one grade for every full tenth of the edges that is whitened, on the worse side.
- **surface**: one grade for every scratch or print line, on both sides together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

# Data model: the damage on each side of a card. No pixels here.


SIDE: Final = 128  # picture width and height, in pixels
GRADES: Final = tuple(range(1, 11))
STEP: Final = 0.1  # the amount of any kind of damage that costs one grade

Four = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Mark:
    """A scratch or print line between two points, in card units (0 … 1)."""

    start: tuple[float, float]
    end: tuple[float, float]
    printed: bool  # a print line runs straight across and is coloured; a scratch is short and bright
    strength: float  # visibility, 0 … 1


@dataclass(frozen=True, slots=True)
class CardSide:
    """One side of a card."""

    across: float  # off-centre print: (left border − right border) / (both), -1 … 1
    down: float  # the same from top to bottom
    corners: Four  # wear per corner, 0 … 1
    edges: Four  # whitened share per edge, 0 … 1
    marks: tuple[Mark, ...]

    @property
    def off_centre(self) -> float:
        return max(abs(self.across), abs(self.down))

    @property
    def whitened(self) -> float:
        """Return the whitened share of all four edges."""
        return sum(self.edges) / 4


@dataclass(frozen=True, slots=True)
class Card:
    """Front and back. Split and index seed everything else that is drawn: art, light, camera."""

    split: str
    index: int
    front: CardSide
    back: CardSide


CRITERIA: Final = ("centring", "corners", "edges", "surface")
BACK_CENTRING: Final = 0.5  # weight of the back's centring, relative to the front's
_ROUNDING: Final = 1e-9  # tolerance, so that a tenth just short by floating-point error counts as one


def grade_of(card: Card) -> int:
    return min(subgrades(card).values())


def subgrades(card: Card) -> dict[str, int]:
    """Return the sub-grades by criterion, in the order of CRITERIA."""
    off = max(card.front.off_centre, BACK_CENTRING * card.back.off_centre)
    return {
        "centring": _after(off),
        "corners": _after(max(*card.front.corners, *card.back.corners)),
        "edges": _after(max(card.front.whitened, card.back.whitened)),
        "surface": max(GRADES[0], GRADES[-1] - len(card.front.marks) - len(card.back.marks)),
    }


def _after(damage: float) -> int:
    return max(GRADES[0], GRADES[-1] - math.floor(damage / STEP + _ROUNDING))
