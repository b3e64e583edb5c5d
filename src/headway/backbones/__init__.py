"""Picture encoders that several recipes share: ResNet and EfficientNet-Lite0, with the names of published weights.

    encoder = build("efficientnet_lite0", weights="imagenet")
    grid = encoder(encoder.normalised(pictures))          # uint8 (n, 3, h, w) -> float (n, channels, h / 32, w / 32)

Importing this costs nothing: torch comes with the first `build`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn

# How the pixels must look that an encoder was trained on. Imports nothing heavy.


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Bytes become (byte - mean) / std, channel by channel; `side` is the size that the weights were trained at."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    side: int = 224


def _of_unit(mean: tuple[float, float, float], std: tuple[float, float, float]) -> Preprocessing:
    """Published for pixels from 0 to 1; ours go from 0 to 255."""
    r, g, b = (255 * value for value in mean)
    sr, sg, sb = (255 * value for value in std)
    return Preprocessing((r, g, b), (sr, sg, sb))


IMAGENET = _of_unit((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LITE = Preprocessing((127.0, 127.0, 127.0), (128.0, 128.0, 128.0))  # as TensorFlow's EfficientNet-Lite was trained


__all__ = ["NAMES", "Encoder", "Preprocessing", "build", "preprocessing"]

# Name -> what its published weights expect. Sorted.
_PREPROCESSING: Final[dict[str, Preprocessing]] = {
    "efficientnet_lite0": LITE,
    "resnet101": IMAGENET,
    "resnet18": IMAGENET,
    "resnet34": IMAGENET,
    "resnet50": IMAGENET,
}
NAMES: Final = tuple(_PREPROCESSING)


def preprocessing(name: str) -> Preprocessing:
    """How pictures must look for the encoder's published weights."""
    _known(name)
    return _PREPROCESSING[name]


def build(name: str, *, weights: str | None = None, channels_in: int = 3, width: int | None = None) -> Encoder:
    """An encoder without its classifier.

    `weights` is "imagenet" (those its makers published), a path, an http(s) URL or a bucket's; None begins at random.
    With other than three channels in, the first layer's published weights are spread evenly over all of them.
    `width` makes a ResNet narrower or wider than the published 64, which no published weights fit.
    """
    _known(name)
    from headway.backbones.efficientnet import EfficientNetLite0
    from headway.backbones.resnet import PUBLISHED_WIDTH, ResNet
    from headway.backbones.weights import load

    encoder: Encoder
    if name == "efficientnet_lite0":
        encoder = EfficientNetLite0(channels_in=channels_in)
    else:
        encoder = ResNet(name, channels_in=channels_in, width=width or PUBLISHED_WIDTH)
    encoder.name, encoder.preprocessing = name, _PREPROCESSING[name]
    if weights is not None:
        load(encoder, weights)
    return encoder


def _known(name: str) -> None:
    if name not in _PREPROCESSING:
        from headway.core.errors import BadInput

        raise BadInput(f"there is no encoder {name!r}", fix=f"choose one of {', '.join(NAMES)}")


# What every encoder promises: a grid of features from a picture, and to hold still where it is frozen.


Freeze = Literal["nothing", "norms", "all"]


class Encoder(nn.Module):
    """Pictures, normalised, to a grid (n, channels, height / stride, width / stride)."""

    name: str = ""
    preprocessing: Preprocessing = IMAGENET
    channels: int
    stride: int = 32
    first: str  # the layer that sees the pixels

    def __init__(self) -> None:
        super().__init__()
        self.frozen: Freeze = "nothing"

    def normalised(self, pictures: Tensor) -> Tensor:
        """Bytes (n, 3, h, w) as the weights expect them, on the device where they are."""
        to = self.preprocessing
        mean, std = (torch.tensor(of, device=pictures.device).view(1, -1, 1, 1) for of in (to.mean, to.std))
        return ((pictures.float() - mean) / std).contiguous(memory_format=torch.channels_last)

    def freeze(self, what: Freeze = "all") -> None:
        """`all`: nothing learns, and `train()` leaves everything in eval mode. `norms`: weights learn, but batch
        normalisation keeps the statistics it came with: those of small or unlike batches are worse than none."""
        self.frozen = what
        for parameter in self.parameters():
            parameter.requires_grad_(what != "all")
        self.train(self.training)

    def train(self, mode: bool = True) -> Encoder:
        super().train(mode and self.frozen != "all")
        self.training = mode
        if self.frozen != "nothing":
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self
