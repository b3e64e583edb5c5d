"""Drawn scenes: the same on every machine, rightly captioned, and with combinations that training never shows."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headway.data.synthetic import scenes
from headway.data.synthetic.scene_drawing import HELD_OUT_COUNTS, HELD_OUT_PAIRS, SIDE, UNIT, Scene

# The first twenty of each split, pixels and captions. Changes with GENERATION only: results depend on it.
GOLDEN = {
    "train": "ce9719899465749b",
    "val": "37aff3ba6dae2500",
    "test": "6ca2e14b783d5de3",
}


def digest(split: str, count: int = 20) -> str:
    found = hashlib.sha256()
    for index in range(count):
        scene = scenes.compose(split, index)
        found.update(scenes.draw(scene).tobytes())
        found.update("\n".join(scenes.references(scene)).encode())
    return found.hexdigest()[:16]


@pytest.mark.parametrize("split", scenes.SPLITS)
def test_the_first_scenes_are_the_same_bytes_as_ever(split: str) -> None:
    assert digest(split) == GOLDEN[split]


def test_another_process_draws_the_same() -> None:
    program = "from headway.data.synthetic import scenes as s; import hashlib, sys;"
    program += "sys.stdout.write(hashlib.sha256(s.draw(s.compose('train', 12345)).tobytes()).hexdigest())"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told == hashlib.sha256(scenes.draw(scenes.compose("train", 12345)).tobytes()).hexdigest()


def test_a_scene_depends_on_its_split_and_index_alone() -> None:
    late = scenes.compose("val", 7)
    for index in range(10):
        scenes.compose("val", index)
    assert scenes.compose("val", 7) == late
    assert scenes.compose("train", 7) != late


@pytest.mark.parametrize("split", ["train", "val"])
def test_training_never_shows_a_held_out_combination(split: str) -> None:
    for index in range(1500):
        scene = scenes.compose(split, index)
        assert not scene.held_out
        for caption in scenes.captions(scene):
            words = caption.replace("crosses", "cross").split()
            singular = [word.removesuffix("s") if word not in ("cross", "is") else word for word in words]
            said = set(pairwise(singular))
            assert not said & HELD_OUT_PAIRS
            if " above " not in caption:
                assert not said & HELD_OUT_COUNTS


def test_every_second_test_scene_shows_one_and_all_are_tried() -> None:
    met: set[tuple[str, str]] = set()
    for index in range(400):
        scene = scenes.compose("test", index)
        assert bool(scene.held_out) == (index % 2 == 1) == scenes.is_held_out("test", index)
        met |= scene.held_out
    assert met == HELD_OUT_PAIRS | HELD_OUT_COUNTS


def test_every_word_of_the_test_split_is_known_from_training() -> None:
    def words(split: str, count: int) -> set[str]:
        made = (scenes.compose(split, index) for index in range(count))
        return {word for scene in made for caption in scenes.captions(scene) for word in caption.split()}

    assert words("test", 300) <= words("train", 1000)


def test_a_picture_has_five_different_references_all_of_them_valid() -> None:
    for index in range(300):
        scene = scenes.compose("train", index)
        said = scenes.references(scene)
        assert len(set(said)) == scenes.REFERENCES
        assert set(said) <= set(scenes.captions(scene))


def test_a_caption_is_valid_for_one_meaning_only() -> None:
    meanings: dict[str, set[tuple[object, ...]]] = {}
    for index in range(3000):
        scene = scenes.compose("train", index)
        for caption in scenes.captions(scene):
            meanings.setdefault(caption, set()).add(meaning(scene))
    assert {len(found) for found in meanings.values()} == {1}


def meaning(scene: Scene) -> tuple[object, ...]:
    """What a caption must tell: what there is how often, where a lone thing is, and how unlike things lie."""
    first, last = scene.things[0], scene.things[-1]
    if len(scene.things) == scene.group:
        place = (first.row, first.column) if scene.group == 1 else None
        return (scene.group, first.shape, first.colour, first.size, place)
    rows = {thing.row for thing in scene.things[: scene.group]}
    vertical = len(rows) == 1 and last.row not in rows
    before = first.row < last.row if vertical else first.column < last.column
    kinds = ((scene.group, first.colour, first.shape), (1, last.colour, last.shape))
    return (vertical, *(kinds if before else kinds[::-1]))


def test_a_relation_is_never_doubtful() -> None:
    """What lies above something lies within its columns; what lies beside it, within its rows."""
    for index in range(1500):
        scene = scenes.compose("train", index)
        if scene.kind not in ("pair", "two_and_one"):
            continue
        group, other = scene.things[: scene.group], scene.things[-1]
        rows, columns = [thing.row for thing in group], [thing.column for thing in group]
        if any(f" {word} " in scenes.captions(scene)[0] for word in ("above", "below", "under")):
            assert len(set(rows)) == 1
            assert min(columns) <= other.column <= max(columns)
            assert other.row != rows[0]
        else:
            assert len(set(columns)) == 1
            assert min(rows) <= other.row <= max(rows)
            assert other.column != columns[0]


def test_things_lie_within_the_picture_and_apart_from_each_other() -> None:
    for index in range(500):
        things = scenes.compose("test", index).things
        for thing in things:
            assert thing.radius <= min(thing.x, thing.y) + UNIT
            assert max(thing.x, thing.y) + thing.radius <= SIDE * UNIT + UNIT
        for n, one in enumerate(things):
            for other in things[:n]:
                distance = max(abs(one.x - other.x), abs(one.y - other.y))
                assert distance >= one.radius + other.radius - 1


def test_a_thing_is_painted_in_its_colour_where_it_stands() -> None:
    """A ring has a hole in its middle; every other shape covers its centre."""
    for index in range(200):
        scene = scenes.compose("train", index)
        pixels = scenes.draw(scene)
        assert pixels.shape == (SIDE, SIDE, 3)
        assert pixels.dtype == np.uint8
        for thing in scene.things:
            if thing.shape != "ring":
                centre = pixels[thing.y // UNIT, thing.x // UNIT].astype(int)
                assert np.abs(centre - thing.rgb).max() <= 1


def test_edges_are_smooth() -> None:
    scene = next(s for s in (scenes.compose("train", i) for i in range(50)) if len(s.things) == 1)
    thing, pixels = scene.things[0], scenes.draw(scene).astype(int)
    distance = np.abs(pixels - thing.rgb).max(axis=2)
    between = (distance > 30) & (distance < distance.max() - 30)
    assert between.sum() > 4


def test_examples_are_written_by_a_command_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headway.data.synthetic.scenes", str(tmp_path), "--count", "2"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(tmp_path / "scene_01.png"), str(tmp_path / "scene_02.png")]


def test_examples_are_held_out_pictures_with_what_may_be_said_of_them(tmp_path: Path) -> None:
    paths = scenes.write_examples(tmp_path / "examples", 3)
    said = json.loads((tmp_path / "examples" / "references.json").read_text())
    assert [path.name for path in paths] == sorted(said)
    for number, path in enumerate(paths):
        scene = scenes.compose("test", 2 * number + 1)
        assert np.array_equal(np.asarray(Image.open(path)), scenes.draw(scene))
        assert said[path.name] == list(scenes.references(scene))
