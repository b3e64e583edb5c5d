"""The same encoder, faster, for use alone: batch normalisation is folded into the convolutions before it."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from headway.encoders.base import Encoder
from headway.encoders.efficientnet_lite import Padded

_E = TypeVar("_E", bound=Encoder)


def folded(encoder: _E) -> _E:
    """A copy in eval mode that answers alike up to rounding, twice as fast on a CPU. It cannot learn."""
    fast = copy.deepcopy(encoder).eval()
    fast.freeze("all")
    for module in list(fast.modules()):
        _fold_children(module)
    for module in fast.modules():
        if isinstance(module, Padded):
            module.pad_inside()
    return fast.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _fold_children(module: nn.Module) -> None:
    """Every convolution here is followed by its normalisation, in the order in which they were defined."""
    before: tuple[str, nn.Module] | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d) and before is not None and isinstance(before[1], nn.Conv2d):
            # By name: what stands in the place of a layer is found there by whoever calls it.
            setattr(module, before[0], fuse_conv_bn_eval(before[1], child))
            setattr(module, name, nn.Identity())
        before = name, child
