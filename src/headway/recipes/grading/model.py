"""The grader: a deep look at the back, a lighter one at the front, weighed together; or one at the only picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.encoders import build
from headway.encoders.base import Encoder
from headway.recipes.grading.attention import Cbam
from headway.recipes.grading.channels import COUNT, six_channels
from headway.recipes.grading.config import Config
from headway.recipes.grading.heads import HEADS, decoded, squared_emd

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
