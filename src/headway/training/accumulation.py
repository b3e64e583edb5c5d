"""Gradients of the placed parameters between run.step calls: cleared after each update, kept apart per optimizer.

A backward pass fills the gradients of every parameter that the loss depends on, including parameters that another
optimizer updates (a generator's loss fills the discriminator's gradients). Guarantees: an optimizer applies the
gradients of its own run.step calls and no others. With micro-batches, the accumulated gradients of one set of
optimizers are set aside while another set runs: references are exchanged, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

_ZERO_GRAD = Optimizer.zero_grad


@dataclass(slots=True)
class Accumulated:
    """The micro-batches that one set of optimizers has accumulated for its next step."""

    optimizers: Sequence[Optimizer]
    weight: float | Tensor = 0.0
    bad: float | Tensor = 0.0  # how many losses were not finite
    present: bool = False  # whether any of them was a batch rather than a PaddingBatch
    divisor: float = 0.0  # divides each of their losses before the backward pass; 0 before the first
    aside: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # parameters and gradients while set aside


class Accumulation:
    """Clears gradients and sets them aside. One per run."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._placed: list[Tensor] = []
        self._known = 0  # how many of the modules `_placed` covers
        self._current: Accumulated | None = None  # the one whose gradients the parameters hold
        self.open: dict[tuple[int, ...], Accumulated] = {}

    def refresh(self) -> None:
        """List the placed parameters again: after a module is placed, and once per epoch in case one was replaced."""
        self._placed = list({id(one): one for module in self._modules for one in module.parameters()}.values())
        self._known = len(self._modules)

    def resume(self, optimizers: Sequence[Optimizer]) -> Accumulated:
        """Put these optimizers' accumulated gradients back in place, ready for the next micro-batch."""
        key = tuple(map(id, optimizers))
        mine = self.open.get(key)
        if mine is None:
            mine = self.open[key] = Accumulated(optimizers)
        if mine is not self._current:
            self.set_aside()
            for parameter, gradient in mine.aside:
                parameter.grad = gradient
            mine.aside = []
            self._current = mine
        return mine

    def set_aside(self) -> None:
        """Set aside the current accumulated gradients. Drop those of parameters that other optimizers update."""
        current, self._current = self._current, None
        if current is not None:
            owned = parameters_of(current.optimizers)
            current.aside = [(parameter, parameter.grad) for parameter in owned if parameter.grad is not None]
            self.clear(current.optimizers)

    def close(self, accumulated: Accumulated) -> None:
        """Forget the accumulated state after the step's last micro-batch, so that the next step starts from zero."""
        del self.open[tuple(map(id, accumulated.optimizers))]
        self._current = None

    def clear(self, optimizers: Sequence[Optimizer]) -> None:
        """Clear the gradients of all placed parameters and of any others that the optimizers hold."""
        if self._known != len(self._modules):
            self.refresh()
        for parameter in self._placed:
            parameter.grad = None
        zero(optimizers)


def parameters_of(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    return [parameter for one in optimizers for group in one.param_groups for parameter in group["params"]]


def zero(optimizers: Sequence[Optimizer]) -> None:
    """Clear gradients. Bypasses torch's zero_grad, whose wrappers cost 20 µs per call, unless a class overrides it."""
    for optimizer in optimizers:
        if type(optimizer).zero_grad is not _ZERO_GRAD:
            optimizer.zero_grad(set_to_none=True)
            continue
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
