"""One optimizer step: backward, the sum over micro-batches and ranks, clipping, the update.

Losses are sums and weights are counts: the gradient is that of (sum of all losses) / (sum of all weights), however the
batch was cut into ranks and micro-batches. Alone and with one micro-batch, that is one division before the backward
pass and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.errors import BadInput
from headway.runtime.gradients import Agreed, GradientSync

Optimizers = Optimizer | Sequence[Optimizer]


@dataclass(slots=True)
class Request:
    """One call of run.step."""

    loss: Tensor
    optimizers: Sequence[Optimizer]
    weight: float | Tensor = 1.0
    clip: float | None = None
    last: bool = True  # the last micro-batch of its step
    counts: bool = True  # False for a filler


@dataclass(slots=True)
class Wishes:
    """What this rank would like the others to know."""

    stop: bool = False
    budget: bool = False
    save: bool = False
    names: float = 0.0  # a digest of the metrics' names, to see whether all ranks logged the same
    metrics: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """What came of it. `agreed` is None when this rank is alone: then its own wishes are law."""

    stepped: bool
    finite: bool = True
    norm: Tensor | None = None
    agreed: Agreed | None = None


class Alone:
    """One rank: no flat copy, no collective."""

    def __init__(self) -> None:
        self._weight: float | Tensor = 0.0
        self._micro = 0

    def step(self, request: Request, wishes: Wishes) -> Outcome:
        loss, weight = request.loss, request.weight
        finite = is_finite(loss)
        if request.last and not self._micro:
            if not isinstance(weight, Tensor) and weight == 1:
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                (loss / _nonzero(weight)).backward()
        else:
            self._micro += 1
            if request.counts:
                self._weight = self._weight + (weight.detach() if isinstance(weight, Tensor) else weight)
                loss.backward()  # type: ignore[no-untyped-call]
            if not request.last:
                return Outcome(stepped=False, finite=finite)
            self._divide(request.optimizers)
        if not finite:
            zero(request.optimizers)
            return Outcome(stepped=False, finite=False)
        norm = update(request.optimizers, request.clip)
        zero(request.optimizers)
        return Outcome(stepped=True, norm=norm)

    def _divide(self, optimizers: Sequence[Optimizer]) -> None:
        grads = [parameter.grad for parameter in parameters_of(optimizers) if parameter.grad is not None]
        weight = _nonzero(self._weight)
        if isinstance(weight, Tensor):
            torch._foreach_div_(grads, weight.to(grads[0].device))
        else:
            torch._foreach_div_(grads, float(weight))
        self._weight, self._micro = 0.0, 0


class Together:
    """Several ranks: gradients in fixed buckets, agreement in their tail."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._sync: GradientSync | None = None
        self._weight: float | Tensor = 0.0
        self._present = False
        self._checked: set[int] = set()

    def relayout(self) -> None:
        """Called between steps when other parameters may learn than before."""
        parameters = trainable(self._modules)
        if self._sync is not None and not self._sync.fits(parameters):
            self._sync.remove()
            self._sync = None
        if self._sync is None:
            norms = [module for root in self._modules for module in root.modules() if _is_batch_norm(module)]
            self._sync = GradientSync(parameters, norms)

    def step(self, request: Request, wishes: Wishes) -> Outcome:
        if self._sync is None:
            self.relayout()
        sync = self._sync
        assert sync is not None
        self._check(request.optimizers, sync)
        loss = request.loss if request.counts else request.loss * 0
        if request.counts:
            self._present = True
            weight = request.weight
            self._weight = self._weight + (weight.detach() if isinstance(weight, Tensor) else weight)
        if not request.last:
            loss.backward()  # type: ignore[no-untyped-call]
            return Outcome(stepped=False)
        bad = 0.0 if is_finite(loss) else 1.0
        flags = (float(self._present), float(wishes.stop), float(wishes.budget), float(wishes.save), bad, wishes.names)
        sync.arm(self._weight, flags, wishes.metrics)
        loss.backward()  # type: ignore[no-untyped-call]
        sync.reduce()
        self._weight, self._present = 0.0, False
        agreed = sync.agreed()
        norm = update(request.optimizers, request.clip) if not agreed.bad else None
        sync.clear()
        return Outcome(stepped=not agreed.bad, finite=not agreed.bad, norm=norm, agreed=agreed)

    def exchange(self, names: float, metrics: Sequence[Any]) -> Agreed:
        """Between two steps: what would have ridden on the next."""
        assert self._sync is not None
        return self._sync.exchange(names, metrics)

    def _check(self, optimizers: Sequence[Optimizer], sync: GradientSync) -> None:
        for optimizer in optimizers:
            if id(optimizer) in self._checked:
                continue
            known = {id(parameter) for module in self._modules for parameter in module.parameters()}
            if any(id(parameter) not in known for parameter in parameters_of([optimizer])):
                raise BadInput(
                    "the optimizer holds parameters that run.place has not seen: ranks would drift apart",
                    fix="model = run.place(model) before the optimizer is made",
                )
            self._checked.add(id(optimizer))


def trainable(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Each parameter that learns, once, in the order the modules were placed."""
    found: dict[int, nn.Parameter] = {}
    for module in modules:
        for parameter in module.parameters():
            if parameter.requires_grad:
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def parameters_of(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    return [parameter for one in optimizers for group in one.param_groups for parameter in group["params"]]


def update(optimizers: Sequence[Optimizer], clip: float | None) -> Tensor | None:
    """Clip by the norm of all gradients together, and step."""
    norm = None
    if clip is not None:
        norm = nn.utils.clip_grad_norm_(parameters_of(optimizers), clip)
    for optimizer in optimizers:
        optimizer.step()
    return norm


def zero(optimizers: Sequence[Optimizer]) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)


def is_finite(loss: Tensor) -> bool:
    """Read only where it costs no waiting: on the CPU. On a GPU the gradients' norm tells."""
    return loss.device.type != "cpu" or math.isfinite(loss.item())


def _nonzero(weight: Any) -> Any:
    """A batch that weighs nothing has no gradient; dividing by one keeps it so."""
    if isinstance(weight, Tensor):
        return torch.where(weight == 0, torch.ones_like(weight), weight)
    return weight or 1.0


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase)
