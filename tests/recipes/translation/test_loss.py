"""The chunked loss is torch's, in value and gradient."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from headway.recipes.translation.model import smoothed_loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tokens", [1, 256, 600])
def test_it_is_torchs_own_loss_and_gradient(tokens: int, smoothing: float) -> None:
    torch.manual_seed(0)
    wanted = torch.randint(50, (tokens,))
    ours = [torch.randn(tokens, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)]
    theirs = [one.detach().clone().requires_grad_() for one in ours]
    mine = smoothed_loss(ours[0], ours[1], wanted, smoothing)
    plain = functional.cross_entropy(theirs[0] @ theirs[1].T, wanted, label_smoothing=smoothing, reduction="sum")
    (mine / 7).backward()
    (plain / 7).backward()
    assert mine.item() == pytest.approx(plain.item(), rel=1e-5)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_without_gradients_it_is_the_same_number() -> None:
    torch.manual_seed(0)
    hidden, table, wanted = torch.randn(9, 4, requires_grad=True), torch.randn(20, 4), torch.randint(20, (9,))
    with torch.no_grad():
        assert smoothed_loss(hidden, table, wanted, 0.1) == smoothed_loss(hidden.clone(), table, wanted, 0.1)
