"""The data model of a drawn scene, and the held-out combinations. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


# Render a scene: 64 × 64 RGB, sixteen samples per pixel, in integers, so that every machine draws the same bytes.


if TYPE_CHECKING:
    Samples = NDArray[np.int32]
    Mask = NDArray[np.bool_]

_SAMPLES: Final = 4  # per side of a pixel
_ONE: Final = 1024  # fixed point
_ROTATIONS: Final = ((1024, 0), (1018, 107), (1018, -107), (1002, 213), (1002, -213))  # cos, sin of 0, ±6, ±12 degrees
_TIPS: Final = ((0, -1024), (974, -316), (602, 828), (-602, 828), (-974, -316))  # directions of a star's points
_SIDES: Final = ((0, 1024), (887, -512), (-887, -512))  # normals of a triangle's sides


def draw(scene: Scene) -> NDArray[np.uint8]:
    """Render the picture as rows of RGB pixels."""
    picture = _background(scene.background)
    for thing in scene.things:
        _paint(picture, thing)
    return picture.astype(np.uint8)


def _paint(picture: Samples, thing: SceneObject) -> None:
    """Blend the thing in by its coverage of each pixel. Touches only the pixels it can reach."""
    left, right = _reach(thing.x, thing.radius)
    top, bottom = _reach(thing.y, thing.radius)
    inside = _SHAPES[thing.shape](
        *_turned(thing, _centres(left, right) - thing.x, _centres(top, bottom) - thing.y), thing.radius
    )
    counted = inside.reshape(bottom - top, _SAMPLES, right - left, _SAMPLES).sum(axis=(1, 3), dtype=np.int32)
    covered, full = counted[:, :, None], _SAMPLES * _SAMPLES
    patch = picture[top:bottom, left:right]
    patch[:] = (patch * (full - covered) + np.array(thing.rgb, np.int32) * covered + full // 2) // full


def _reach(centre: int, radius: int) -> tuple[int, int]:
    """Return the range of pixels that a tilted thing can cover."""
    reach = radius + radius // 4 + UNIT
    return max(0, (centre - reach) // UNIT), min(SIDE, (centre + reach) // UNIT + 1)


def _centres(first: int, stop: int) -> Samples:
    """Return the sample positions of pixels [first, stop), in units."""
    step = UNIT // _SAMPLES
    return np.arange(first * UNIT + step // 2, stop * UNIT, step, dtype=np.int32)


def _turned(thing: SceneObject, dx: Samples, dy: Samples) -> tuple[Samples, Samples]:
    cos, sin = _ROTATIONS[thing.tilt]
    x = (dx[None, :] * cos + dy[:, None] * sin) // _ONE
    y = (dy[:, None] * cos - dx[None, :] * sin) // _ONE
    return x, y


def _circle(x: Samples, y: Samples, r: int) -> Mask:
    return x * x + y * y <= r * r


def _ring(x: Samples, y: Samples, r: int) -> Mask:
    distance, inner = x * x + y * y, r * 9 // 16
    return (distance <= r * r) & (distance >= inner * inner)


def _square(x: Samples, y: Samples, r: int) -> Mask:
    half = r * 13 // 16
    return (np.abs(x) <= half) & (np.abs(y) <= half)


def _cross(x: Samples, y: Samples, r: int) -> Mask:
    arm, ax, ay = r * 5 // 16, np.abs(x), np.abs(y)
    return ((ax <= arm) & (ay <= r)) | ((ay <= arm) & (ax <= r))


def _triangle(x: Samples, y: Samples, r: int) -> Mask:
    """Inside all three sides. Drawn a little larger and lower, because it fills less of its circle than the others."""
    r = r * 9 // 8
    mask: Mask = _within(x, y - r // 8, _SIDES, r * _ONE // 2) == len(_SIDES)
    return mask


def _star(x: Samples, y: Samples, r: int) -> Mask:
    """A pentagram: the points inside at least four of its five lines."""
    r = r * 9 // 8
    mask: Mask = _within(x, y, _TIPS, r * 316) >= len(_TIPS) - 1
    return mask


def _within(x: Samples, y: Samples, normals: tuple[tuple[int, int], ...], distance: int) -> Samples:
    """Count the lines at `distance` that a sample is on the inner side of."""
    count = np.zeros(x.shape, np.int32)
    for nx, ny in normals:
        count += x * nx + y * ny <= distance
    return count


_SHAPES: Final = {
    "circle": _circle,
    "cross": _cross,
    "ring": _ring,
    "square": _square,
    "star": _star,
    "triangle": _triangle,
}


def _background(background: Background) -> Samples:
    """Draw a pale colour gradient with a little grain."""
    along = np.arange(SIDE, dtype=np.int32)
    across = along[None, :, None] * np.array(background.across, np.int32) // SIDE
    down = along[:, None, None] * np.array(background.down, np.int32) // SIDE
    pixels = np.array(background.corner, np.int32) + across + down + _grain(background.grain)
    clipped: Samples = np.clip(pixels, 0, 255)
    return clipped


def _grain(seed: int) -> Samples:
    """Return noise of -3 … 3 per pixel, equal in all channels: a hash of the position."""
    x = np.arange(SIDE * SIDE, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    grain: Samples = ((x >> np.uint64(40)) % np.uint64(7)).astype(np.int32).reshape(SIDE, SIDE, 1) - 3
    return grain
