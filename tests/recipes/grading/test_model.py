"""The grader: what weighs what, and what its losses know."""

from __future__ import annotations

import pytest
import torch

from headway.recipes.grading.model import HEADS, Grader, rebuild
from tests.recipes.grading.jobs import grading_config

PICTURES = torch.randint(0, 256, (3, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_the_published_size_has_the_branches_of_old() -> None:
    from headway.recipes.grading.config import Config

    model = Grader(Config(), range(1, 11))
    assert model.front is not None
    assert (model.back.name, model.front.name) == ("resnet34", "resnet18")
    assert sum(p.numel() for p in model.back.parameters()) == pytest.approx(21.3e6, rel=0.01)
    assert sum(p.numel() for p in model.front.parameters()) == pytest.approx(11.2e6, rel=0.01)
    assert model.back.conv1.weight.shape[1] == 6


def test_the_defaults_are_those_people_know() -> None:
    from headway.recipes.grading.config import Config

    cfg = Config()
    assert (cfg.batch_size, cfg.phase1_epochs, cfg.phase2_epochs) == (32, 10, 30)
    assert (cfg.phase1_lr, cfg.phase2_lr, cfg.lambda_fusion) == (1e-3, 3e-4, 0.7)
    assert (cfg.alpha_emd, cfg.beta_edge, cfg.beta_center, cfg.sampler) == (0.7, 0.05, 0.1, "balanced")
    assert cfg.checkpoint_epochs == 5


def test_a_small_grader_is_narrow_and_sees_at_most_128_pixels() -> None:
    cfg = grading_config(image_size=224, back="resnet34")
    assert cfg.side == 128
    assert sum(p.numel() for p in Grader(cfg, range(1, 11)).parameters()) < 2.2e6


def test_the_back_weighs_lambda_and_the_front_the_rest() -> None:
    model = Grader(grading_config(lambda_fusion=1.0), range(1, 11)).eval()
    assert torch.allclose(model(PICTURES, PICTURES).scores, model(PICTURES, PICTURES.flip(0)).scores)
    assert not torch.allclose(model(PICTURES.flip(0), PICTURES).scores, model(PICTURES, PICTURES).scores)


@pytest.mark.parametrize("head", HEADS)
def test_every_head_fits_both_views_and_one(head: str) -> None:
    for views in ("both", "single"):
        model = Grader(grading_config(head=head, views=views), range(5)).eval()
        answer = model(PICTURES, PICTURES if views == "both" else None)
        assert model.probabilities(answer).shape == (3, 5)
        assert set(model.named(model.probabilities(answer)).tolist()) <= set(range(5))


def test_losses_are_weighed_as_configured_and_left_out_where_nothing_is_known() -> None:
    model = Grader(grading_config(alpha_emd=0.7, beta_edge=0.05, beta_center=0.1), range(1, 11)).eval()
    twice = Grader(grading_config(alpha_emd=1.4, beta_edge=0.1, beta_center=0.2), range(1, 11)).eval()
    twice.load_state_dict(model.state_dict())
    labels, targets = torch.tensor([0, 4, 9]), torch.rand(3, 2, 3)
    one, two = (m.loss(m(PICTURES, PICTURES), labels, targets) for m in (model, twice))
    assert one.keys() == {"softmax", "emd", "edge", "center"}
    assert torch.allclose(one["softmax"], two["softmax"])
    for name in ("emd", "edge", "center"):
        assert torch.allclose(2 * one[name], two[name])
    assert model.loss(model(PICTURES, PICTURES), labels, None).keys() == {"softmax", "emd"}


def test_a_rebuilt_grader_knows_its_grades_and_what_it_looked_at() -> None:
    cfg = grading_config()
    model = Grader(cfg, range(3, 8)).eval()
    model.look(both=False)
    again = rebuild(cfg, model.state_dict()).eval()
    assert again.grades.tolist() == [3, 4, 5, 6, 7]
    assert torch.equal(again(PICTURES, PICTURES).scores, model(PICTURES, PICTURES).scores)
    assert again(PICTURES, PICTURES).front is None
