"""A linear map used word after word: the same results and gradients as torch's own, and nothing left behind."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn
from torch.nn import functional

from headway.recipes.captioning.decoders import linear_map


def test_results_and_gradients_are_those_of_a_plain_linear_map() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    start = torch.randn(5, 4, requires_grad=True)
    found = []
    for late in (False, True):
        given = linear_map(layer.weight, layer.bias, [5, 5, 3] if late else None)
        x = start
        for rows in (5, 5, 3):
            x = torch.tanh(given(x[:rows]))
        gradients = torch.autograd.grad((x**2).sum(), [layer.weight, layer.bias, start])
        found.append((x, *gradients))
    for plain, later in zip(*found, strict=True):
        torch.testing.assert_close(later, plain)


def test_weights_joined_from_several_get_their_own_gradients() -> None:
    torch.manual_seed(0)
    parts = [nn.Linear(3, 2), nn.Linear(3, 4)]
    weight, bias = torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
    x = torch.randn(6, 3)
    (linear_map(weight, bias, [6])(x) ** 2).sum().backward()  # type: ignore[no-untyped-call]
    for part in parts:
        wanted = torch.autograd.grad((functional.linear(x, part.weight, part.bias) ** 2).sum(), [part.weight])[0]
        torch.testing.assert_close(part.weight.grad, wanted)


def test_what_was_learnt_from_is_freed_even_without_a_backward_pass() -> None:
    layer = nn.Linear(4, 4)
    given = linear_map(layer.weight, layer.bias, [2, 2])
    first = given(torch.randn(2, 4))
    gone = weakref.ref(first)
    given(torch.tanh(first))
    del first, given
    gc.collect()
    assert gone() is None
