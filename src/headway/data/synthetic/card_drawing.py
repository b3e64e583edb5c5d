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
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headway.data.loading.sampler import uniforms

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


# Render a card's two sides: print, wear and marks as functions of the position on the card, seen by a tilted camera.
#
# Edges are anti-aliased by distance, so nothing is drawn larger and scaled down. Uses only sums, products, quotients
# and comparisons, which round identically everywhere, so the pixels are the same on every machine. About 1 ms per
# side.


Plane = NDArray[np.float32]  # one number per pixel
Pixels = NDArray[np.uint8]

BORDER: Final = 0.24  # both borders of a direction together, as a share of the card
CORNER: Final = 0.16  # how far a corner with wear 1 reaches in, along both edges together
CHIPS: Final = 20  # segments of an edge that can be whitened
_DEPTH: Final = 0.028  # of a whitened edge
_LINE: Final = 0.006  # half the width of a mark
_NUMBERS: Final = 128
_FRONT, _BACK = 1, 2  # random streams

_PAPER: Final = (0.95, 0.94, 0.90)
_BORDERS: Final = ((0.85, 0.68, 0.12), (0.20, 0.30, 0.62), (0.55, 0.14, 0.16), (0.16, 0.42, 0.30), (0.32, 0.32, 0.36))
_BACK_BORDER: Final = (0.14, 0.20, 0.48)


def draw(card: Card) -> tuple[Pixels, Pixels]:
    """Render front and back, each SIDE × SIDE × RGB."""
    return _drawn(card, card.front, _FRONT), _drawn(card, card.back, _BACK)


def _drawn(card: Card, face: CardSide, which: int) -> Pixels:
    split = ("test", "train", "val").index(card.split)
    chance = uniforms(split, 0, np.array([card.index]), _NUMBERS, stream=which)[0].astype(np.float32)
    u, v, pixel = _seen(chance[:8])
    printed = _front(u, v, face, chance[8:40], pixel) if which == _FRONT else _back(u, v, face, chance[8:40], pixel)
    for mark in face.marks:
        printed = _marked(printed, u, v, mark, pixel)
    printed = _mixed(printed, _ink(_PAPER), _white(u, v, face, chance[40:120], pixel))
    table = np.float32(0.08) + np.float32(0.14) * chance[120:123]
    covered = _mixed(_ink(table), printed, _present(u, v, face, pixel))
    return _lit(covered, chance[123:128], split * 1_000_003 + card.index * 4 + which)


def _seen(chance: Plane) -> tuple[Plane, Plane, np.float32]:
    """Return the position on the card (0 … 1) that each pixel sees: slightly rotated, shifted and tilted."""
    middle = (np.arange(SIDE, dtype=np.float32) + np.float32(0.5)) / np.float32(SIDE) - np.float32(0.5)
    x, y = middle[None, :], middle[:, None]
    spread = chance - np.float32(0.5)
    scale = np.float32(1.09) + np.float32(0.04) * spread[0]
    turn = np.float32(0.05) * spread[1]
    tilt = np.float32(1) + np.float32(0.06) * spread[2] * x + np.float32(0.06) * spread[3] * y
    across = (scale * (x - turn * y) + np.float32(0.02) * spread[4]) / tilt
    down = (scale * (turn * x + y) + np.float32(0.02) * spread[5]) / tilt
    return across + np.float32(0.5), down + np.float32(0.5), scale / np.float32(SIDE)


def _cover(inside: Plane, pixel: np.float32) -> Plane:
    """Return the covered share of each pixel, from the distance of its centre to an edge (positive inside)."""
    cover: Plane = np.clip(inside / pixel + np.float32(0.5), 0, 1).astype(np.float32)
    return cover


def _ink(colour: Any) -> Plane:
    """Return a colour that broadcasts over a picture. Channels come first here, which is three times as fast."""
    return np.asarray(colour, np.float32).reshape(3, 1, 1)


def _mixed(under: Plane, over: Plane, share: Plane) -> Plane:
    mixed: Plane = under + share * (over - under)
    return mixed


def _panel(u: Plane, v: Plane, face: CardSide, pixel: np.float32) -> tuple[Plane, Plane, Plane]:
    """Return the cover of the printed area, and the position in it (0 … 1)."""
    half = BORDER / 2
    left, top = np.float32(half * (1 + face.across)), np.float32(half * (1 + face.down))
    size = np.float32(1 - BORDER)
    px, py = (u - left) / size, (v - top) / size
    inside = np.minimum(np.minimum(px, 1 - px), np.minimum(py, 1 - py)) * size
    return _cover(inside, pixel), px, py


def _front(u: Plane, v: Plane, face: CardSide, chance: Plane, pixel: np.float32) -> Plane:
    """Draw discs over a gradient, with a bar for the name."""
    border = _ink(_BORDERS[int(chance[0] * len(_BORDERS))])
    cover, px, py = _panel(u, v, face, pixel)
    one, two = np.float32(0.25) + np.float32(0.6) * chance[1:4], np.float32(0.15) + np.float32(0.6) * chance[4:7]
    art = _mixed(_ink(one), _ink(two), np.clip(py, 0, 1))
    for n in range(3):
        x, y, size, *colour = chance[7 + 6 * n : 13 + 6 * n]
        radius = np.float32(0.1) + np.float32(0.15) * size
        dx, dy = px - (np.float32(0.2) + np.float32(0.6) * x), py - (np.float32(0.25) + np.float32(0.55) * y)
        disc = (radius * radius - dx * dx - dy * dy) / (2 * radius)
        art = _mixed(art, _ink(colour) * np.float32(0.8) + np.float32(0.1), _cover(disc, pixel))
    bar = np.minimum(py - np.float32(0.05), np.float32(0.15) - py)
    art = _mixed(art, np.float32(0.9) * border + np.float32(0.05), _cover(bar, pixel))
    return _mixed(border, art, cover)


def _back(u: Plane, v: Plane, face: CardSide, chance: Plane, pixel: np.float32) -> Plane:
    """Draw the back: the same design on every card, with small variations of the ink."""
    ink = _ink(np.float32(0.9) + np.float32(0.2) * chance[:3])
    border = _ink(_BACK_BORDER) * ink
    cover, px, py = _panel(u, v, face, pixel)
    dx, dy = px - np.float32(0.5), py - np.float32(0.5)
    reach = dx * dx + np.float32(0.5) * dy * dy
    art = _ink((0.42, 0.55, 0.80)) * ink
    for limit, colour in ((0.16, (0.90, 0.72, 0.25)), (0.11, (0.62, 0.18, 0.20)), (0.03, (0.85, 0.80, 0.72))):
        art = _mixed(art, _ink(colour) * ink, _cover(np.float32(limit) - reach, pixel))
    return _mixed(border, art, cover)


def _marked(printed: Plane, u: Plane, v: Plane, mark: Mark, pixel: np.float32) -> Plane:
    """Draw a line of constant width between two points."""
    (x0, y0), (x1, y1) = mark.start, mark.end
    dx, dy = np.float32(x1 - x0), np.float32(y1 - y0)
    along = np.clip(((u - np.float32(x0)) * dx + (v - np.float32(y0)) * dy) / (dx * dx + dy * dy), 0, 1)
    gx, gy = u - np.float32(x0) - along * dx, v - np.float32(y0) - along * dy
    near = np.float32(_LINE) - np.sqrt(gx * gx + gy * gy)
    colour = _ink((0.95, 0.10, 0.75) if mark.printed else (1.0, 1.0, 1.0))
    return _mixed(printed, colour, _cover(near, pixel) * np.float32(mark.strength))


def _white(u: Plane, v: Plane, face: CardSide, chance: Plane, pixel: np.float32) -> Plane:
    """Return how much bare paper shows: in chips along the edges, and at the corners."""
    shown = np.zeros(np.broadcast_shapes(u.shape, v.shape), np.float32)
    places = ((u, v), (v, u), (1 - u, v), (1 - v, u))  # distance from each edge, and position along it
    for n, ((depth, along), share) in enumerate(zip(places, face.edges, strict=True)):
        rank = np.argsort(np.argsort(chance[n * CHIPS : (n + 1) * CHIPS], kind="stable"), kind="stable")
        place = np.clip(along, 0, np.float32(0.9999)) * np.float32(CHIPS)
        chip = place.astype(np.int64)
        bare = np.clip(np.float32(share * CHIPS) - rank[chip].astype(np.float32), 0, 1)
        wide = (place - chip) < bare
        shown = np.maximum(shown, np.where(wide, _cover(np.float32(_DEPTH) - depth, pixel), np.float32(0)))
    for near, worn in zip(_corner_distances(u, v), face.corners, strict=True):
        shown = np.maximum(shown, _cover(np.float32(CORNER * worn) - near, pixel))
    return shown


def _present(u: Plane, v: Plane, face: CardSide, pixel: np.float32) -> Plane:
    """Return the cover of the card itself: within its edges, and without the outer half of worn corners."""
    there = _cover(np.minimum(np.minimum(u, 1 - u), np.minimum(v, 1 - v)), pixel)
    for near, worn in zip(_corner_distances(u, v), face.corners, strict=True):
        there = np.minimum(there, _cover(near - np.float32(CORNER * worn / 2), pixel))
    return there


def _corner_distances(u: Plane, v: Plane) -> tuple[Plane, Plane, Plane, Plane]:
    return u + v, (1 - u) + v, u + (1 - v), (1 - u) + (1 - v)


def _lit(colours: Plane, chance: Plane, grain: int) -> Pixels:
    """Apply a light source and camera noise."""
    middle = np.arange(SIDE, dtype=np.float32) / np.float32(SIDE) - np.float32(0.5)
    slope = np.float32(0.4) * (chance[1:3] - np.float32(0.5))
    light = np.float32(0.8) + np.float32(0.3) * chance[0] + slope[0] * middle[None, :] + slope[1] * middle[:, None]
    noise = uniforms(grain, 0, np.arange(SIDE), SIDE).astype(np.float32) - np.float32(0.5)
    bright = colours * (light * np.float32(255)) + (np.float32(8) * noise + np.float32(0.5))
    return np.ascontiguousarray(np.clip(bright, 0, 255).astype(np.uint8).transpose(1, 2, 0))
