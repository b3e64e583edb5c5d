"""ONNX export of a grader as one graph: pictures to grade probabilities. It includes the six-channel preprocessing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from headway.artifacts.onnx import BATCH, Graph
from headway.data.synthetic import cards
from headway.recipes.grading.config import Config
from headway.recipes.grading.model import Grader


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
