"""Handling of non-finite losses (found by `optim.nonfinite_loss`), and the check of weights before they are saved.

Guarantees: parameters and their averages contain neither NaN nor infinity; buffers contain no NaN. Infinity in a buffer
is legitimate (attention masks, running minima), and so is any value that was there when the model was made. Optimizer
state is not checked: a NaN moment makes its parameter NaN in the same step.
Cost: one pass over the weights, about a sixth of the time to copy them; on a GPU it waits for the queued work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.core.errors import BadInput, RunFailed
from headway.training.optim import Average

# Non-finite losses


MAX_CONSECUTIVE_BAD = 10  # bad batches in a row; after more than that, the data is not the cause


class NanGuard:
    """Handles non-finite losses before they reach the weights: `stop` fails the run, `skip` leaves the batch out.

    With `skip`, buffers are copied before each step: when the loss is known, the forward pass has already put the bad
    batch into the statistics of batch normalisation.
    """

    def __init__(self, policy: str, modules: Sequence[nn.Module]) -> None:
        if policy not in ("stop", "skip"):
            raise BadInput(f"nan: {policy} is not a policy", fix="write config: {nan: stop} or config: {nan: skip}")
        self.skips = policy == "skip"
        self._modules = modules
        self._saved_buffers: list[Tensor] = []
        self._consecutive = 0

    def before_step(self) -> None:
        """Save the buffers that a bad forward pass would corrupt."""
        if not self.skips:
            return
        buffers = self._buffers()
        if len(self._saved_buffers) != len(buffers):
            self._saved_buffers = [torch.empty_like(buffer) for buffer in buffers]
        if buffers:
            torch._foreach_copy_(self._saved_buffers, buffers)

    def record_finite(self) -> None:
        self._consecutive = 0

    def handle_nonfinite(self, where: str, what: str) -> None:
        """Restore the buffers so that training can continue, or raise RunFailed."""
        self._consecutive += 1
        if not self.skips or self._consecutive > MAX_CONSECUTIVE_BAD:
            many = f", {self._consecutive} batches in a row" if self.skips else ""
            raise RunFailed(
                f"the loss is not finite{many}: {what}",
                where=where,
                fix="lower the learning rate, clip gradients (clip=1.0), or skip such batches (config: {nan: skip})",
            )
        if self._saved_buffers:
            torch._foreach_copy_(self._buffers(), self._saved_buffers)

    def _buffers(self) -> list[Tensor]:
        return [buffer for module in self._modules for buffer in module.buffers()]


# Non-finite weights

_CHECKED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class _NamedTensor:
    """One tensor of a model, and whether it may contain infinity."""

    key: tuple[int, str]  # object id and tensor name, because the tensor itself may be replaced
    name: str
    tensor: Tensor
    infinite: bool  # whether it may contain infinity

    @property
    def nonfinite_kind(self) -> str | None:
        if bool(torch.isnan(self.tensor).any()):
            return "NaN"
        if not self.infinite and bool(torch.isinf(self.tensor).any()):
            return "infinity"
        return None


class WeightCheck:
    """Finds non-finite weights and names them."""

    def __init__(self, modules: Sequence[nn.Module], objects: Mapping[str, Any]) -> None:
        self._modules, self._objects = modules, objects
        self._exempt: set[tuple[int, str]] = set()

    @torch.no_grad()
    def exempt_existing(self, obj: Any, name: str = "") -> None:
        """Exempt the non-finite tensors that a new object already contains: they are intended."""
        tensors = list(_tensors_of(name, obj))
        if not _all_finite(tensors):
            self._exempt.update(named.key for named in tensors if named.nonfinite_kind)

    @torch.no_grad()
    def find_nonfinite(self) -> tuple[str, str] | None:
        """Return the first tensor that must not be saved and what it contains: ("model.head.weight", "NaN")."""
        tensors = [named for named in self._all_tensors() if named.key not in self._exempt]
        if _all_finite(tensors):
            return None
        return next(((one.name, found) for one in tensors if (found := one.nonfinite_kind)), None)

    def _all_tensors(self) -> Iterator[_NamedTensor]:
        seen: set[int] = set()
        named = {id(obj) for obj in self._objects.values()}
        modules = [(type(module).__name__, module) for module in self._modules if id(module) not in named]
        for name, thing in [*self._objects.items(), *modules]:
            for named_tensor in _tensors_of(name, thing):
                if id(named_tensor.tensor) not in seen:
                    seen.add(id(named_tensor.tensor))
                    yield named_tensor


def _tensors_of(name: str, obj: Any) -> Iterator[_NamedTensor]:
    if isinstance(obj, Average):
        yield from (_NamedTensor((id(obj), key), f"{name}.{key}", tensor, False) for key, tensor in obj.weights.items())
    elif isinstance(obj, nn.Module):
        for key, parameter in obj.named_parameters():
            if parameter.dtype in _CHECKED and not nn.parameter.is_lazy(parameter):
                yield _NamedTensor((id(obj), key), f"{name}.{key}", parameter, False)
        for key, buffer in obj.named_buffers():
            if buffer.dtype in _CHECKED and not nn.parameter.is_lazy(buffer):
                yield _NamedTensor((id(obj), key), f"{name}.{key}", buffer, True)


def _all_finite(tensors: Sequence[_NamedTensor]) -> bool:
    """Fast check by norms. False also for finite values whose sum of squares overflows the type."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for named in tensors:
        groups.setdefault((named.tensor.device, named.tensor.dtype), []).append(named.tensor)
    return all(bool(torch.isfinite(torch.stack(torch._foreach_norm(group))).all()) for group in groups.values())
