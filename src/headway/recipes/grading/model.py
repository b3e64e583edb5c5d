"""The grader: a deep encoder for the back and a lighter one for the front, fused; or one encoder for one picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.artifacts.onnx import BATCH, Graph
from headway.backbones import Encoder, build
from headway.core.errors import BadInput
from headway.data.synthetic import cards
from headway.recipes.grading.channels import COUNT, six_channels
from headway.recipes.grading.config import NARROW, Config

# CBAM (Woo et al., 2018): channel and spatial attention, plus a rim mask, because cards wear from the outside in.


def rim_mask(height: int, width: int, share: float) -> Tensor:
    """Return a mask with 1 on the outer cells of a grid: `share` of each side, but at least one cell, and never all."""
    if height < 3 or width < 3:
        raise BadInput(
            f"a grid of {height} × {width} cells is too small for a rim",
            fix="set config.image_size to at least 96 (a cell is 32 pixels)",
        )
    mask = torch.ones(height, width)
    down, across = (min(max(1, round(share * size)), (size - 1) // 2) for size in (height, width))
    mask[down : height - down, across : width - across] = 0
    return mask


class Cbam(nn.Module):
    """Channel attention, then spatial attention over channel statistics and the rim mask."""

    rim: Tensor

    def __init__(self, channels: int, cells: int, *, rim: float, reduction: int = 8) -> None:
        super().__init__()
        between = max(4, channels // reduction)
        self.channel = nn.Sequential(nn.Linear(channels, between), nn.ReLU(), nn.Linear(between, channels))
        kernel = 7 if cells >= 7 else 3
        self.place = nn.Conv2d(3, 1, kernel, padding=kernel // 2)
        self.register_buffer("rim", rim_mask(cells, cells, rim)[None, None], persistent=False)

    def forward(self, grid: Tensor) -> Tensor:
        """Return the grid multiplied by channel and spatial attention."""
        said = self.channel(grid.mean(dim=(2, 3))) + self.channel(grid.amax(dim=(2, 3)))
        grid = grid * said.sigmoid()[:, :, None, None]
        rim = self.rim.expand(grid.shape[0], -1, -1, -1)
        seen = torch.cat([grid.mean(dim=1, keepdim=True), grid.amax(dim=1, keepdim=True), rim], dim=1)
        weighed: Tensor = grid * self.place(seen).sigmoid()
        return weighed

    def of_rim(self, grid: Tensor) -> Tensor:
        """Return the mean over the rim's cells."""
        return (grid * self.rim).sum(dim=(2, 3)) / self.rim.sum()


# Heads from features to grade probabilities. CORAL and CORN are rank-consistent for any weights: P(grade > k) never
# rises with k, so the probabilities of single grades, their differences, are never negative.


class Softmax(nn.Linear):
    """One score per grade, ignoring their order."""

    def __init__(self, features: int, grades: int) -> None:
        super().__init__(features, grades)

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=1)

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy per sample."""
        return functional.cross_entropy(scores, labels, reduction="none")


class Coral(nn.Module):
    """CORAL (Cao et al., 2020): one weight vector for all thresholds, which decrease by construction."""

    def __init__(self, features: int, grades: int) -> None:
        super().__init__()
        self.weight = nn.Linear(features, 1, bias=False)
        self.first = nn.Parameter(torch.tensor([(grades - 2) / 2.0]))
        self.gaps = nn.Parameter(torch.full((max(0, grades - 2),), 0.5413))  # softplus(0.5413) = 1

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of P(grade > k), decreasing in k."""
        falls = torch.cumsum(functional.softplus(self.gaps), dim=0)
        logits: Tensor = self.weight(features) + torch.cat([self.first, self.first - falls])
        return logits

    def probabilities(self, scores: Tensor) -> Tensor:
        return grade_probabilities(scores.sigmoid())

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the thresholds' binary cross entropies, per sample."""
        above = (labels[:, None] > torch.arange(scores.shape[1], device=labels.device)).to(scores.dtype)
        return functional.binary_cross_entropy_with_logits(scores, above, reduction="none").sum(dim=1)


class Corn(nn.Linear):
    """CORN (Shi et al., 2021): P(grade > k) is P(grade > k - 1) times a conditional probability."""

    def __init__(self, features: int, grades: int) -> None:
        super().__init__(features, grades - 1)

    def probabilities(self, scores: Tensor) -> Tensor:
        return grade_probabilities(torch.cumprod(scores.sigmoid(), dim=1))

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the loss per sample. Threshold k learns only from samples of grade k and above."""
        number = torch.arange(scores.shape[1], device=labels.device)
        above = (labels[:, None] > number).to(scores.dtype)
        asked = (labels[:, None] >= number).to(scores.dtype)
        each = functional.binary_cross_entropy_with_logits(scores, above, reduction="none")
        return (each * asked).sum(dim=1)


def grade_probabilities(above: Tensor) -> Tensor:
    """Convert P(grade > k) for all k but the last to P(grade = k) for all k."""
    one = torch.ones_like(above[:, :1])
    return torch.cat([one, above], dim=1) - torch.cat([above, torch.zeros_like(one)], dim=1)


def squared_emd(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return Σ_k (CDF_p(k) − CDF_y(k))² per sample (squared earth mover's distance)."""
    reached = torch.arange(probabilities.shape[1], device=labels.device) >= labels[:, None]
    return (probabilities.cumsum(dim=1) - reached.to(probabilities.dtype)).square().sum(dim=1)


def decode_grades(probabilities: Tensor, how: str) -> Tensor:
    """Return the index of the predicted grade, from 0."""
    if how == "likeliest":
        return probabilities.argmax(dim=1)
    if how == "median":
        return (probabilities.cumsum(dim=1)[:, :-1] < 0.5).sum(dim=1)
    numbers = torch.arange(probabilities.shape[1], device=probabilities.device, dtype=probabilities.dtype)
    return torch.floor((probabilities * numbers).sum(dim=1) + 0.5).long().clamp(0, probabilities.shape[1] - 1)


HEADS: Final[dict[str, Callable[[int, int], Any]]] = {"coral": Coral, "corn": Corn, "softmax": Softmax}


DAMAGE: Final = ("edge", "across", "down")  # measured per side, each 0 … 1


@dataclass(frozen=True, slots=True)
class Answer:
    """Output of the model for a batch."""

    scores: Tensor  # raw scores of the head
    back: Tensor  # (n, 3): predicted edge damage and centring of the back
    front: Tensor | None  # the same for the front; None if it is not used


class Grader(nn.Module):
    """Both branches, the heads, and the grades, without which the weights are useless."""

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
        """Enable or disable the front branch.

        Saved in the state dict, so that a checkpoint is used as it was trained.
        """
        self._both = both and self.front is not None
        self.both.fill_(self._both)

    def forward(self, back: Tensor, front: Tensor | None = None) -> Answer:
        """Grade uint8 pictures (n, 3, side, side): the back, or the only one, and the front."""
        grid = self.attention(self.back(self._channels(back)))
        seen = torch.cat([grid.mean(dim=(2, 3)), self.attention.of_rim(grid)], dim=1)
        damage = self.back_damage(seen).sigmoid()
        if self.front is None or self.front_damage is None:
            return Answer(self.head(self.dropout(seen)), damage, None)
        share = self.cfg.lambda_fusion
        if not self._both:
            nothing = seen.new_zeros(seen.shape[0], self.front.channels)
            return Answer(self.head(self.dropout(torch.cat([share * seen, nothing], dim=1))), damage, None)
        assert front is not None, "the data must have checked that there are two pictures"
        other = self.front(self._channels(front)).mean(dim=(2, 3))
        fused = torch.cat([share * seen, (1 - share) * other], dim=1)
        return Answer(self.head(self.dropout(fused)), damage, self.front_damage(other).sigmoid())

    def loss(self, answer: Answer, labels: Tensor, targets: Tensor | None) -> dict[str, Tensor]:
        """Return the terms of the loss, summed over the batch.

        These are the one of the head, `emd`, and with `targets` (n, 2, 3) `edge` and `center`.
        """
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
        """Return the predicted grades."""
        return self.grades[decode_grades(probabilities, self.cfg.decode)]

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
    """Return squared errors, 0 where the target is unknown (NaN)."""
    known = ~true.isnan()
    return functional.mse_loss(found, torch.where(known, true, 0.0), reduction="none") * known


def _branch(cfg: Config, name: str, weights: str | None) -> Encoder:
    channels = COUNT if cfg.channels == "six" else 3
    if cfg.model_size == "small" and name.startswith("resnet"):
        return build(name, channels_in=channels, width=NARROW)
    return build(name, channels_in=channels, weights=weights)


def rebuild(cfg: Config, state: Mapping[str, Any]) -> Grader:
    """Rebuild the model from its state dict."""
    model = Grader(cfg, [int(grade) for grade in state["grades"]])
    model.load_state_dict(dict(state))
    return model


# ONNX export of a grader as one graph: pictures to grade probabilities. It includes the six-channel preprocessing.


class ProbabilityGraph(nn.Module):
    """Grade probabilities and the predicted grade."""

    def __init__(self, model: Grader) -> None:
        super().__init__()
        self.model = model

    def forward(self, back: Tensor, front: Tensor | None = None) -> tuple[Tensor, Tensor]:
        chances = self.model.probabilities(self.model(back, front))
        return chances, self.model.named(chances)


def graphs(model: Grader, cfg: Config) -> list[Graph]:
    """Return one graph. A grader trained on the back alone has no input for the front."""
    names = ("back", "front") if bool(model.both) else ("back",) if cfg.views == "both" else ("picture",)
    return [
        Graph(
            name="grader",
            module=ProbabilityGraph(model.eval()),
            inputs={name: _pictures(cfg, 2) for name in names},
            outputs=("probabilities", "grade"),
            dynamic={name: {0: BATCH} for name in names},
            more=[{name: _pictures(cfg, 3) for name in names}],
            about="RGB pictures of this size, whole and squashed, to the probability of each grade and the grade",
        )
    ]


def _pictures(cfg: Config, count: int) -> Tensor:
    """Return drawn cards as example inputs: noise would give overconfident output that hides numerical differences."""
    from PIL import Image

    views = [cards.draw(cards.compose("test", number))[0] for number in range(count)]
    sized = [np.asarray(Image.fromarray(view).resize((cfg.side, cfg.side))) for view in views]
    return torch.from_numpy(np.stack(sized)).permute(0, 3, 1, 2).contiguous()
