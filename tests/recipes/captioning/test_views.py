"""A picture and its mirror image judged together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.recipes.captioning.beam_search import describe, mask_special, views
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import EvaluationFeed, Sources, load, vocabulary
from headway.recipes.captioning.evaluate import evaluate, generate_captions
from headway.recipes.captioning.model import DECODERS, Captioner
from headway.recipes.captioning.vocabulary import START
from headway.spec.model import Cache, Data
from tests.recipes.folders import TINY

CFG = replace(Config(**TINY), both_sides=True)


def captioner(cfg: Config) -> Captioner:
    torch.manual_seed(0)
    return Captioner(cfg, vocabulary(cfg, load(cfg, Data(), "train"))).eval()


def pictures(cfg: Config = CFG) -> torch.Tensor:
    return EvaluationFeed(Sources(load(cfg, Data(), "test"))).batch(0, 0, 0, 1).pictures


@pytest.mark.parametrize("decoder", sorted(DECODERS))
@pytest.mark.parametrize("beam", [1, 3])
def test_a_picture_and_its_mirror_image_are_said_to_be_the_same(decoder: str, beam: int) -> None:
    cfg = Config(**{**TINY, "decoder": decoder, "both_sides": True})
    model, shown = captioner(cfg), pictures(cfg)
    one, other = (describe(model, views(cfg, side), max_length=8, beam=beam) for side in (shown, shown.flip(-1)))
    assert torch.equal(one.words, other.words)
    torch.testing.assert_close(one.log_probability, other.log_probability)
    alone = describe(model, shown, max_length=8, beam=beam)
    assert not torch.allclose(one.log_probability, alone.log_probability)
    assert (one.looks is None) == (alone.looks is None)


def test_a_word_is_as_likely_as_both_views_find_it_on_average() -> None:
    cfg = replace(CFG, decoder="attention")
    model, shown = captioner(cfg), pictures(cfg)
    said = describe(model, views(cfg, shown), max_length=1)
    start = torch.full((len(shown), 1), START)
    both = [
        model.decoder(start, model.decoder.start(model.see(side), rows=len(shown)))[0][:, 0].log_softmax(dim=1)
        for side in (shown, shown.flip(-1))
    ]
    mean = torch.stack(both).mean(dim=0)
    possible = mask_special(mean).log_softmax(dim=1)
    assert torch.equal(said.words[:, 0], possible.argmax(dim=1))
    torch.testing.assert_close(said.log_probability, possible.amax(dim=1))


def test_an_evaluation_asks_both_sides_with_and_without_kept_features(tmp_path: Path) -> None:
    cfg = Config(
        encoder="resnet18",
        weights="none",
        image_size=64,
        decoder="attention",
        test_samples=8,
        beam=2,
        both_sides=True,
    )
    model = captioner(replace(cfg, train_samples=8))
    sources = Sources(load(cfg, Data(), "test"))
    feed = EvaluationFeed(sources, both_sides=True)
    rows = generate_captions(model, cfg, len(sources), [feed.batch(0, 0, 0, 1)], beam=2)
    wanted = describe(model, views(cfg, pictures(cfg)), max_length=cfg.max_length, beam=2).words
    assert torch.equal(rows, wanted)
    found = evaluate(model, cfg, Data(), "test")
    said = [model.vocabulary.decode(row) for row in rows.tolist()]
    assert sorted(example.answer for example in found.examples) == sorted(said)
    kept = evaluate(model, cfg, Data(), "test", cache=Cache(dir=str(tmp_path)))
    (file,) = (tmp_path / "features").glob("*.f16")
    assert file.stat().st_size == 2 * 8 * model.encoder.cells * model.encoder.channels * 2  # both sides, half precision
    assert dict(kept.metrics) == pytest.approx(dict(found.metrics), abs=0.05)
