"""The networks: their sizes, that any picture size fits, what learns, and that the state alone rebuilds them."""

from __future__ import annotations

import pytest
import torch

from headway.core.errors import BadInput
from headway.recipes.classification.data import load
from headway.recipes.classification.model import Classifier, rebuild, resized
from headway.recipes.classification.train import class_weights, loss_of, schedule_options
from headway.spec import Data
from tests.recipes.classification.tiny import settings

CLASSES = [f"class {n}" for n in range(61)]


@pytest.mark.parametrize(("size", "weights"), [("small", 134_709), ("base", 526_957), ("large", 2_076_365)])
def test_the_three_sizes_have_the_weights_of_the_original(size: str, weights: int) -> None:
    model = Classifier(settings(model_size=size), CLASSES)
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(weights, rel=0.01)


@pytest.mark.parametrize("name", ["alexnet", "efficientnet_lite0", "resnet18"])
@torch.no_grad()
def test_every_model_takes_bytes_of_any_size(name: str) -> None:
    model = Classifier(settings(model=name, weights="none"), CLASSES[:7]).eval()
    small, large = torch.randint(256, (2, 3, 32, 32)).byte(), torch.randint(256, (2, 3, 50, 40)).byte()
    assert model(small).shape == model(large).shape == (2, 7)


@torch.no_grad()
def test_resizing_keeps_what_fits_and_the_range_of_the_rest() -> None:
    fitting = torch.randint(256, (1, 3, 32, 32)).byte()
    assert resized(fitting, 32) is fitting
    white = torch.full((1, 3, 70, 64), 255, dtype=torch.uint8)
    torch.testing.assert_close(resized(white, 32), torch.full((1, 3, 32, 32), 255.0))


def test_published_weights_learn_slower_and_a_frozen_encoder_not_at_all() -> None:
    model = Classifier(settings(model="efficientnet_lite0", weights="imagenet", freeze="norms"), CLASSES[:3])
    rates = [group["lr"] for group in model.parameter_groups(1.0, 0.1)]
    assert rates == [1.0, 0.1]
    frozen = Classifier(settings(model="efficientnet_lite0", freeze="all"), CLASSES[:3])
    assert len(list(frozen.parameter_groups(1.0, 0.1))) == 1
    before = model.encoder._bn0.running_mean.clone()
    model.train()(torch.randint(256, (2, 3, 32, 32)).byte())
    assert torch.equal(model.encoder._bn0.running_mean, before), "its statistics stay as published"


def test_the_state_alone_rebuilds_it() -> None:
    torch.manual_seed(1)
    model = Classifier(settings(), CLASSES[:5]).eval()
    pictures = torch.randint(256, (2, 3, 32, 32)).byte()
    again = rebuild(settings(), model.state_dict())
    assert again.classes == tuple(CLASSES[:5])
    with torch.no_grad():
        assert torch.equal(again(pictures), model(pictures))
    with pytest.raises(BadInput, match="weights' 5 classes differ from the 4"):
        Classifier(settings(), CLASSES[:4]).set_extra_state(CLASSES[:5])


def test_weights_make_rare_classes_count_more_and_the_average_picture_one() -> None:
    read = load(settings(train_samples=24), Data(), "train")
    even = class_weights(settings(), read)
    skewed = class_weights(settings(class_weights=True, balance=1.0), read)
    labels = torch.from_numpy(read.labels())
    assert torch.equal(even, torch.ones(16))
    assert float(skewed[labels].mean()) == pytest.approx(1.0)
    assert skewed[0] == skewed[8] / 2, "class 0 has twice as many pictures"
    scores = torch.randn(24, 16)
    loss, weight = loss_of(scores, labels, skewed, 0.0)
    wanted = torch.nn.functional.cross_entropy(scores, labels, weight=skewed)
    assert float(loss / weight) == pytest.approx(float(wanted), rel=1e-5)


def test_each_schedule_is_told_what_it_wants_to_know() -> None:
    assert schedule_options(settings(epochs=3), 10) == {"steps": 30}
    assert schedule_options(settings(schedule="cosine", warmup=5), 10) == {"steps": 10, "warmup": 5}
    assert schedule_options(settings(schedule="constant"), 10) == {"warmup": 0}
