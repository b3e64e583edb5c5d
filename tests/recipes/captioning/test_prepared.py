"""Prepared data: read as it was prepared, mixed by weight, scored source by source."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.core.errors import BadJob
from headway.data.prepare.pipeline import prepare
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import Batch, Sources, TrainingFeed, load, vocabulary
from headway.recipes.captioning.evaluate import evaluate
from headway.spec.model import Data, Source
from tests.data import layouts
from tests.recipes.captioning.test_model import captioner
from tests.recipes.folders import TINY

CFG = Config(**{**TINY, "min_count": 1})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("prepared")
    prepare(str(layouts.flickr8k(root / "f", train=12)), str(root / "flickr"), size=40, workers=1)
    prepare(str(layouts.coco(root / "c", train=4)), str(root / "coco"), size=40, encoding="raw", workers=1)
    return {"flickr": str(root / "flickr"), "coco": str(root / "coco")}


def data(made: dict[str, str], **weights: float) -> Data:
    sources = tuple(Source(source=made[name], weight=weight) for name, weight in weights.items())
    return Data(train=sources, val=sources)


def test_without_data_for_it_validation_reads_that_split_of_the_training_data(made: dict[str, str]) -> None:
    training = Data(train=(Source(source=made["flickr"], split="train", limit=2, weight=3.0),))
    (val,) = load(CFG, training, "val")
    (named,) = load(CFG, Data(val=(Source(source=made["flickr"]),)), "val")
    assert (val.name, list(val.ids), val.weight) == ("flickr", list(named.ids), 1.0)


def test_pictures_and_captions_are_those_that_were_prepared(made: dict[str, str]) -> None:
    flickr, coco = load(CFG, data(made, flickr=1, coco=1), "train")
    assert (flickr.name, len(flickr), coco.name, len(coco)) == ("flickr", 12, "coco", 4)
    assert flickr.references[3][2] == "A dog numbered 3 runs in way 2 ."
    assert flickr.ids[3] == "3_abc.jpg"
    for source in (flickr, coco):
        pixels = source.pixels.read(np.array([1, 0]))
        assert pixels.shape == (2, 3, 32, 32)
        mirrored = source.pixels.read(np.array([1]), np.array([True]))
        assert torch.equal(mirrored[0], pixels[0].flip(2))


def test_the_vocabulary_is_that_of_the_training_split(made: dict[str, str]) -> None:
    known = vocabulary(CFG, load(CFG, data(made, flickr=1), "train")).words
    assert {"dog", "11", "way"} <= set(known)
    assert "12" not in known  # a picture of val
    assert "." not in known


def test_rare_words_are_left_out_where_that_is_asked_for(made: dict[str, str]) -> None:
    pictures = load(CFG, data(made, flickr=1), "train")
    assert "11" in vocabulary(Config(min_count=5), pictures).words
    assert "11" not in vocabulary(Config(min_count=6), pictures).words
    assert len(vocabulary(Config(max_words=3), pictures)) == 4 + 3


def test_sources_are_drawn_from_by_weight(made: dict[str, str]) -> None:
    pictures = load(CFG, data(made, flickr=1, coco=3), "train")
    feed = TrainingFeed(CFG, Sources(pictures), vocabulary(CFG, pictures), seed=1)
    batches = [feed.batch(epoch, step, 0, 1) for epoch in range(4) for step in range(len(feed))]
    rows = [row for batch in batches if isinstance(batch, Batch) for row in batch.rows.tolist()]
    assert len(rows) == 64
    assert sum(row >= 12 for row in rows) == 48
    assert set(rows) == set(range(16))


def test_a_mixed_batch_holds_the_pictures_of_its_rows(made: dict[str, str]) -> None:
    pictures = load(CFG, data(made, flickr=1, coco=1), "train")
    rows = np.array([13, 0, 12, 5])
    read = Sources(pictures).read(rows)
    assert torch.equal(read[1], pictures[0].pixels.read(np.array([0]))[0])
    assert torch.equal(read[0], pictures[1].pixels.read(np.array([1]))[0])


def test_limits_and_filters_are_heeded(made: dict[str, str]) -> None:
    few = Data(train=(Source(source=made["flickr"], limit=5),))
    assert len(load(CFG, few, "train")[0]) == 5
    chosen = Data(train=(Source(source=made["flickr"], where={"id": ["2_abc.jpg", "7_abc.jpg"]}),))
    assert list(load(CFG, chosen, "train")[0].ids) == ["2_abc.jpg", "7_abc.jpg"]


def test_what_the_data_does_not_have_is_refused(made: dict[str, str]) -> None:
    with pytest.raises(BadJob, match="cannot be filtered by 'colour'"):
        load(CFG, Data(train=(Source(source=made["coco"], where={"colour": "red"}),)), "train")


def test_an_evaluation_scores_each_source_and_all_together(made: dict[str, str]) -> None:
    given = data(made, flickr=1, coco=3)
    model = captioner(words=vocabulary(CFG, load(CFG, given, "train"))).eval()
    found = evaluate(model, CFG, given, "val")
    assert found.count == 2 + 3
    assert set(found.groups) == {"flickr", "coco"}
    both = [found.metrics[f"rouge_l_{name}"] for name in ("flickr", "coco")]
    assert found.metrics["rouge_l"] == pytest.approx((both[0] + 3 * both[1]) / 4)
    assert {example.group for example in found.examples} == {"flickr", "coco"}
