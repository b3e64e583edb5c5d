"""Dropout by random bytes: the right share, the right mean, another one each time, the same for the same seed."""

from __future__ import annotations

import pytest
import torch

from headway.recipes.common import Dropout

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("chance", [0.1, 0.3, 0.5])
def test_so_many_are_dropped_and_the_mean_stays(chance: float) -> None:
    torch.manual_seed(0)
    out = Dropout(chance)(torch.ones(400, 1001))
    assert float((out == 0).float().mean()) == pytest.approx(chance, abs=0.005)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.01)
    by_byte = (out.flatten()[:400_000].view(-1, 8) == 0).float().mean(dim=0)
    assert float((by_byte - chance).abs().max()) < 0.01


def test_gradients_pass_where_values_passed() -> None:
    x = torch.ones(64, 64, requires_grad=True)
    out = Dropout(0.5)(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())  # type: ignore[arg-type]


def test_the_same_seed_drops_the_same() -> None:
    def dropped(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return Dropout(0.5)(torch.ones(99))

    assert torch.equal(dropped(1), dropped(1))
    assert not torch.equal(dropped(1), dropped(2))


def test_nothing_is_dropped_in_use() -> None:
    x = torch.ones(9)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
