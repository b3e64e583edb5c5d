"""The grader: a deep look at the back, a lighter one at the front, weighed together; or one at the only picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.backbones import Encoder, build
from headway.core.errors import BadInput
from headway.recipes.grading.channels import COUNT, six_channels
from headway.recipes.grading.config import Config

# CBAM (Woo et al., 2018): what to look at, and where; with a rim, because cards wear from the outside in.


def rim_mask(height: int, width: int, share: float) -> Tensor:
    """1 on the outermost cells of a grid, 0 inside: `share` of each side, but always one cell, and always an inside."""
    if height < 3 or width < 3:
        raise BadInput(
            f"a grid of {height} × {width} cells has no inside, so no rim",
            fix="choose larger pictures: 32 pixels make a cell, so at least 96",
        )
    mask = torch.ones(height, width)
    down, across = (min(max(1, round(share * size)), (size - 1) // 2) for size in (height, width))
    mask[down : height - down, across : width - across] = 0
    return mask


class Cbam(nn.Module):
    """Weighs channels by what they say everywhere, then places by what all channels say there and whether it is rim."""

    rim: Tensor

    def __init__(self, channels: int, cells: int, *, rim: float, reduction: int = 8) -> None:
        super().__init__()
        between = max(4, channels // reduction)
        self.channel = nn.Sequential(nn.Linear(channels, between), nn.ReLU(), nn.Linear(between, channels))
        kernel = 7 if cells >= 7 else 3
        self.place = nn.Conv2d(3, 1, kernel, padding=kernel // 2)
        self.register_buffer("rim", rim_mask(cells, cells, rim)[None, None], persistent=False)

    def forward(self, grid: Tensor) -> Tensor:
        """The same grid, weighed."""
        said = self.channel(grid.mean(dim=(2, 3))) + self.channel(grid.amax(dim=(2, 3)))
        grid = grid * said.sigmoid()[:, :, None, None]
        rim = self.rim.expand(grid.shape[0], -1, -1, -1)
        seen = torch.cat([grid.mean(dim=1, keepdim=True), grid.amax(dim=1, keepdim=True), rim], dim=1)
        weighed: Tensor = grid * self.place(seen).sigmoid()
        return weighed

    def of_rim(self, grid: Tensor) -> Tensor:
        """The mean of the rim's cells."""
        return (grid * self.rim).sum(dim=(2, 3)) / self.rim.sum()


# From features to the probability of every grade. The ordered heads are rank-consistent whatever their weights are.
#
# P(grade > k) never rises with k: in CORAL because its thresholds fall by construction, in CORN because each is the
# one before times a probability. So the probabilities of single grades, their differences, are never negative.


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


NARROW: Final = 16  # channels of a small branch's first layer; the published ResNets have 64
DAMAGE: Final = ("edge", "across", "down")  # what is measured on a side, each 0 … 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model makes of a batch."""

    scores: Tensor  # as the head gives them
    back: Tensor  # (n, 3): edge damage and centring, as seen on the back
    front: Tensor | None  # the same of the front; None where it was not looked at


class Grader(nn.Module):
    """Both branches, the heads, and the grades themselves: weights are worth nothing without knowing what they name."""

    grades: Tensor
    both: Tensor

    def __init__(self, cfg: Config, grades: Sequence[int], *, weights: str | None = None) -> None:
        super().__init__()
        self.cfg = cfg
        self.register_buffer("grades", torch.tensor(list(grades)))
        self.register_buffer("both", torch.tensor(cfg.views == "both"))
        self.back = _branch(cfg, cfg.back, weights)
        self.attention = Cbam(self.back.channels, -(-cfg.side // self.back.stride), rim=cfg.rim)
        self.back_damage = nn.Linear(2 * self.back.channels, len(DAMAGE))
        features = 2 * self.back.channels
        self.front: Encoder | None = None
        self.front_damage: nn.Linear | None = None
        if cfg.views == "both":
            self.front = _branch(cfg, cfg.front, weights)
            self.front_damage = nn.Linear(self.front.channels, len(DAMAGE))
            features += self.front.channels
        self.dropout = nn.Dropout(cfg.dropout)
        self.head = HEADS[cfg.head](features, len(grades))
        self._both = cfg.views == "both"

    def look(self, *, both: bool) -> None:
        """Whether the front is looked at too. Part of the state: a checkpoint is asked as it was trained."""
        self._both = both and self.front is not None
        self.both.fill_(self._both)

    def forward(self, back: Tensor, front: Tensor | None = None) -> Answer:
        """uint8 pictures (n, 3, side, side): the back, or the only one, and the front."""
        grid = self.attention(self.back(self._channels(back)))
        seen = torch.cat([grid.mean(dim=(2, 3)), self.attention.of_rim(grid)], dim=1)
        damage = self.back_damage(seen).sigmoid()
        if self.front is None or self.front_damage is None:
            return Answer(self.head(self.dropout(seen)), damage, None)
        share = self.cfg.lambda_fusion
        if not self._both:
            nothing = seen.new_zeros(seen.shape[0], self.front.channels)
            return Answer(self.head(self.dropout(torch.cat([share * seen, nothing], dim=1))), damage, None)
        assert front is not None, "the data's check that there are two pictures"
        other = self.front(self._channels(front)).mean(dim=(2, 3))
        fused = torch.cat([share * seen, (1 - share) * other], dim=1)
        return Answer(self.head(self.dropout(fused)), damage, self.front_damage(other).sigmoid())

    def loss(self, answer: Answer, labels: Tensor, targets: Tensor | None) -> dict[str, Tensor]:
        """Sums over the batch: the head's own, `emd`, and where there are `targets` (n, 2, 3), `edge` and `center`."""
        parts = {
            self.cfg.head: self.head.loss(answer.scores, labels).sum(),
            "emd": self.cfg.alpha_emd * squared_emd(self.head.probabilities(answer.scores), labels).sum(),
        }
        if targets is not None:
            sides = [(answer.back, targets[:, 0]), (answer.front, targets[:, 1])]
            known = [(found, true) for found, true in sides if found is not None]
            errors = torch.stack([_errors(found, true).sum(dim=0) for found, true in known]).mean(dim=0)
            parts |= {"edge": self.cfg.beta_edge * errors[0], "center": self.cfg.beta_center * errors[1:].sum()}
        return parts

    def probabilities(self, answer: Answer) -> Tensor:
        found: Tensor = self.head.probabilities(answer.scores)
        return found

    def named(self, probabilities: Tensor) -> Tensor:
        """The grades themselves."""
        return self.grades[decoded(probabilities, self.cfg.decode)]

    def _channels(self, pictures: Tensor) -> Tensor:
        with torch.no_grad():
            if self.cfg.channels == "rgb":
                return self.back.normalised(pictures)
            return six_channels(pictures).contiguous(memory_format=torch.channels_last)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        loaded = super().load_state_dict(state_dict, strict=strict, assign=assign)
        self._both = bool(self.both) and self.front is not None
        return loaded


def _errors(found: Tensor, true: Tensor) -> Tensor:
    """Squared; where the truth is not known (NaN), none."""
    known = ~true.isnan()
    return functional.mse_loss(found, torch.where(known, true, 0.0), reduction="none") * known


def _branch(cfg: Config, name: str, weights: str | None) -> Encoder:
    channels = COUNT if cfg.channels == "six" else 3
    if cfg.size == "small" and name.startswith("resnet"):
        return build(name, channels_in=channels, width=NARROW)
    return build(name, channels_in=channels, weights=weights)


def rebuild(cfg: Config, state: Mapping[str, Any]) -> Grader:
    """The model as a checkpoint holds it."""
    model = Grader(cfg, [int(grade) for grade in state["grades"]])
    model.load_state_dict(dict(state))
    return model
