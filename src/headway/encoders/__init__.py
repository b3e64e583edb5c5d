"""Picture encoders that several recipes share: ResNet and EfficientNet-Lite0, with the names of published weights.

    encoder = build("efficientnet_lite0", weights="imagenet")
    grid = encoder(encoder.normalised(pictures))          # uint8 (n, 3, h, w) -> float (n, channels, h / 32, w / 32)

Importing this costs nothing: torch comes with the first `build`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway.encoders.preprocessing import IMAGENET, LITE, Preprocessing

if TYPE_CHECKING:
    from headway.encoders.base import Encoder

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
    from headway.encoders.efficientnet_lite import EfficientNetLite0
    from headway.encoders.resnet import PUBLISHED_WIDTH, ResNet
    from headway.encoders.weights import load

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
        from headway.errors import BadInput

        raise BadInput(f"there is no encoder {name!r}", fix=f"choose one of {', '.join(NAMES)}")
