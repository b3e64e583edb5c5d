"""The classifier: an encoder from a picture to features, and a linear layer from features to classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway import backbones
from headway.artifacts.onnx import BATCH, Graph
from headway.core.errors import BadInput
from headway.recipes.classification.config import Config

# Channels of the five convolutions. With 61 classes: 134,557, 527,365 and 2,072,541 weights.
SIZES: Final[dict[str, tuple[int, ...]]] = {
    "small": (16, 32, 64, 80, 80),
    "base": (32, 72, 152, 152, 136),
    "large": (64, 128, 304, 288, 320),
}


class AlexNet(nn.Module):
    """Five convolutions in the style of AlexNet, each with batch normalisation, then global average pooling."""

    def __init__(self, size: str) -> None:
        super().__init__()
        first, second, *rest = SIZES[size]
        self.channels = rest[-1]
        self.layers = nn.Sequential(
            *_convolution(3, first, 7, stride=2),
            nn.MaxPool2d(3, 2, 1),
            *_convolution(first, second, 3),
            nn.MaxPool2d(3, 2, 1),
            *_convolution(second, rest[0], 3),
            *_convolution(rest[0], rest[1], 3),
            *_convolution(rest[1], rest[2], 3),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def normalised(self, pictures: Tensor) -> Tensor:
        return ((pictures.float() - 128) / 64).contiguous(memory_format=torch.channels_last)

    def forward(self, pictures: Tensor) -> Tensor:
        grid: Tensor = self.layers(pictures)
        return grid


def _convolution(given: int, out: int, size: int, *, stride: int = 1) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(given, out, size, stride, size // 2, bias=False)
    return convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True)


class Classifier(nn.Module):
    """Encoder and linear head. The state dict includes the class names, without which the weights are useless."""

    def __init__(self, cfg: Config, classes: Sequence[str], *, published: bool = True) -> None:
        super().__init__()
        self.classes, self.side = tuple(classes), cfg.image_size
        self.encoder: Any
        if cfg.model == "alexnet":
            self.encoder = AlexNet(cfg.model_size)
        else:
            chosen = cfg.weights if published and cfg.weights != "none" else None
            self.encoder = backbones.build(cfg.model, weights=chosen)
            self.encoder.freeze(cfg.freeze if cfg.weights != "none" else "nothing")
        self.dropout = nn.Dropout(cfg.dropout)
        self.head = nn.Linear(self.encoder.channels, len(classes))

    def forward(self, pictures: Tensor) -> Tensor:
        """Return class scores for uint8 pictures (n, 3, height, width) of any size."""
        fitted = self.encoder.normalised(resized(pictures, self.side))
        features = self.encoder(fitted).mean(dim=(2, 3))
        scores: Tensor = self.head(self.dropout(features))
        return scores

    def parameter_groups(self, lr: float, encoder_share: float) -> Iterator[dict[str, Any]]:
        """Yield parameter groups: the new head learns faster than the pretrained encoder."""
        yield {"params": list(self.head.parameters()), "lr": lr}
        learning = [parameter for parameter in self.encoder.parameters() if parameter.requires_grad]
        if learning:
            yield {"params": learning, "lr": lr * encoder_share}

    def get_extra_state(self) -> list[str]:
        return list(self.classes)

    def set_extra_state(self, state: Sequence[str]) -> None:
        if list(state) != list(self.classes):
            raise BadInput(
                f"the weights' {len(state)} classes differ from the {len(self.classes)} of this data",
                fix="restore the data that the weights were trained on, or start a new run",
            )


def resized(pictures: Tensor, side: int) -> Tensor:
    """Resize uint8 pictures; the result is uint8 or float in the same range."""
    if pictures.shape[-2:] == (side, side):
        return pictures
    return functional.interpolate(pictures.float(), (side, side), mode="bilinear", antialias=True, align_corners=False)


def rebuild(cfg: Config, state: Mapping[str, Any]) -> Classifier:
    """Rebuild the classifier from its state dict, in eval mode."""
    model = Classifier(cfg, state["_extra_state"], published=False)
    model.load_state_dict(dict(state))
    return model.eval()


# ONNX export of a classifier as one graph: pictures to class probabilities.


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
