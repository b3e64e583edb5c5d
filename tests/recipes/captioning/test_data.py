"""Batches: pure functions of their number, the same whoever asks and however many ranks there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headway.core.errors import HeadwayError
from headway.data.loading.sampler import PaddingBatch
from headway.data.synthetic import scenes
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import (
    Batch,
    Drawn,
    EvaluationFeed,
    Pictures,
    Sources,
    TrainingFeed,
    load,
    vocabulary,
)
from headway.recipes.captioning.vocabulary import PAD
from headway.spec.model import Data, Source
from headway.training import Feed
from tests.recipes.folders import TINY

CFG = Config(**TINY)


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    return only(load(CFG, Data(), "train"))


def only(found: list[Pictures]) -> Pictures:
    (pictures,) = found
    return pictures


def pixels(pictures: Pictures) -> NDArray[np.uint8]:
    assert isinstance(pictures.pixels, Drawn)
    return pictures.pixels.array


def feed_of(pictures: Pictures, seed: int = 3, **settings: object) -> TrainingFeed:
    return TrainingFeed(Config(**{**TINY, **settings}), Sources([pictures]), vocabulary(CFG, [pictures]), seed=seed)


@pytest.fixture(scope="module")
def feed(pictures: Pictures) -> TrainingFeed:
    return feed_of(pictures)


def whole(feed: TrainingFeed, epoch: int, step: int, parts: int = 1) -> tuple[list[int], list[list[int]]]:
    made = [feed.batch(epoch, step, part, parts) for part in range(parts)]
    batches = [batch for batch in made if isinstance(batch, Batch)]
    rows = [row for batch in batches for row in batch.rows.tolist()]
    words = [
        w[w != PAD].tolist() for batch in batches if batch.captions is not None for w in batch.captions.flatten(0, 1)
    ]
    return rows, words


def test_it_is_what_the_runtime_calls_a_feed(feed: TrainingFeed, pictures: Pictures) -> None:
    assert isinstance(feed, Feed)
    assert isinstance(EvaluationFeed(Sources([pictures])), Feed)


def test_a_batch_depends_on_its_number_alone(feed: TrainingFeed) -> None:
    wanted = whole(feed, 1, 2)
    whole(feed, 0, 0)
    assert whole(feed, 1, 2) == wanted
    assert whole(feed, 0, 2) != wanted


@pytest.mark.parametrize("parts", [2, 3, 16, 20])
def test_any_number_of_ranks_sees_the_same_batches(feed: TrainingFeed, parts: int) -> None:
    assert whole(feed, 1, 0, parts) == whole(feed, 1, 0)


def test_a_rank_without_pictures_gets_a_stand_in(feed: TrainingFeed) -> None:
    assert isinstance(feed.batch(0, 0, 19, 20), PaddingBatch)


def test_an_epoch_shows_every_picture_once(feed: TrainingFeed) -> None:
    rows = [row for step in range(len(feed)) for row in whole(feed, 5, step)[0]]
    assert sorted(rows) == list(range(64))


def test_captions_are_different_references_of_the_right_picture(feed: TrainingFeed, pictures: Pictures) -> None:
    words = vocabulary(CFG, [pictures])
    batch = feed.batch(0, 0, 0, 1)
    assert isinstance(batch, Batch)
    assert batch.captions is not None
    for row, captions in zip(batch.rows.tolist(), batch.captions, strict=True):
        said = [words.decode(caption[1:].tolist()) for caption in captions]
        assert len(set(said)) == CFG.captions
        assert set(said) <= set(pictures.references[row])
    assert torch.equal(batch.pictures, torch.from_numpy(pixels(pictures)[batch.rows.numpy()]).permute(0, 3, 1, 2))


def test_the_fingerprint_changes_with_what_the_batches_are_made_of(pictures: Pictures, feed: TrainingFeed) -> None:
    others = [feed_of(pictures, seed=4), feed_of(pictures, batch_size=8), feed_of(pictures, mirror=True)]
    assert len({feed.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert feed_of(pictures).fingerprint == feed.fingerprint


def test_half_of_the_pictures_are_mirrored_where_that_is_asked_for(pictures: Pictures) -> None:
    batch = feed_of(pictures, mirror=True, batch_size=64).batch(0, 0, 0, 1)
    assert isinstance(batch, Batch)
    plain = torch.from_numpy(pixels(pictures)[batch.rows.numpy()]).permute(0, 3, 1, 2)
    same = (batch.pictures == plain).flatten(1).all(dim=1)
    flipped = (batch.pictures == plain.flip(3)).flatten(1).all(dim=1)
    assert (same | flipped).all()
    assert 16 < int(flipped.sum()) < 48


def test_the_vocabulary_knows_no_word_of_val_or_test(pictures: Pictures) -> None:
    few = Pictures(name="few", pixels=pictures.pixels, references=[("a star", "A star.")])
    assert set(vocabulary(CFG, [few]).words[4:]) == {"a", "star"}


def test_scenes_are_drawn_at_their_own_size_or_brought_to_another() -> None:
    natural = only(load(Config(**{**TINY, "image_size": 64}), Data(), "test"))
    assert np.array_equal(pixels(natural)[3], scenes.draw(scenes.compose("test", 3)))
    assert pixels(only(load(CFG, Data(), "test"))).shape == (16, 32, 32, 3)
    assert natural.held_out is not None
    assert natural.held_out.tolist() == [False, True] * 8


def test_a_limit_and_another_split_are_heeded() -> None:
    data = Data(val=(Source(source="builtin:scenes", split="test", limit=5),))
    assert len(only(load(CFG, data, "val"))) == 5


def test_only_one_kind_of_scene_is_drawn_where_that_is_asked_for() -> None:
    data = Data(val=(Source(source="builtin:scenes", where={"kind": "several"}),))
    assert {said[0].split()[0] for said in only(load(CFG, data, "val")).references} <= {
        "two",
        "three",
        "there",
        "a",
        "we",
    }
    lone = only(load(CFG, Data(val=(Source(source="builtin:scenes", where={"kind": "one"}),)), "val"))
    assert len(lone) == CFG.val_samples
    assert all(len(valid) == 6 for valid in lone.valid or ())


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (Source(source="/nowhere/coco"), "no prepared data set at /nowhere/coco"),
        (Source(source="builtin:scenes", split="dev"), "no split 'dev'"),
        (Source(source="builtin:scenes", where={"colour": "red"}), "filtered by kind only"),
    ],
)
def test_data_it_cannot_read_is_refused_with_a_fix(source: Source, complaint: str) -> None:
    with pytest.raises(HeadwayError, match=complaint) as caught:
        load(CFG, Data(train=(source,)), "train")
    assert "fix" in str(caught.value)
