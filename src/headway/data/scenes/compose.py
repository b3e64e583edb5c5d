"""Choose what a scene shows, from (split, index) alone: counter-based, in integers, 50 µs a scene."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from headway.data.scenes.model import (
    COLOURS,
    SHAPES,
    SIDE,
    SIZES,
    UNIT,
    Background,
    Scene,
    Thing,
)

GENERATION: Final = 1  # changes every scene; raise it when the generator changes what it draws
SPLITS: Final = ("train", "val", "test")

_RGB: Final = {
    "red": (208, 42, 46),
    "orange": (240, 140, 30),
    "yellow": (238, 212, 44),
    "green": (48, 158, 72),
    "blue": (44, 92, 204),
    "purple": (134, 58, 166),
}
_RADII: Final = {"small": (36, 46), "large": (66, 78)}  # units, from and up to
_CELL: Final = SIDE * UNIT // 3
_TILTS: Final = 5

_T = TypeVar("_T")
_WORD: Final = (1 << 64) - 1


class Draws:
    """A stream of choices that depends on its key alone (splitmix64): the n-th one needs nothing but n."""

    def __init__(self, *key: int) -> None:
        self._state = 0
        for part in key:
            self._state = _mix(self._state ^ part)

    def word(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _WORD
        return _mix(self._state)

    def below(self, n: int) -> int:
        return (self.word() >> 32) * n >> 32

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def pick(self, choices: Sequence[_T]) -> _T:
        return choices[self.below(len(choices))]

    def sample(self, choices: Sequence[_T], count: int) -> list[_T]:
        """`count` different ones, in random order."""
        pool = list(choices)
        return [pool.pop(self.below(len(pool))) for _ in range(count)]


def compose(split: str, index: int) -> Scene:
    """Scene `index` of a split. Odd ones of `test` have a held-out combination, all others have none."""
    draws = Draws(GENERATION, SPLITS.index(split), index)
    wanted = is_held_out(split, index)
    while True:
        scene = _attempt(split, index, draws)
        if bool(scene.held_out) == wanted:
            return scene


def is_held_out(split: str, index: int) -> bool:
    return split == "test" and index % 2 == 1


def _attempt(split: str, index: int, draws: Draws) -> Scene:
    arrange = draws.pick((_one, _several, _pair, _two_and_one))
    things, group = arrange(draws)
    return Scene(split, index, tuple(things), group, _background(draws))


def _one(draws: Draws) -> tuple[list[Thing], int]:
    row, column = draws.below(3), draws.below(3)
    return [_thing(draws, *_looks(draws), row, column)], 1


def _several(draws: Draws) -> tuple[list[Thing], int]:
    """Two or three of the same kind, anywhere."""
    shape, colour, size = _looks(draws)
    cells = draws.sample(range(9), draws.between(2, 3))
    return [_thing(draws, shape, colour, size, *divmod(cell, 3)) for cell in cells], len(cells)


def _pair(draws: Draws) -> tuple[list[Thing], int]:
    """Two different things, side by side or one above the other."""
    first, second = draws.sample(range(3), 2)
    shared = draws.below(3)
    cells = ((shared, first), (shared, second)) if draws.below(2) else ((first, shared), (second, shared))
    return _unlike(draws, list(cells), group=1), 1


def _two_and_one(draws: Draws) -> tuple[list[Thing], int]:
    """Two of a kind in one row with another thing right above or below them, or in one column with it beside them."""
    first, second = draws.sample(range(3), 2)
    along = draws.sample(range(3), 2)
    other = draws.between(min(along), max(along))  # further out, "above" would be as true as "left of"
    cells = [(first, along[0]), (first, along[1]), (second, other)]
    if draws.below(2):
        cells = [(column, row) for row, column in cells]
    return _unlike(draws, cells, group=2), 2


def _unlike(draws: Draws, cells: list[tuple[int, int]], *, group: int) -> list[Thing]:
    """The first `group` cells hold one kind of thing, the last another that differs from it in colour and shape."""
    shapes, colours = draws.sample(SHAPES, 2), draws.sample(COLOURS, 2)
    sizes = [draws.pick(SIZES), draws.pick(SIZES)]
    kinds = [0] * group + [1]
    return [
        _thing(draws, shapes[kind], colours[kind], sizes[kind], *cell) for kind, cell in zip(kinds, cells, strict=True)
    ]


def _looks(draws: Draws) -> tuple[str, str, str]:
    return draws.pick(SHAPES), draws.pick(COLOURS), draws.pick(SIZES)


def _thing(draws: Draws, shape: str, colour: str, size: str, row: int, column: int) -> Thing:
    radius = draws.between(*_RADII[size])
    room = _CELL // 2 - radius  # it may move within its cell, so that no two of them touch
    x = column * _CELL + _CELL // 2 + draws.between(-room, room)
    y = row * _CELL + _CELL // 2 + draws.between(-room, room)
    rgb = _shifted(draws, _RGB[colour], 14)
    return Thing(shape, colour, size, row, column, x, y, radius, draws.below(_TILTS), rgb)


def _background(draws: Draws) -> Background:
    level = draws.between(196, 236)
    corner = _shifted(draws, (level, level, level), 12)
    return Background(corner, _shifted(draws, (0, 0, 0), 18), _shifted(draws, (0, 0, 0), 18), draws.word())


def _shifted(draws: Draws, rgb: tuple[int, int, int], by: int) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(-255, value + draws.between(-by, by))) for value in rgb)
    return red, green, blue


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)
