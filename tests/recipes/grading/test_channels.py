"""Six channels: lightness, colour and slopes, by definitions that others use too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.recipes.grading.channels import clahe, six_channels, to_lab


@pytest.mark.parametrize(
    ("rgb", "lab"),  # by OpenCV: cv2.cvtColor(…, cv2.COLOR_RGB2LAB)
    [
        ((0, 0, 0), (0, 128, 128)),
        ((255, 255, 255), (255, 128, 128)),
        ((255, 0, 0), (136, 208, 195)),
        ((0, 255, 0), (224, 42, 211)),
        ((0, 0, 255), (82, 207, 20)),
        ((120, 60, 200), (103, 182, 65)),
    ],
)
def test_lab_is_that_of_opencv(rgb: tuple[int, ...], lab: tuple[int, ...]) -> None:
    picture = torch.tensor(rgb, dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    assert to_lab(picture)[0, :, 0, 0].round().tolist() == pytest.approx(lab, abs=1)


def test_equalising_spreads_levels_and_leaves_an_even_picture_even() -> None:
    torch.manual_seed(0)
    dull = torch.randint(100, 120, (2, 1, 64, 64)).float()
    spread = clahe(dull)
    assert spread.min() >= 0
    assert spread.max() <= 255
    assert float(spread.std()) > 1.5 * float(dull.std())
    even = clahe(torch.full((1, 1, 64, 64), 77.0))
    assert float(even.max() - even.min()) == 0


def test_equalising_keeps_the_order_of_levels_within_a_place() -> None:
    ramp = torch.arange(64).float().view(1, 1, 1, 64).expand(1, 1, 64, 64) * 2
    assert (clahe(ramp).diff(dim=3)[..., 5:-5] >= -1).all()


def test_slopes_say_which_way_lightness_changes() -> None:
    picture = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    picture[..., 32:] = 255
    six = six_channels(picture)
    assert six.shape == (1, 6, 64, 64)
    across, down, curved = six[0, 3], six[0, 4], six[0, 5]
    assert float(across[32, 31:33].min()) > 1
    assert float(down.max()) < 0.05
    assert float(curved[32, 31:33].min()) > 0.4
    assert float(across[:, :20].max()) < 0.05


def test_a_picture_of_a_batch_does_not_depend_on_the_others() -> None:
    pictures = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (3, 3, 64, 64), dtype=np.uint8))
    assert torch.equal(six_channels(pictures)[1:2], six_channels(pictures[1:2]))


def test_equalising_is_that_of_opencv_to_the_level() -> None:
    """The numbers are those of cv2.createCLAHE(2.0, (8, 8)).apply(…), of OpenCV 5.0."""
    y, x = np.mgrid[:64, :64]
    pattern = ((x * x // 9 + 3 * y + (x * y) % 17 * 5) % 256).astype(np.float32)
    found = clahe(torch.from_numpy(pattern)[None, None])[0, 0]
    expected = [[8, 28, 66, 8], [40, 57, 120, 84], [50, 76, 204, 134], [58, 112, 61, 183]]
    assert found[::16, ::16].tolist() == expected
    assert int(found.sum()) == 554853
