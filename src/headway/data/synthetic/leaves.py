"""Drawn leaves: a generated data set of four plants, healthy or with one of three diseases (sixteen classes).

Outlines, veins and spots are polynomials, so that every machine draws the same bytes. About 1 ms per picture, any
number of them, free of third-party rights. Background, light and rotation are independent of the class.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from headway.data.loading.sampler import uniforms

SPLITS: Final = ("train", "val", "test")
PLANTS: Final = ("Aster", "Birch", "Linden", "Willow")
STATES: Final = ("healthy", "leaf_blight", "leaf_spot", "powdery_mildew")
CLASSES: Final = tuple(f"{plant}___{state}" for plant in PLANTS for state in STATES)
SIDE: Final = 64
_FINE: Final = 2 * SIDE  # drawn at this size, then averaged down
_DRAWS: Final = 64

Plane = NDArray[np.float64]


def label(split: str, index: int) -> int:
    """Return the class of a picture: every class equally often, in a fixed order."""
    return (index + SPLITS.index(split)) % len(CLASSES)


def draw(split: str, index: int) -> NDArray[np.uint8]:
    """Draw a leaf of the class given by `label`: SIDE × SIDE × 3."""
    luck = uniforms(SPLITS.index(split), 0, np.array([index]), _DRAWS, stream=21)[0]
    plant, state = divmod(label(split, index), len(STATES))
    along, across = _axes(luck)
    width = _half_width(plant, along, 0.8 + 0.4 * luck[4])
    inside = (np.abs(across) < width) & (np.abs(along) < 1)
    picture = _background(luck)
    leaf = _leaf(luck, plant, along, across)
    _ILL[STATES[state]](leaf, luck, along, across, width)
    picture[inside] = leaf[inside]
    fine = picture.reshape(SIDE, 2, SIDE, 2, 3).mean(axis=(1, 3))
    bright = fine * (0.8 + 0.4 * luck[5])
    return np.asarray(np.clip(bright, 0, 255), dtype=np.uint8)


def _axes(luck: Plane) -> tuple[Plane, Plane]:
    """Return each pixel in leaf coordinates: along it from -1 (stem) to 1 (tip), and across."""
    t = 2.4 * (luck[0] - 0.5)
    cos, sin = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)  # a rotation without trigonometric functions
    reach = 0.75 + 0.2 * luck[1]
    places = (np.arange(_FINE) + 0.5) / _FINE * 2 - 1
    x, y = np.meshgrid(places - 0.2 * (luck[2] - 0.5), places - 0.2 * (luck[3] - 0.5))
    return (x * cos + y * sin) / reach, (y * cos - x * sin) / reach


def _half_width(plant: int, along: Plane, stretch: float) -> Plane:
    u = np.clip(along, -1, 1)
    lens = 1 - u * u
    if PLANTS[plant] == "Aster":  # lobed
        width = 0.5 * lens * (0.7 + 0.6 * _wave(2.5 * u))
    elif PLANTS[plant] == "Birch":  # broad at the stem
        width = 0.55 * (1 - u) * np.sqrt(1 + u)
    elif PLANTS[plant] == "Linden":  # round
        width = 0.62 * np.sqrt(lens)
    else:  # long and narrow
        width = 0.3 * lens
    return np.asarray(width * stretch)


def _wave(x: Plane) -> Plane:
    """Return a triangle wave from 0 to 1."""
    return np.abs(x - np.floor(x) - 0.5) * 2


def _background(luck: Plane) -> Plane:
    tone = 90 + 120 * luck[6:9]
    slope = np.linspace(0.85, 1.15, _FINE)[:, None, None]
    return np.asarray(np.broadcast_to(tone, (_FINE, _FINE, 3)) * slope)


def _leaf(luck: Plane, plant: int, along: Plane, across: Plane) -> Plane:
    green = np.array([55.0, 125.0, 45.0]) + 30 * (luck[9:12] - 0.5)
    veins = (np.abs(across) < 0.03) | (_wave(4 * (along - np.abs(across))) < 0.08)
    shade = 1 - 0.15 * np.abs(across)[:, :, None]
    return np.asarray((green + 28.0 * veins[:, :, None]) * shade)


def _healthy(leaf: Plane, luck: Plane, along: Plane, across: Plane, width: Plane) -> None:
    """Leave the leaf unchanged."""


def _spotted(leaf: Plane, luck: Plane, along: Plane, across: Plane, width: Plane) -> None:
    """Draw brown spots with a yellow rim."""
    for n in range(6 + int(6 * luck[12])):
        at, off, size = luck[13 + n] * 1.5 - 0.75, luck[25 + n] * 0.7 - 0.35, 0.05 + 0.06 * luck[37 + n]
        apart = (along - at) ** 2 + (across - off) ** 2
        leaf[apart < (1.5 * size) ** 2] = (190.0, 180.0, 60.0)
        leaf[apart < size**2] = (95.0, 60.0, 30.0)


def _blighted(leaf: Plane, luck: Plane, along: Plane, across: Plane, width: Plane) -> None:
    """Draw browning from the tip or the rim inwards."""
    dead = along + 0.3 * _wave(6 * across) > 0.55 - 0.5 * luck[12]
    dead |= np.abs(across) > width * (0.95 - 0.25 * luck[13])
    leaf[dead] = np.array([120.0, 85.0, 45.0]) + 20 * (luck[14] - 0.5)


def _powdered(leaf: Plane, luck: Plane, along: Plane, across: Plane, width: Plane) -> None:
    """Draw white films, thickest in the middle."""
    for n in range(3 + int(3 * luck[12])):
        at, off, size = luck[13 + n] * 1.4 - 0.7, luck[25 + n] * 0.5 - 0.25, 0.18 + 0.2 * luck[37 + n]
        thick = np.clip(1 - ((along - at) ** 2 + (across - off) ** 2) / size**2, 0, 1)[:, :, None] * 0.8
        leaf[:] = leaf * (1 - thick) + 225.0 * thick


_ILL: Final = {
    "healthy": _healthy,
    "leaf_blight": _blighted,
    "leaf_spot": _spotted,
    "powdery_mildew": _powdered,
}
