"""The rim is a rim: at every size of grid some cells are in it and some are not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import BadInput
from headway.recipes.grading.model import Cbam, rim_mask


@given(st.integers(3, 40), st.integers(3, 40), st.floats(0.001, 0.499))
def test_the_rim_goes_all_round_and_leaves_an_inside(height: int, width: int, share: float) -> None:
    mask = rim_mask(height, width, share)
    assert mask[0].all()
    assert mask[-1].all()
    assert mask[:, 0].all()
    assert mask[:, -1].all()
    assert (mask == 0).any()
    assert torch.equal(mask, mask.flip(0))
    assert torch.equal(mask, mask.flip(1))


def test_twelve_cells_with_a_rim_of_seven_hundredths_are_not_all_rim() -> None:
    mask = rim_mask(12, 12, 0.07)
    assert mask.sum() == 44


def test_a_grid_without_an_inside_is_refused() -> None:
    with pytest.raises(BadInput, match="too small for a rim"):
        rim_mask(2, 8, 0.1)


def test_the_mean_of_the_rim_sees_nothing_of_the_inside() -> None:
    attention = Cbam(8, 5, rim=0.1)
    grid = torch.zeros(2, 8, 5, 5)
    grid[:, :, 1:4, 1:4] = 100
    assert torch.equal(attention.of_rim(grid), torch.zeros(2, 8))
    assert torch.allclose(attention.of_rim(torch.ones(2, 8, 5, 5)), torch.ones(2, 8))


def test_attention_weighs_and_keeps_the_shape() -> None:
    torch.manual_seed(0)
    grid = torch.rand(3, 16, 7, 7)
    weighed = Cbam(16, 7, rim=0.07)(grid)
    assert weighed.shape == grid.shape
    assert (weighed <= grid).all()
    assert (weighed > 0).all()
