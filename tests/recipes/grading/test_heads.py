"""Heads: probabilities that are some, in an order that cannot break, and losses as their papers define them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from headway.recipes.grading.model import HEADS, Coral, Corn, decode_grades, grade_probabilities, squared_emd


def wild(head: torch.nn.Module, seed: int, size: float) -> torch.nn.Module:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter) * size)
    return head


@pytest.mark.parametrize("name", HEADS)
@given(seed=st.integers(0, 10**6), size=st.floats(0.01, 20), grades=st.integers(2, 12))
def test_probabilities_are_never_negative_and_sum_to_one(name: str, seed: int, size: float, grades: int) -> None:
    """For any weights at all, not only trained ones: that is what rank-consistent means."""
    head = wild(HEADS[name](5, grades), seed, size)
    chances = head.probabilities(head(torch.randn(7, 5) * size))
    assert chances.shape == (7, grades)
    assert (chances >= -1e-6).all()
    assert torch.allclose(chances.sum(dim=1), torch.ones(7), atol=1e-5)


def test_corals_thresholds_share_one_weight_vector_and_cannot_cross() -> None:
    head = wild(Coral(5, 10), 1, 3.0)
    logits = head(torch.randn(20, 5))
    falls = logits[:, :-1] - logits[:, 1:]
    assert (falls > 0).all()
    assert torch.allclose(falls, falls[:1].expand_as(falls), atol=1e-4)  # the same gaps for every sample
    assert head.weight.weight.shape == (1, 5)


def test_corals_loss_is_that_of_all_its_thresholds() -> None:
    head = wild(Coral(5, 4), 2, 1.0)
    scores, labels = head(torch.randn(6, 5)), torch.tensor([0, 1, 2, 3, 1, 0])
    above = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]]).float()
    expected = -(above * functional.logsigmoid(scores) + (1 - above) * functional.logsigmoid(-scores)).sum(dim=1)
    assert torch.allclose(head.loss(scores, labels), expected, atol=1e-5)


def test_corns_threshold_learns_only_from_what_has_passed_those_below() -> None:
    head = Corn(5, 4)
    scores = torch.zeros(3, 3, requires_grad=True)
    head.loss(scores, torch.tensor([0, 1, 3])).sum().backward()
    assert scores.grad is not None
    assert (scores.grad != 0).tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_single_grades_come_from_what_lies_above() -> None:
    above = torch.tensor([[0.9, 0.5, 0.2]])
    assert torch.allclose(grade_probabilities(above), torch.tensor([[0.1, 0.4, 0.3, 0.2]]))


@pytest.mark.parametrize(
    ("chances", "label", "distance"),
    [([0.1, 0.2, 0.4, 0.2, 0.1], 3, 0.6), ([0.7, 0.1, 0.1, 0.05, 0.05], 0, 0.1425), ([0.0, 1.0, 0.0], 1, 0.0)],
)
def test_the_squared_earth_movers_distance_is_as_defined(chances: list[float], label: int, distance: float) -> None:
    found = squared_emd(torch.tensor([chances]), torch.tensor([label]))
    assert float(found) == pytest.approx(distance, abs=1e-6)


@pytest.mark.parametrize(("how", "named"), [("likeliest", 3), ("median", 2), ("mean", 2)])
def test_the_named_grade_is_the_likeliest_the_median_or_the_mean(how: str, named: int) -> None:
    chances: Tensor = torch.tensor([[0.3, 0.1, 0.2, 0.4]])
    assert decode_grades(chances, how).tolist() == [named]


@pytest.mark.parametrize("name", HEADS)
def test_every_head_learns_an_order(name: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(200, 1) * 4
    labels = x.floor().long().squeeze(1).clamp(0, 3)
    head = HEADS[name](1, 4)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        head.loss(head(x), labels).mean().backward()
        optimizer.step()
    found = decode_grades(head.probabilities(head(x)), "mean")
    assert float((found - labels).abs().float().mean()) < 0.3
