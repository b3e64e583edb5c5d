"""Check for non-finite weights, which must not enter a checkpoint, a best pointer or an export.

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

from headway.training.optim import Average

_CHECKED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class _Held:
    """One tensor of a model, and whether it may contain infinity."""

    key: tuple[int, str]  # object id and tensor name, because the tensor itself may be replaced
    name: str
    tensor: Tensor
    infinite: bool  # whether it may contain infinity

    @property
    def trouble(self) -> str | None:
        if bool(torch.isnan(self.tensor).any()):
            return "NaN"
        if not self.infinite and bool(torch.isinf(self.tensor).any()):
            return "infinity"
        return None


class FiniteCheck:
    """Finds non-finite weights and names them."""

    def __init__(self, modules: Sequence[nn.Module], objects: Mapping[str, Any]) -> None:
        self._modules, self._objects = modules, objects
        self._by_design: set[tuple[int, str]] = set()

    @torch.no_grad()
    def accept(self, thing: Any, name: str = "") -> None:
        """Exempt the non-finite tensors that a new object already contains: they are intended."""
        held = list(_held(name, thing))
        if not _all_finite(held):
            self._by_design.update(one.key for one in held if one.trouble)

    @torch.no_grad()
    def trouble(self) -> tuple[str, str] | None:
        """Return the first tensor that must not be saved and what it contains: ("model.head.weight", "NaN")."""
        held = [one for one in self._everything() if one.key not in self._by_design]
        if _all_finite(held):
            return None
        return next(((one.name, found) for one in held if (found := one.trouble)), None)

    def _everything(self) -> Iterator[_Held]:
        seen: set[int] = set()
        named = {id(thing) for thing in self._objects.values()}
        placed = [(type(module).__name__, module) for module in self._modules if id(module) not in named]
        for name, thing in [*self._objects.items(), *placed]:
            for one in _held(name, thing):
                if id(one.tensor) not in seen:
                    seen.add(id(one.tensor))
                    yield one


def _held(name: str, thing: Any) -> Iterator[_Held]:
    if isinstance(thing, Average):
        yield from (_Held((id(thing), key), f"{name}.{key}", each, False) for key, each in thing.weights.items())
    elif isinstance(thing, nn.Module):
        for key, parameter in thing.named_parameters():
            if parameter.dtype in _CHECKED and not nn.parameter.is_lazy(parameter):
                yield _Held((id(thing), key), f"{name}.{key}", parameter, False)
        for key, buffer in thing.named_buffers():
            if buffer.dtype in _CHECKED and not nn.parameter.is_lazy(buffer):
                yield _Held((id(thing), key), f"{name}.{key}", buffer, True)


def _all_finite(held: Sequence[_Held]) -> bool:
    """Fast check by norms. False also for finite values whose sum of squares overflows the type."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for one in held:
        kinds.setdefault((one.tensor.device, one.tensor.dtype), []).append(one.tensor)
    return all(bool(torch.isfinite(torch.stack(torch._foreach_norm(alike))).all()) for alike in kinds.values())
