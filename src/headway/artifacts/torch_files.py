"""Weights as `.pth` files: tensors and plain containers, no code."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def as_pth(state: Mapping[str, Any]) -> bytes:
    """Serialize for `torch.load(path, weights_only=True)`. The same values give the same bytes, with any strides."""
    body = io.BytesIO()
    torch.save(_plain(state), body)
    return body.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone(memory_format=torch.contiguous_format)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return value
