"""Scores of what is said, and an evaluation that tells apart what training showed and what it did not."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import Batch, Drawn, EvaluationFeed, Pictures, Sources, load, vocabulary
from headway.recipes.captioning.evaluate import (
    SEARCHES,
    CaptionJudge,
    average_scores,
    choose_search,
    evaluate,
    generate_captions,
)
from headway.spec.model import Data
from tests.recipes.captioning.test_model import captioner
from tests.recipes.folders import TINY

CFG = Config(**TINY)


@pytest.fixture(scope="module")
def test_pictures() -> Pictures:
    return load(CFG, Data(), "test")[0]


def scores(pictures: Pictures, said: list[str]) -> dict[str, float]:
    return CaptionJudge(pictures).scores(said)


def test_saying_a_reference_of_each_picture_is_perfect(test_pictures: Pictures) -> None:
    found = scores(test_pictures, [said[2] for said in test_pictures.references])
    assert found["bleu_4"] == pytest.approx(1.0)
    assert found["exact"] == 1.0


def test_saying_what_belongs_to_other_pictures_is_wrong(test_pictures: Pictures) -> None:
    said = [references[0] for references in test_pictures.references]
    found = scores(test_pictures, said[1:] + said[:1])
    assert found["exact"] < 0.2
    assert found["bleu_4"] < 0.8


def test_without_a_grammar_nothing_is_called_right() -> None:
    pictures = Pictures(
        name="own", pixels=Drawn(np.zeros((1, 4, 4, 3), np.uint8)), references=[("a dog runs on grass",)]
    )
    assert set(scores(pictures, ["a dog runs on grass"])) == {"bleu_4", "cider", "rouge_l"}


def test_rows_of_other_ranks_stay_empty_so_that_they_can_be_summed(test_pictures: Pictures) -> None:
    model = captioner(words=vocabulary(CFG, [test_pictures]))
    feed = EvaluationFeed(Sources([test_pictures]), batch=4)
    shares = [[feed.batch(0, step, 0, 1) for step in range(rank, len(feed), 2)] for rank in range(2)]
    summed = sum(generate_captions(model, CFG, 16, share, beam=1) for share in shares)
    assert torch.equal(
        torch.as_tensor(summed), generate_captions(model, CFG, 16, [b for s in shares for b in s], beam=1)
    )
    assert isinstance(shares[0][0], Batch)
    assert model.training


def test_an_evaluation_has_both_groups_and_examples_in_order(test_pictures: Pictures) -> None:
    model = captioner(words=vocabulary(CFG, [test_pictures])).eval()
    found = evaluate(model, CFG, Data(), "test")
    assert found.count == 16
    assert set(found.groups) == {"held_out", "seen"}
    assert {"bleu_4", "exact", "exact_seen", "exact_held_out"} <= set(found.metrics)
    assert found.metrics["exact"] == np.mean([found.groups["seen"]["exact"], found.groups["held_out"]["exact"]])
    held_out = [example for example in found.examples if example.group == "held_out"]
    assert [example.expected for example in held_out] == [test_pictures.references[row] for row in range(1, 16, 2)]
    assert np.array_equal(
        np.asarray(Image.open(io.BytesIO(held_out[0].picture))),
        test_pictures.pixels.read(np.array([1]))[0].permute(1, 2, 0).numpy(),
    )


def test_a_split_without_held_out_kinds_is_one_group(test_pictures: Pictures) -> None:
    found = evaluate(captioner(words=vocabulary(CFG, [test_pictures])).eval(), CFG, Data(), "val")
    assert found.groups == {}
    assert len(found.examples) == 12


def test_sources_are_scored_apart_and_together_by_weight() -> None:
    drawn = Drawn(np.zeros((1, 4, 4, 3), np.uint8))
    sources = Sources(
        [Pictures(name=name, pixels=drawn, references=[("a dog",)], weight=w) for name, w in (("coco", 1), ("viz", 3))]
    )
    found = average_scores(sources, [{"bleu_4": 0.4}, {"bleu_4": 0.2}])
    assert found == {"bleu_4": pytest.approx(0.25), "bleu_4_coco": 0.4, "bleu_4_viz": 0.2}


def test_the_search_is_chosen_that_scores_best(test_pictures: Pictures) -> None:
    model = captioner(words=vocabulary(CFG, [test_pictures])).eval()
    chosen, found = choose_search(model, CFG, Data())
    assert (chosen.beam, chosen.length_penalty) in SEARCHES
    tried = [evaluate(model, replace(CFG, beam=b, length_penalty=p), Data(), "val").metrics for b, p in SEARCHES]
    assert found["bleu_4"] == pytest.approx(max(metrics["bleu_4"] for metrics in tried))
