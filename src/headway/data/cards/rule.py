"""How a card is graded: the written rule that every drawn grade follows from.

Four sub-grades from 1 to 10, and the grade is the lowest of them:

- **centring**: one grade for every full 10 points that the print is off-centre. 55 : 45 is 10 points, 60 : 40 is 20.
  The worse of the two directions counts, and the back counts half.
- **corners**: one grade for every full tenth of wear of the worst of the eight corners.
- **edges**: one grade for every full tenth of the edges that is whitened, on the worse side.
- **surface**: one grade for every scratch or print line, on both sides together.
"""

from __future__ import annotations

import math
from typing import Final

from headway.data.cards.model import GRADES, STEP, Card

CRITERIA: Final = ("centring", "corners", "edges", "surface")
BACK_CENTRING: Final = 0.5  # what the back's centring counts, relative to the front's
_ROUNDING: Final = 1e-9  # a tenth that is a hair short of one by floating point is one


def grade(card: Card) -> int:
    return min(subgrades(card).values())


def subgrades(card: Card) -> dict[str, int]:
    """By criterion, in the order above."""
    off = max(card.front.off_centre, BACK_CENTRING * card.back.off_centre)
    return {
        "centring": _after(off),
        "corners": _after(max(*card.front.corners, *card.back.corners)),
        "edges": _after(max(card.front.whitened, card.back.whitened)),
        "surface": max(GRADES[0], GRADES[-1] - len(card.front.marks) - len(card.back.marks)),
    }


def _after(damage: float) -> int:
    return max(GRADES[0], GRADES[-1] - math.floor(damage / STEP + _ROUNDING))
