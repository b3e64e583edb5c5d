"""Mixed precision: autocast around the loop body or the models' forward, and the scaler that fp16 needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headway.core.errors import BadInput
from headway.training.nested import map_tensors

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The precision of a run: `fp32`, or `bf16` or `fp16` where autocast is on and float32 everywhere else.

    Autocast is on inside `with run.autocast():`, and in the forward of every placed model that is called outside it;
    the outputs of the latter are converted to float32. `bf16` needs no loss scaling. `fp16` has a narrow range, so
    GradScaler scales the loss before the backward pass and unscales the gradients after it; it skips steps whose
    gradients overflow and lowers the scale. The scale is part of checkpoints. Resuming stays exact: autocast is a
    function of the inputs, and the scaler's state is restored.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name not in _DTYPES:
            raise BadInput(f"unknown precision {name!r}", fix=f"choose one of {', '.join(_DTYPES)}")
        self.name, self._device, self._dtype = name, device, _DTYPES[name]
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None
        self._inside = 0  # depth of `autocast` blocks
        self._used = self._dtype is None  # whether autocast was on at any time

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Context manager: compute in the run's precision. With fp32 it does nothing."""
        if self._dtype is None:
            yield
            return
        self._used = True
        self._inside += 1
        try:
            with torch.autocast(self._device.type, self._dtype):
                yield
        finally:
            self._inside -= 1

    def apply(self, model: nn.Module) -> None:
        """Wrap the model's forward in autocast for calls outside an `autocast` block."""
        if self._dtype is None:
            return
        forward = model.forward

        def autocast_forward(*args: Any, **options: Any) -> Any:
            if self._inside:
                return forward(*args, **options)
            with self.autocast():
                return to_float32(forward(*args, **options))

        model.forward = autocast_forward  # on the instance: the module and its parameter names stay the same

    def require_used(self) -> None:
        """Raise BadInput if the first loss was computed without autocast: the precision would silently do nothing."""
        if self._used:
            return
        raise BadInput(
            f"precision: {self.name} had no effect: the loss was computed neither by a placed model's forward nor "
            "inside run.autocast()",
            fix="compute the loss inside `with run.autocast():`, or set precision: fp32",
        )


def to_float32(value: Any) -> Any:
    """Convert the half-precision tensors of a nested result to float32: losses and sums need the precision."""
    return map_tensors(value, _to_float32)


def _to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
