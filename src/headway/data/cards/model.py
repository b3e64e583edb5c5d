"""A drawn card's nouns: what is wrong with it, on each of its two sides. No pixels here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SIDE: Final = 128  # pixels of a picture, both ways
GRADES: Final = tuple(range(1, 11))
STEP: Final = 0.1  # of any kind of damage: as much as costs one grade

Four = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Mark:
    """A scratch, or a print line, from one point of the print to another, in card units (0 … 1)."""

    start: tuple[float, float]
    end: tuple[float, float]
    printed: bool  # a print line runs straight across and is coloured; a scratch is short and bright
    strength: float  # how much it stands out, 0 … 1


@dataclass(frozen=True, slots=True)
class Face:
    """One side of a card."""

    across: float  # how far the print is off-centre: (left border − right border) / (both), -1 … 1
    down: float  # the same from top to bottom
    corners: Four  # wear of each corner, 0 … 1
    edges: Four  # share of each edge that is whitened, 0 … 1
    marks: tuple[Mark, ...]

    @property
    def off_centre(self) -> float:
        return max(abs(self.across), abs(self.down))

    @property
    def whitened(self) -> float:
        """Share of all four edges."""
        return sum(self.edges) / 4


@dataclass(frozen=True, slots=True)
class Card:
    """Front and back, and the numbers that everything without a name is drawn from: art, light, camera."""

    split: str
    index: int
    front: Face
    back: Face
