"""Image encoders shared by several recipes: ResNet and EfficientNet-Lite0, named as in their published weights.

encoder = build("efficientnet_lite0", weights="imagenet")
grid = encoder(encoder.normalised(pictures))          # uint8 (n, 3, h, w) -> float (n, channels, h / 32, w / 32)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Normalisation of byte pixels, (byte - mean) / std per channel; `side` is the image size in pre-training."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    side: int = 224


def _of_unit(mean: tuple[float, float, float], std: tuple[float, float, float]) -> Preprocessing:
    """Convert statistics published for pixels in [0, 1] to pixels in [0, 255]."""
    r, g, b = (255 * value for value in mean)
    sr, sg, sb = (255 * value for value in std)
    return Preprocessing((r, g, b), (sr, sg, sb))


IMAGENET = _of_unit((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LITE = Preprocessing((127.0, 127.0, 127.0), (128.0, 128.0, 128.0))  # of TensorFlow's EfficientNet-Lite


__all__ = ["NAMES", "Encoder", "Preprocessing", "build", "preprocessing"]

# Encoder name -> the preprocessing that its published weights expect. Sorted.
_PREPROCESSING: Final[dict[str, Preprocessing]] = {
    "efficientnet_lite0": LITE,
    "resnet101": IMAGENET,
    "resnet18": IMAGENET,
    "resnet34": IMAGENET,
    "resnet50": IMAGENET,
}
NAMES: Final = tuple(_PREPROCESSING)


def preprocessing(name: str) -> Preprocessing:
    """Return the preprocessing that the encoder's published weights expect."""
    _known(name)
    return _PREPROCESSING[name]


def build(name: str, *, weights: str | None = None, channels_in: int = 3, width: int | None = None) -> Encoder:
    """Build an encoder without its classifier.

    `weights` is "imagenet" (the published ones), a path, an http(s) URL or an object store URL; None initialises at
    random. With `channels_in` other than 3, the first layer's published weights are spread evenly over all channels.
    `width` sets the channels of a ResNet's first layers; published weights fit only the published 64.
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


# The base class


Freeze = Literal["nothing", "norms", "all"]


class Encoder(nn.Module):
    """Base class of encoders: normalised images to a feature grid (n, channels, height / stride, width / stride)."""

    name: str = ""
    preprocessing: Preprocessing = IMAGENET
    channels: int
    stride: int = 32
    first: str  # name of the layer that takes the pixels

    def __init__(self) -> None:
        super().__init__()
        self.frozen: Freeze = "nothing"

    def normalised(self, pictures: Tensor) -> Tensor:
        """Normalise byte images (n, 3, h, w) for the encoder's weights, on their own device."""
        to = self.preprocessing
        mean, std = (torch.tensor(of, device=pictures.device).view(1, -1, 1, 1) for of in (to.mean, to.std))
        return ((pictures.float() - mean) / std).contiguous(memory_format=torch.channels_last)

    def freeze(self, what: Freeze = "all") -> None:
        """Freeze the encoder. `all`: nothing trains, and `train()` leaves everything in eval mode. `norms`: weights
        train, but batch normalisation keeps its statistics: those of small or dissimilar batches are worse."""
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
