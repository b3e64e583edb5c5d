"""Drawn scenes: a captioning data set that is made, not downloaded. Needs numpy; about 0.4 ms a picture.

A scene is a pure function of (split, index). Every number on the way is an integer, so the pixels and the captions are
the same on every machine. Some combinations of colour and shape, and of count and colour, never occur in `train` and
`val`; every second scene of `test` has one. A model that captions those has learnt to compose.
"""

from __future__ import annotations

import json
from pathlib import Path

from headway.data.scenes.compose import GENERATION, SPLITS, compose, is_held_out
from headway.data.scenes.grammar import captions, references
from headway.data.scenes.model import KINDS, REFERENCES, SIDE, Scene, Thing
from headway.data.scenes.pixels import draw

__all__ = [
    "GENERATION",
    "KINDS",
    "REFERENCES",
    "SIDE",
    "SPLITS",
    "Scene",
    "Thing",
    "captions",
    "compose",
    "draw",
    "is_held_out",
    "references",
    "write_examples",
]


def write_examples(folder: str | Path, count: int = 8) -> list[Path]:
    """Write held-out test scenes as PNG files, and `references.json` with what may be said of each."""
    from PIL import Image

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths, said = [], {}
    for number in range(count):
        scene = compose("test", 2 * number + 1)
        paths.append(folder / f"scene_{number + 1:02d}.png")
        Image.fromarray(draw(scene)).save(paths[-1])
        said[paths[-1].name] = list(references(scene))
    (folder / "references.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    return paths
