"""Mixed precision: autocast around the loop body or the models' forward, and the scaler that fp16 needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headway.core.errors import BadInput
from headway.training.nested import map_tensors

_DTYPES = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The precision of a run: `fp32`, or `bf16` or `fp16` where autocast is on and float32 everywhere else.

    `tf32` is float32 whose products an accelerator computes with fewer digits (TensorFloat32); CPUs ignore it.

    Autocast is on inside `with run.autocast():`, and in the forward of every placed model that is called outside it;
    the outputs of the latter are converted to float32. `bf16` needs no loss scaling. `fp16` has a narrow range, so
    GradScaler scales the loss before the backward pass and unscales the gradients after it; it skips steps whose
    gradients overflow and lowers the scale. The scale is part of checkpoints. Resuming stays exact: autocast is a
    function of the inputs, and the scaler's state is restored.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        *,
        strict: bool = False,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        if name not in _DTYPES:
            raise BadInput(f"unknown precision {name!r}", fix=f"choose one of {', '.join(_DTYPES)}")
        self.name, self._device, self._dtype = name, device, _DTYPES[name]
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None
        if device.type in ("cuda", "xpu"):
            _set_products(tf32=name == "tf32", strict=strict)
        elif name == "tf32":
            log(f"precision: tf32 is fp32 on {device.type}")
        if name == "bf16" and _emulates_bf16(device):
            log(f"precision: {torch.cuda.get_device_name(device)} computes bf16 slowly; fix: precision: fp16")
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


def _set_products(*, tf32: bool, strict: bool) -> None:
    """Allow TensorFloat32 in matrix products and convolutions, or forbid it; by default torch's settings stay."""
    if tf32 or strict:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32


def _emulates_bf16(device: torch.device) -> bool:
    return device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)


def to_float32(value: Any) -> Any:
    """Convert the half-precision tensors of a nested result to float32: losses and sums need the precision."""
    return map_tensors(value, _to_float32)


def _to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
