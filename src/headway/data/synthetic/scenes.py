"""Drawn scenes: a generated captioning data set. Needs numpy; about 0.4 ms per picture.

A scene is a pure function of (split, index). All arithmetic is in integers, so pixels and captions are the same on
every machine. Some combinations of colour and shape, and of count and colour, never occur in `train` and `val`; every
second scene of `test` has one. A model that captions those has learnt to compose.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from headway.data.synthetic.scene_drawing import (
    COLOURS,
    COLUMNS,
    COUNTS,
    KINDS,
    REFERENCES,
    ROWS,
    SHAPES,
    SIDE,
    SIZES,
    UNIT,
    Background,
    Scene,
    SceneObject,
    draw,
)

# Composition of a scene from (split, index) alone: counter-based, in integers, 50 µs per scene.


GENERATION: Final = 1  # changes every scene; increment when the generator draws something else
SPLITS: Final = ("train", "val", "test")

_RGB: Final = {
    "red": (208, 42, 46),
    "orange": (240, 140, 30),
    "yellow": (238, 212, 44),
    "green": (48, 158, 72),
    "blue": (44, 92, 204),
    "purple": (134, 58, 166),
}
_RADII: Final = {"small": (36, 46), "large": (66, 78)}  # range in units
_CELL: Final = SIDE * UNIT // 3
_TILTS: Final = 5

_T = TypeVar("_T")
_WORD: Final = (1 << 64) - 1


class CounterRng:
    """A counter-based random generator (splitmix64) that depends on its key alone: the n-th value needs only n."""

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
        """Draw `count` different items, in random order."""
        pool = list(choices)
        return [pool.pop(self.below(len(pool))) for _ in range(count)]


def compose(split: str, index: int) -> Scene:
    """Compose scene `index` of a split. Odd scenes of `test` have a held-out combination, all others have none."""
    draws = CounterRng(GENERATION, SPLITS.index(split), index)
    wanted = is_held_out(split, index)
    while True:
        scene = _attempt(split, index, draws)
        if bool(scene.held_out) == wanted:
            return scene


def is_held_out(split: str, index: int) -> bool:
    return split == "test" and index % 2 == 1


def _attempt(split: str, index: int, draws: CounterRng) -> Scene:
    arrange = draws.pick((_one_object, _several_objects, _pair, _two_and_one))
    things, group = arrange(draws)
    return Scene(split, index, tuple(things), group, _background(draws))


def _one_object(draws: CounterRng) -> tuple[list[SceneObject], int]:
    row, column = draws.below(3), draws.below(3)
    return [_thing(draws, *_looks(draws), row, column)], 1


def _several_objects(draws: CounterRng) -> tuple[list[SceneObject], int]:
    """Two or three of the same kind, anywhere."""
    shape, colour, size = _looks(draws)
    cells = draws.sample(range(9), draws.between(2, 3))
    return [_thing(draws, shape, colour, size, *divmod(cell, 3)) for cell in cells], len(cells)


def _pair(draws: CounterRng) -> tuple[list[SceneObject], int]:
    """Two different things, side by side or one above the other."""
    first, second = draws.sample(range(3), 2)
    shared = draws.below(3)
    cells = ((shared, first), (shared, second)) if draws.below(2) else ((first, shared), (second, shared))
    return _unlike(draws, list(cells), group=1), 1


def _two_and_one(draws: CounterRng) -> tuple[list[SceneObject], int]:
    """Two of a kind in one row with another thing above or below them, or in one column with it beside them."""
    first, second = draws.sample(range(3), 2)
    along = draws.sample(range(3), 2)
    other = draws.between(min(along), max(along))  # further out, "above" would be as true as "left of"
    cells = [(first, along[0]), (first, along[1]), (second, other)]
    if draws.below(2):
        cells = [(column, row) for row, column in cells]
    return _unlike(draws, cells, group=2), 2


def _unlike(draws: CounterRng, cells: list[tuple[int, int]], *, group: int) -> list[SceneObject]:
    """Fill the first `group` cells with one kind of thing, the last with one of another colour and shape."""
    shapes, colours = draws.sample(SHAPES, 2), draws.sample(COLOURS, 2)
    sizes = [draws.pick(SIZES), draws.pick(SIZES)]
    kinds = [0] * group + [1]
    return [
        _thing(draws, shapes[kind], colours[kind], sizes[kind], *cell) for kind, cell in zip(kinds, cells, strict=True)
    ]


def _looks(draws: CounterRng) -> tuple[str, str, str]:
    return draws.pick(SHAPES), draws.pick(COLOURS), draws.pick(SIZES)


def _thing(draws: CounterRng, shape: str, colour: str, size: str, row: int, column: int) -> SceneObject:
    radius = draws.between(*_RADII[size])
    room = _CELL // 2 - radius  # margin inside its cell, so that no two things touch
    x = column * _CELL + _CELL // 2 + draws.between(-room, room)
    y = row * _CELL + _CELL // 2 + draws.between(-room, room)
    rgb = _shifted(draws, _RGB[colour], 14)
    return SceneObject(shape, colour, size, row, column, x, y, radius, draws.below(_TILTS), rgb)


def _background(draws: CounterRng) -> Background:
    level = draws.between(196, 236)
    corner = _shifted(draws, (level, level, level), 12)
    return Background(corner, _shifted(draws, (0, 0, 0), 18), _shifted(draws, (0, 0, 0), 18), draws.word())


def _shifted(draws: CounterRng, rgb: tuple[int, int, int], by: int) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(-255, value + draws.between(-by, by))) for value in rgb)
    return red, green, blue


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


# Captions of a scene: all valid ones, and the five references. Imports nothing.


_OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
_WORDINGS = {
    "above": ("above",),
    "below": ("below", "under"),
    "left of": ("to the left of", "left of"),
    "right of": ("to the right of", "right of"),
}


def captions(scene: Scene) -> tuple[str, ...]:
    """Return every valid caption of this scene. Any other caption is wrong."""
    if scene.kind == "one":
        return _one_phrase(scene.things[0])
    if scene.kind == "several":
        return _several_phrase(scene.things[0], scene.group)
    return _related(scene)


def references(scene: Scene) -> tuple[str, ...]:
    """Return five different valid captions, always the same for the same scene."""
    draws = CounterRng(GENERATION, 7, SPLITS.index(scene.split), scene.index)
    return tuple(draws.sample(captions(scene), REFERENCES))


def _one_phrase(thing: SceneObject) -> tuple[str, ...]:
    what = f"{thing.size} {thing.colour} {thing.shape}"
    where = _place(thing)
    return (
        f"a {what} {where}",
        f"one {what} {where}",
        f"there is a {what} {where}",
        f"{where} there is a {what}",
        f"{where} is a {what}",
        f"a picture of a {what} {where}",
    )


def _several_phrase(thing: SceneObject, count: int) -> tuple[str, ...]:
    what, number = f"{thing.size} {thing.colour} {thing.shape}{_plural(thing)}", COUNTS[count - 1]
    return (
        f"{number} {what}",
        f"there are {number} {what}",
        f"a picture of {number} {what}",
        f"a group of {number} {what}",
        f"{number} {thing.colour} {thing.shape}{_plural(thing)} that are {thing.size}",
        f"we see {number} {what}",
    )


def _related(scene: Scene) -> tuple[str, ...]:
    """Describe the relation from both sides: if A is left of B, then B is right of A."""
    group, other = scene.things[0], scene.things[-1]
    relation = _relation(scene)
    one = f"{_article(other.colour)} {other.colour} {other.shape}"
    many = f"{_article(group.colour)} {group.colour} {group.shape}"
    if scene.group > 1:
        many = f"{COUNTS[scene.group - 1]} {group.colour} {group.shape}{_plural(group)}"
    captions = []
    for subject, link, thing, verb in (
        (many, relation, one, "is" if scene.group == 1 else "are"),
        (one, _OPPOSITE[relation], many, "is"),
    ):
        for wording in _WORDINGS[link]:
            captions += [
                f"{subject} {wording} {thing}",
                f"{subject} {verb} {wording} {thing}",
                f"there {verb} {subject} {wording} {thing}",
            ]
    return tuple(captions)


def _relation(scene: Scene) -> str:
    """Return where the group is relative to the last thing: above or below if it is in one other row."""
    group, other = scene.things[: scene.group], scene.things[-1]
    rows = {thing.row for thing in group}
    if len(rows) == 1 and other.row not in rows:
        return "above" if group[0].row < other.row else "below"
    return "left of" if group[0].column < other.column else "right of"


def _place(thing: SceneObject) -> str:
    row, column = ROWS[thing.row], COLUMNS[thing.column]
    if row == column == "middle":
        return "in the middle"
    if column == "middle":
        return f"at the {row}"
    if row == "middle":
        return f"on the {column}"
    return f"at the {row} {column}"


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _plural(thing: SceneObject) -> str:
    return "es" if thing.shape == "cross" else "s"


__all__ = [
    "GENERATION",
    "KINDS",
    "REFERENCES",
    "SIDE",
    "SPLITS",
    "Scene",
    "SceneObject",
    "captions",
    "compose",
    "draw",
    "is_held_out",
    "references",
    "write_examples",
]


def write_examples(folder: str | Path, count: int = 8) -> list[Path]:
    """Write held-out test scenes as PNG files, and `references.json` with the references of each."""
    from PIL import Image

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths, captions = [], {}
    for number in range(count):
        scene = compose("test", 2 * number + 1)
        paths.append(folder / f"scene_{number + 1:02d}.png")
        Image.fromarray(draw(scene)).save(paths[-1])
        captions[paths[-1].name] = list(references(scene))
    (folder / "references.json").write_text(json.dumps(captions, indent=2) + "\n", encoding="utf-8")
    return paths


# `python -m headway.data.synthetic.scenes FOLDER --count N`: write held-out scenes as PNG files, with references.


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m headway.data.synthetic.scenes", description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=8)
    args = parser.parse_args()
    for path in write_examples(args.folder, args.count):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
