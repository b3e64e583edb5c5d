from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headway.core.errors import BadInput  # noqa: E402
from headway.data.loading.transforms import MEAN, STD, Augment, normalised  # noqa: E402
from tests.data.made_pictures import photograph, psnr  # noqa: E402

pytestmark = pytest.mark.torch
PLACES = np.arange(64)


def pictures(count: int = 64, side: int = 48) -> Any:
    whole = np.stack([np.asarray(photograph(side, side, n % 8)) for n in range(count)])
    return torch.from_numpy(whole).permute(0, 3, 1, 2)


def changed(augment: Augment, before: Any, epoch: int = 0) -> Any:
    return augment.apply(before, augment.draw(1, epoch, PLACES[: len(before)]))


def test_the_defaults_change_nothing() -> None:
    before = pictures()
    assert torch.equal(changed(Augment(), before), before)


def test_mirroring_alone_is_exact() -> None:
    before = pictures()
    after = changed(Augment(mirror=0.5), before)
    same = sum(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    turned = sum(torch.equal(a.flip(2), b) for a, b in zip(before, after, strict=True))
    assert same + turned == 64
    assert 16 < turned < 48
    assert torch.equal(changed(Augment(mirror=1.0), before), before.flip(3))


def test_a_turn_of_a_quarter_is_a_turn_of_a_quarter() -> None:
    before = pictures(1)
    augment = Augment(degrees=90)
    draws = augment.draw(1, 0, PLACES[:1])
    draws[:, 4] = np.pi / 2
    after = augment.apply(before, draws)
    turned = [torch.rot90(before[0], turns, (1, 2)) for turns in (1, 3)]
    assert max(psnr(after[0].numpy(), other.numpy()) for other in turned) > 40


def test_a_resized_crop_is_a_window_enlarged() -> None:
    """A picture that is a ramp shows where the window lay: its ends, and that its area is in the range."""
    side = 64
    ramp = torch.arange(side, dtype=torch.float32).mul(255 / (side - 1)).round().to(torch.uint8)
    across = ramp.view(1, 1, 1, side).expand(64, 3, side, side).contiguous()
    down = across.transpose(2, 3).contiguous()
    augment = Augment(scale=(0.25, 0.5), ratio=(0.8, 1.25))
    draws = augment.draw(1, 0, PLACES)
    wide = augment.apply(across, draws).float()
    tall = augment.apply(down, draws).float()
    width = (wide[:, 0, 0, -1] - wide[:, 0, 0, 0]) / 255
    height = (tall[:, 0, -1, 0] - tall[:, 0, 0, 0]) / 255
    area = (width * height).numpy()
    assert area.min() > 0.2
    assert area.max() < 0.55
    assert wide[:, 0, 0, 0].min() < 40  # windows lie all over the picture
    assert wide[:, 0, 0, 0].max() > 80


def test_a_crop_can_have_a_size_of_its_own() -> None:
    assert changed(Augment(scale=(0.5, 1), size=24), pictures(4)).shape == (4, 3, 24, 24)


def test_colours_are_changed_within_their_ranges() -> None:
    grey = torch.full((64, 3, 4, 4), 100, dtype=torch.uint8)
    bright = changed(Augment(brightness=0.2), grey)[:, 0, 0, 0].float()
    assert bright.min() >= 80
    assert bright.max() <= 120
    assert bright.std() > 5
    assert torch.equal(changed(Augment(saturation=0.5), grey), grey)  # grey has no colour to change
    assert (changed(Augment(hue=0.5), grey).int() - 100).abs().max() <= 1
    assert torch.equal(changed(Augment(contrast=0.5), grey), grey)


def test_hue_keeps_the_brightness() -> None:
    before = pictures(8).float() * 0.4 + 60
    after = changed(Augment(hue=0.2), before.to(torch.uint8)).float()
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    assert ((after - before.floor()) * weights).sum(1).abs().mean() < 2
    assert (after - before).abs().mean() > 2


def test_epochs_differ_and_draws_do_not_depend_on_the_batch() -> None:
    augment = Augment(scale=(0.08, 1), mirror=0.5, hue=0.1)
    whole = augment.draw(1, 0, PLACES)
    assert torch.equal(augment.draw(1, 0, PLACES[10:20]), whole[10:20])
    assert not torch.equal(augment.draw(1, 1, PLACES), whole)
    assert not torch.equal(augment.draw(2, 0, PLACES), whole)


def test_normalising_gives_what_published_weights_expect() -> None:
    before = pictures(4)
    expected = (before.float() / 255 - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    assert torch.allclose(normalised(before), expected, atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [{"scale": (0.0, 1.0)}, {"scale": (0.5, 0.2)}, {"mirror": 2}, {"hue": 0.7}, {"brightness": -1}, {"degrees": -5}],
)
def test_ranges_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Augment(**wrong)
