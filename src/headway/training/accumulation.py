"""The gradients of placed parameters between calls of run.step: cleared after an update, kept apart before it.

The backward pass of one loss fills the gradients of every parameter that it depends on, also of parameters that another
optimizer updates (a generator's loss fills the discriminator's gradients). Guarantees: an optimizer is given the
gradients of its own run.step calls and of no other. With micro-batches, the gradients that one set of optimizers has
accumulated are set aside while another set has its turn: references change hands, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

_ZERO_GRAD = Optimizer.zero_grad


@dataclass(slots=True)
class Accumulated:
    """The micro-batches so far of one step of one set of optimizers."""

    optimizers: Sequence[Optimizer]
    weight: float | Tensor = 0.0
    bad: float | Tensor = 0.0  # how many of the losses were not finite
    present: bool = False  # whether any of them was a batch rather than a filler
    divisor: float = 0.0  # by which all their losses are divided before the backward pass; 0 before the first
    aside: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # parameters and gradients, out of turn


class Accumulation:
    """Clears and sets aside gradients. One per run."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._placed: list[Tensor] = []
        self._known = 0  # how many of the modules are among them
        self._current: Accumulated | None = None  # whose gradients the parameters hold
        self.open: dict[tuple[int, ...], Accumulated] = {}

    def refresh(self) -> None:
        """Find the placed parameters: when a module was placed, and once an epoch in case somebody replaced one."""
        self._placed = list({id(one): one for module in self._modules for one in module.parameters()}.values())
        self._known = len(self._modules)

    def resume(self, optimizers: Sequence[Optimizer]) -> Accumulated:
        """The accumulated gradients of these optimizers back in place, ready for the next micro-batch."""
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
        """Put away the current accumulated gradients. Those of parameters of other optimizers are dropped."""
        current, self._current = self._current, None
        if current is not None:
            owned = parameters_of(current.optimizers)
            current.aside = [(parameter, parameter.grad) for parameter in owned if parameter.grad is not None]
            self.clear(current.optimizers)

    def close(self, accumulated: Accumulated) -> None:
        """The step's last micro-batch is in: the next one starts afresh."""
        del self.open[tuple(map(id, accumulated.optimizers))]
        self._current = None

    def clear(self, optimizers: Sequence[Optimizer]) -> None:
        """No gradients: of placed parameters, whoever updates them, and of what else the optimizers hold."""
        if self._known != len(self._modules):
            self.refresh()
        for parameter in self._placed:
            parameter.grad = None
        zero(optimizers)


def parameters_of(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    return [parameter for one in optimizers for group in one.param_groups for parameter in group["params"]]


def zero(optimizers: Sequence[Optimizer]) -> None:
    """No gradients. By hand where the class has nothing of its own to do then: torch's wrappers cost 20 µs a call."""
    for optimizer in optimizers:
        if type(optimizer).zero_grad is not _ZERO_GRAD:
            optimizer.zero_grad(set_to_none=True)
            continue
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
