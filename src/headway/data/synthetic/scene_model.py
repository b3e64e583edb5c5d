"""The data model of a drawn scene, and the held-out combinations. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SIDE: Final = 64  # pixels
UNIT: Final = 8  # lengths are integers, in eighths of a pixel
REFERENCES: Final = 5  # captions per picture

SHAPES: Final = ("circle", "cross", "ring", "square", "star", "triangle")
COLOURS: Final = ("red", "orange", "yellow", "green", "blue", "purple")
KINDS: Final = ("one", "several", "pair", "two_and_one")
SIZES: Final = ("small", "large")
COUNTS: Final = ("one", "two", "three")
ROWS: Final = ("top", "middle", "bottom")
COLUMNS: Final = ("left", "middle", "right")

# Never in train or val. Each colour and each shape lacks exactly one partner, so none is seen less than the others.
HELD_OUT_PAIRS: Final = frozenset(
    {
        ("red", "star"),
        ("orange", "circle"),
        ("yellow", "cross"),
        ("green", "ring"),
        ("blue", "triangle"),
        ("purple", "square"),
    }
)
HELD_OUT_COUNTS: Final = frozenset({("two", "orange"), ("three", "green")})


@dataclass(frozen=True, slots=True)
class SceneObject:
    """One shape in a picture. Captions refer to its cell of the 3 × 3 grid; x and y vary within it."""

    shape: str
    colour: str
    size: str
    row: int
    column: int
    x: int  # of the centre, in units
    y: int
    radius: int
    tilt: int  # index into _ROTATIONS
    rgb: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Background:
    corner: tuple[int, int, int]  # colour at the top left
    across: tuple[int, int, int]  # change from left to right
    down: tuple[int, int, int]  # change from top to bottom
    grain: int  # seed of the noise


@dataclass(frozen=True, slots=True)
class Scene:
    """The contents of a picture. The first `group` of `things` are equal."""

    split: str
    index: int
    things: tuple[SceneObject, ...]
    group: int
    background: Background

    @property
    def kind(self) -> str:
        """Return `one` thing, `several` equal ones, a `pair` of different ones, or `two_and_one`."""
        if len(self.things) == self.group:
            return "one" if self.group == 1 else "several"
        return "pair" if self.group == 1 else "two_and_one"

    @property
    def combinations(self) -> frozenset[tuple[str, str]]:
        """Return the (colour, shape) and (count, colour) pairs needed to describe this scene."""
        pairs = {(thing.colour, thing.shape) for thing in self.things}
        return frozenset(pairs | {(COUNTS[self.group - 1], self.things[0].colour)})

    @property
    def held_out(self) -> frozenset[tuple[str, str]]:
        """Return the combinations that are absent from training; empty for every scene of `train` and `val`."""
        return self.combinations & (HELD_OUT_PAIRS | HELD_OUT_COUNTS)
