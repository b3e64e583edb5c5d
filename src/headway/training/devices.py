"""Accelerators through torch.accelerator: CUDA, ROCm, XPU, MPS and others; without one, the CPU.

Every branch on the kind of device is here, so that tests can run all of them on a fake one. torch.accelerator exists
since 2.6; before, CUDA, XPU and MPS are looked for by name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headway.core.errors import BadInput
from headway.training.rank_info import RankTopology

_BACKENDS = {"cuda": "nccl", "xpu": "xccl", "npu": "hccl", "hpu": "hccl"}
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def accelerator_type() -> str | None:
    """Return the type of this machine's accelerator; None if there is none."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        if not accelerator.is_available():
            return None
        found: str = accelerator.current_accelerator().type
        return found
    for name in ("cuda", "xpu"):
        if hasattr(torch, name) and getattr(torch, name).is_available():
            return name
    return "mps" if torch.backends.mps.is_available() else None


def device_module(device: torch.device) -> Any:
    """Return torch's module for the device's type, such as torch.cuda."""
    return torch.get_device_module(device)


def choose_device(world: RankTopology) -> torch.device:
    """Select this rank's accelerator, or the CPU if there is none.

    A rank that sees one device only was given its own (Slurm's --gpus-per-task): `require_own_device` checks that.
    """
    kind = accelerator_type()
    if kind is None:
        return torch.device("cpu")
    module = torch.get_device_module(kind)
    device = torch.device(kind, world.local_rank % max(1, module.device_count()))
    if hasattr(module, "set_device"):  # MPS has one device, and no such function
        module.set_device(device)
    return device


def device_identity(device: torch.device) -> str:
    """Return a text that no other device has, on this machine or another; empty for the CPU, which ranks share."""
    if device.type == "cpu":
        return ""
    module = device_module(device)
    properties = module.get_device_properties(device) if hasattr(module, "get_device_properties") else None
    own = getattr(properties, "uuid", None)
    if own:
        return f"{socket.gethostname()} {device.type} {own}"
    visible = " ".join(os.environ[name] for name in _VISIBLE if name in os.environ)
    return f"{socket.gethostname()} {device.type} {visible} {device.index or 0}"


def require_own_device(identities: list[str]) -> None:
    """Raise BadInput if two ranks would compute on one accelerator: collectives would hang or fail there."""
    seen: dict[str, int] = {}
    for rank, identity in enumerate(identities):
        if identity and identity in seen:
            host, kind, *_ = identity.split()
            raise BadInput(
                f"ranks {seen[identity]} and {rank} share one {kind} device",
                where=host,
                fix="start one rank per device (resources.processes, or torchrun --nproc-per-node), or make more of "
                "them visible (CUDA_VISIBLE_DEVICES)",
            )
        seen[identity] = rank


def collective_backend(device: torch.device) -> str:
    """Return the backends of the process group: gloo for tensors in host memory, the accelerator's own beside it."""
    if device.type == "cpu":
        return "gloo"
    found = _BACKENDS.get(device.type) or getattr(dist.Backend, "default_device_backend_map", {}).get(device.type)
    if not found or found == "gloo":
        raise BadInput(
            f"torch has no collectives for {device.type} devices",
            fix="train with one rank (resources.processes: 1), or on the CPU",
        )
    return f"cpu:gloo,{device.type}:{found}"


def can_pin(device: torch.device) -> bool:
    """Whether copies from page-locked host memory to the device run beside other work."""
    return device.type not in ("cpu", "mps")  # MPS shares the host's memory


def make_event(device: torch.device) -> Any:
    """Create an event of the device's current stream, to `record` and `synchronize`; None where there are none."""
    module = device_module(device)
    return module.Event() if hasattr(module, "Event") else None


def record_event(device: torch.device) -> Any:
    """Record an event after the work queued so far. Where there are no events, wait for that work instead."""
    event = make_event(device)
    if event is None:
        device_module(device).synchronize()
    else:
        event.record()
    return event


def default_generator(device: torch.device) -> torch.Generator | None:
    """Return the generator that random operations on the device use by default; None for the CPU."""
    if device.type == "cpu":
        return None
    module = device_module(device)
    found = getattr(module, "default_generators", None)
    if found:
        return found[device.index or 0]  # type: ignore[no-any-return]
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    raise BadInput(f"torch has no random generators for {device.type} devices", fix="train on the CPU")


class HostCopies:
    """Copies batches to the device on a stream of their own, beside the computation of earlier steps.

    Guarantees: the computation waits for the copies, and memory that it uses is not given to later copies.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._pin = device, can_pin(device)
        module = device_module(device)
        self._stream = module.Stream() if self._pin and hasattr(module, "Stream") else None
        self._module = module

    def __call__(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu" or not self._pin:
            return tensor.to(self._device, non_blocking=True)
        staged = tensor if tensor.is_pinned() else tensor.pin_memory()
        if self._stream is None:
            return staged.to(self._device, non_blocking=True)
        current = self._module.current_stream()
        with self._module.stream(self._stream):
            copied = staged.to(self._device, non_blocking=True)
        current.wait_stream(self._stream)
        copied.record_stream(current)
        return copied


class HostNumbers:
    """Copies numbers of a loss to the host before the update: a non-finite one is never applied.

    Cost: on an accelerator the copy is queued before the backward pass, and the host waits for it after queueing that.
    So the host waits for the forward pass only, while the device runs the backward pass.
    """

    def __init__(self) -> None:
        self._values: Tensor | None = None
        self._ready: Any = None  # event recorded after the copy

    def send(self, *values: Tensor) -> None:
        """Start copying numbers from the device. Call before the backward pass."""
        device = values[0].device
        found = torch.stack([value.detach().reshape(()).float() for value in values])
        if device.type == "cpu":
            self._values = found
            return
        if self._values is None or len(self._values) != len(values):
            self._values = torch.zeros(len(values), pin_memory=can_pin(device))
        self._values.copy_(found, non_blocking=True)
        self._ready = record_event(device)

    def wait(self) -> list[float]:
        """Wait for the numbers and return them. Call after the backward pass."""
        assert self._values is not None
        if self._ready is not None:
            self._ready.synchronize()
        return self._values.tolist()


def small_tensor(values: Sequence[float], device: torch.device) -> Tensor:
    """Make a float32 tensor on the device from numbers of the host, without waiting for the device."""
    made = torch.tensor(values, dtype=torch.float32)
    return (
        made if device.type == "cpu" else (made.pin_memory() if can_pin(device) else made).to(device, non_blocking=True)
    )
