"""ResNet-18, -34, -50 and -101 (He et al., 2015), with torchvision's parameter names, so that its weight files fit."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from headway.backbones import Encoder

_LAYERS: Final[dict[str, tuple[int, int, int, int]]] = {
    "resnet101": (3, 4, 23, 3),
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
}
PUBLISHED_WIDTH: Final = 64  # channels of the first layers; the last have eight times as many


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a skip connection."""

    expansion: Final = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _downsample(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions and a skip connection. The stride is in the 3×3, as in torchvision ("v1.5")."""

    expansion: Final = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = _downsample(in_channels, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        out = torch.relu(self.bn2(self.conv2(out)))
        return torch.relu(self.bn3(self.conv3(out)) + (x if self.downsample is None else self.downsample(x)))


def _downsample(in_channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    if in_channels == out_channels and stride == 1:
        return None
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))


class ResNet(Encoder):
    """ResNet up to its last block, without torchvision's average pooling and `fc`."""

    first = "conv1"  # the layer that takes the pixels

    def __init__(self, name: str, *, channels_in: int = 3, width: int = PUBLISHED_WIDTH) -> None:
        super().__init__()
        block = BasicBlock if name in ("resnet18", "resnet34") else Bottleneck
        self.conv1 = nn.Conv2d(channels_in, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        in_channels = width
        for number, count in enumerate(_LAYERS[name], start=1):
            blocks: list[nn.Module] = []
            wide = width * 2 ** (number - 1)
            for n in range(count):
                blocks.append(block(in_channels, wide, stride=2 if n == 0 and number > 1 else 1))
                in_channels = wide * block.expansion
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
        self.channels = in_channels
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, pictures: Tensor) -> Tensor:
        x: Tensor = self.maxpool(torch.relu(self.bn1(self.conv1(pictures))))
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        return x
