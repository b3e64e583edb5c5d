"""A linear map that is used word after word, and whose weights get their gradient once, for all words together.

Autograd makes a small product for each word and adds each to a sum as large as the weights. Here it is one product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Map = Callable[[Tensor], Tensor]


def linear_map(weight: Tensor, bias: Tensor, rows: Sequence[int] | None) -> Map:
    """x ↦ x weightᵀ + bias. `rows`: how many each call will bring, where it is learnt from; None where it is not."""
    if rows is None:
        return partial(functional.linear, weight=weight, bias=bias)
    given: list[Tensor] = []  # detached: a graph that leads back to itself would never be freed
    biases = iter(_Late.apply(weight, bias, given, rows))  # type: ignore[no-untyped-call]
    transposed = weight.detach().t()

    def apply(x: Tensor) -> Tensor:
        given.append(x.detach())
        return torch.addmm(next(biases), x, transposed)

    return apply


class _Late(torch.autograd.Function):
    """The bias for each call. What comes back for it is the gradient of the call's result: all that weights need."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, given: list[Tensor], rows: Sequence[int]) -> tuple[Tensor, ...]:
        ctx.given = given
        return tuple(bias.repeat(count, 1) for count in rows)

    @staticmethod
    def backward(ctx: Any, *parts: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gradient = torch.cat(parts)
        return gradient.t() @ torch.cat(ctx.given).to(gradient.dtype), gradient.sum(dim=0), None, None
