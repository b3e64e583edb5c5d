"""From features to the probability of every grade. The ordered heads are rank-consistent whatever their weights are.

P(grade > k) never rises with k: in CORAL because its thresholds fall by construction, in CORN because each is the one
before times a probability. So the probabilities of single grades, their differences, are never negative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional


class Softmax(nn.Linear):
    """A score for each grade, as if they had no order."""

    def __init__(self, features: int, grades: int) -> None:
        super().__init__(features, grades)

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=1)

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy, a number a sample."""
        return functional.cross_entropy(scores, labels, reduction="none")


class Coral(nn.Module):
    """One weight vector for all thresholds (Cao et al., 2020), and thresholds that cannot cross."""

    def __init__(self, features: int, grades: int) -> None:
        super().__init__()
        self.weight = nn.Linear(features, 1, bias=False)
        self.first = nn.Parameter(torch.tensor([(grades - 2) / 2.0]))
        self.gaps = nn.Parameter(torch.full((max(0, grades - 2),), 0.5413))  # softplus of it is 1

    def forward(self, features: Tensor) -> Tensor:
        """Logits of P(grade > k), falling with k."""
        falls = torch.cumsum(functional.softplus(self.gaps), dim=0)
        logits: Tensor = self.weight(features) + torch.cat([self.first, self.first - falls])
        return logits

    def probabilities(self, scores: Tensor) -> Tensor:
        return of_single_grades(scores.sigmoid())

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The thresholds' cross entropies, summed."""
        above = (labels[:, None] > torch.arange(scores.shape[1], device=labels.device)).to(scores.dtype)
        return functional.binary_cross_entropy_with_logits(scores, above, reduction="none").sum(dim=1)


class Corn(nn.Linear):
    """Threshold k is asked only of what has passed those below it (Shi et al., 2021)."""

    def __init__(self, features: int, grades: int) -> None:
        super().__init__(features, grades - 1)

    def probabilities(self, scores: Tensor) -> Tensor:
        return of_single_grades(torch.cumprod(scores.sigmoid(), dim=1))

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Threshold k learns from the samples of grade k and above alone."""
        number = torch.arange(scores.shape[1], device=labels.device)
        above = (labels[:, None] > number).to(scores.dtype)
        asked = (labels[:, None] >= number).to(scores.dtype)
        each = functional.binary_cross_entropy_with_logits(scores, above, reduction="none")
        return (each * asked).sum(dim=1)


def of_single_grades(above: Tensor) -> Tensor:
    """From P(grade > k) for all k but the last to P(grade = k) for all."""
    one = torch.ones_like(above[:, :1])
    return torch.cat([one, above], dim=1) - torch.cat([above, torch.zeros_like(one)], dim=1)


def squared_emd(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Σ_k (CDF_p(k) − CDF_y(k))², a number a sample."""
    reached = torch.arange(probabilities.shape[1], device=labels.device) >= labels[:, None]
    return (probabilities.cumsum(dim=1) - reached.to(probabilities.dtype)).square().sum(dim=1)


def decoded(probabilities: Tensor, how: str) -> Tensor:
    """The number of the grade that is named, counted from 0."""
    if how == "likeliest":
        return probabilities.argmax(dim=1)
    if how == "median":
        return (probabilities.cumsum(dim=1)[:, :-1] < 0.5).sum(dim=1)
    numbers = torch.arange(probabilities.shape[1], device=probabilities.device, dtype=probabilities.dtype)
    return torch.floor((probabilities * numbers).sum(dim=1) + 0.5).long().clamp(0, probabilities.shape[1] - 1)


HEADS: Final[dict[str, Callable[[int, int], Any]]] = {"coral": Coral, "corn": Corn, "softmax": Softmax}
