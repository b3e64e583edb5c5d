"""How the pixels must look that an encoder was trained on. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


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
