"""Gradients of the placed parameters between run.step calls: cleared after each update, kept apart per optimizer.

A backward pass fills the gradients of every parameter that the loss depends on, including parameters that another
optimizer updates (a generator's loss fills the discriminator's gradients). Guarantees: an optimizer applies the
gradients of its own run.step calls and no others. With micro-batches, the accumulated gradients of one set of
optimizers are set aside while another set runs: references are exchanged, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.core.errors import BadInput

_ZERO_GRAD = Optimizer.zero_grad


@dataclass(slots=True)
class Accumulated:
    """The micro-batches that one set of optimizers has accumulated for its next step."""

    optimizers: Sequence[Optimizer]
    weight: float | Tensor = 0.0
    nonfinite: float | Tensor = 0.0  # how many losses were not finite
    present: bool = False  # whether any of them was a batch rather than a PaddingBatch
    divisor: float = 0.0  # divides each of their losses before the backward pass; 0 before the first
    stashed: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # parameters and gradients while set aside


class Accumulation:
    """Clears gradients and sets them aside. One per run."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._placed: list[Tensor] = []
        self._listed_modules = 0  # how many of the modules `_placed` covers
        self._current: Accumulated | None = None  # the one whose gradients the parameters hold
        self.open: dict[tuple[int, ...], Accumulated] = {}

    def refresh(self) -> None:
        """List the placed parameters again: after a module is placed, and once per epoch in case one was replaced."""
        self._placed = list(
            {id(parameter): parameter for module in self._modules for parameter in module.parameters()}.values()
        )
        self._listed_modules = len(self._modules)

    def resume(self, optimizers: Sequence[Optimizer]) -> Accumulated:
        """Put these optimizers' accumulated gradients back in place, ready for the next micro-batch."""
        key = tuple(map(id, optimizers))
        state = self.open.get(key)
        if state is None:
            state = self.open[key] = Accumulated(optimizers)
        if state is not self._current:
            self.stash()
            for parameter, gradient in state.stashed:
                parameter.grad = gradient
            state.stashed = []
            self._current = state
        return state

    def stash(self) -> None:
        """Set aside the current accumulated gradients. Drop those of parameters that other optimizers update."""
        current, self._current = self._current, None
        if current is not None:
            owned = parameters_of(current.optimizers)
            current.stashed = [(parameter, parameter.grad) for parameter in owned if parameter.grad is not None]
            self.clear(current.optimizers)

    def close(self, accumulated: Accumulated) -> None:
        """Forget the accumulated state after the step's last micro-batch, so that the next step starts from zero."""
        del self.open[tuple(map(id, accumulated.optimizers))]
        self._current = None

    def clear(self, optimizers: Sequence[Optimizer]) -> None:
        """Clear the gradients of all placed parameters and of any others that the optimizers hold."""
        if self._listed_modules != len(self._modules):
            self.refresh()
        for parameter in self._placed:
            parameter.grad = None
        zero(optimizers)


def parameters_of(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    return [parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]]


def zero(optimizers: Sequence[Optimizer]) -> None:
    """Clear gradients. Bypasses torch's zero_grad, whose wrappers cost 20 µs per call, unless a class overrides it."""
    for optimizer in optimizers:
        if type(optimizer).zero_grad is not _ZERO_GRAD:
            optimizer.zero_grad(set_to_none=True)
            continue
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def nonzero(weight: Any) -> Any:
    """Replace a weight of 0 by 1: the gradient of such a batch is zero and stays zero."""
    if isinstance(weight, Tensor):
        return torch.where(weight == 0, torch.ones_like(weight), weight)
    return weight or 1.0


# Out-of-memory handling: a hint for the user, and on request a retry with more micro-batches.
#
# `accumulate: auto` in the job (or HEADWAY_ACCUMULATE=auto) starts with whole batches. A rank that runs out of
# memory reports it to its supervisor, which restarts the ranks with twice as many micro-batches. The global batch is
# unchanged, and so is training but for rounding: sums are added in another order.


AUTO, ACCUMULATE_VARIABLE = "auto", "HEADWAY_ACCUMULATE"
MICRO_BATCHES_VARIABLE = (
    "HEADWAY_PARTS"  # set by the supervisor: the number of micro-batches that earlier attempts arrived at
)
MAX_MICRO_BATCHES = 256  # micro-batches; if that is not enough, the batch size is not the cause


class MicroBatching:
    """The number of micro-batches per rank, and whether it may grow after an out-of-memory error."""

    def __init__(self, config: Mapping[str, Any], env: Mapping[str, str]) -> None:
        setting = env.get(ACCUMULATE_VARIABLE) or config.get("accumulate", 1)
        self.automatic = setting == AUTO
        try:
            self.count = int(env.get(MICRO_BATCHES_VARIABLE, 1)) if self.automatic else int(setting)
        except (TypeError, ValueError):
            raise BadInput(
                f"accumulate: {setting} is not a number of micro-batches", fix="1, 2, 4, … or auto"
            ) from None
        if self.count < 1:
            raise BadInput(f"accumulate: {setting} is less than one micro-batch", fix="1, 2, 4, … or auto")

    def next_count(self, error: BaseException) -> int | None:
        """Return how many micro-batches to try after this error, or None if more would not help or are not allowed."""
        if not self.automatic or not is_out_of_memory(error) or self.count * 2 > MAX_MICRO_BATCHES:
            return None
        return self.count * 2


def is_out_of_memory(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text


def out_of_memory_hint(error: BaseException) -> str:
    """Return what to type after an out-of-memory error; empty for any other error."""
    if not is_out_of_memory(error):
        return ""
    return (
        "memory ran out. fix: --set accumulate=2 splits each batch in two and changes nothing else "
        "(4, 8, … if that is not enough); or lower config.batch_size, or use precision=bf16"
    )
