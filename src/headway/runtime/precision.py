"""Mixed precision: half-precision arithmetic in the model's forward, full precision everywhere else.

`bf16` needs nothing more. `fp16` has a narrow range, so the loss is scaled up before the backward pass and gradients
down after it; steps whose gradients overflow are left out and the scale is lowered. The scale is part of checkpoints.
Resuming stays exact: autocast is a function of the inputs, and the scaler's state is restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import BadInput

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """How a run computes: `fp32`, `bf16` or `fp16`."""

    def __init__(self, name: str, device: torch.device) -> None:
        if name not in _DTYPES:
            raise BadInput(f"precision {name!r} is not known", fix=f"choose one of {', '.join(_DTYPES)}")
        self.name, self._device, self._dtype = name, device, _DTYPES[name]
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

    def apply(self, model: nn.Module) -> None:
        """Let the model's forward run in half precision; what comes out of it is full precision again."""
        if self._dtype is None:
            return
        forward, device, dtype = model.forward, self._device.type, self._dtype

        def halved(*args: Any, **options: Any) -> Any:
            with torch.autocast(device, dtype):
                return widened(forward(*args, **options))

        model.forward = halved  # on the instance: the module stays itself, and so do its parameters' names


def widened(value: Any) -> Any:
    """Half-precision tensors of a nested result as float32: losses and sums need the digits."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if isinstance(value, Mapping):
        return {name: widened(each) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(widened(each) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(widened(each) for each in value)
    return value
