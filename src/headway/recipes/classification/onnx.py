"""ONNX export of a classifier as one graph: pictures to class probabilities."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.artifacts.onnx import BATCH, Graph
from headway.recipes.classification.config import Config
from headway.recipes.classification.model import Classifier


class ProbabilityGraph(nn.Module):
    """Class probabilities, in the order of classes.json."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, picture: Tensor) -> Tensor:
        chances: Tensor = self.model(picture).softmax(dim=1)
        return chances


def graphs(model: Classifier, cfg: Config) -> list[Graph]:
    return [
        Graph(
            name="classifier",
            module=ProbabilityGraph(model.eval()),
            inputs={"picture": _pictures(cfg, 2)},
            outputs=("probabilities",),
            dynamic={"picture": {0: BATCH}},
            more=[{"picture": _pictures(cfg, 3)}],
            about="RGB pictures, their middle square at this size, to the probability of each class of classes.json",
        )
    ]


def _pictures(cfg: Config, count: int) -> Tensor:
    """Return smooth colour gradients as example inputs: unlike noise, they give no overconfident output."""
    noise = torch.Generator().manual_seed(count)
    coarse = torch.rand(count, 3, 5, 5, generator=noise) * 255
    size = (cfg.image_size, cfg.image_size)
    return nn.functional.interpolate(coarse, size, mode="bilinear", align_corners=False).to(torch.uint8)
