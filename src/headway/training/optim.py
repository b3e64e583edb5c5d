"""The optimizer step: backward, reduction over micro-batches and ranks, NaN handling, clipping, update. Also averages.

Losses are sums and weights are counts: the gradient is that of sum(losses) / sum(weights), however the batch is split
into ranks and micro-batches. With one rank and one micro-batch, that is one division before the backward pass. With
several ranks, the total weight is known only after the all-reduce of the gradients. So the backward pass divides by the
previous step's total, and a second pass over the gradients corrects them only if this step's total differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.core.errors import BadInput
from headway.training.accumulation import Accumulation, nonzero, parameters_of
from headway.training.devices import HostNumbers
from headway.training.distributed.grad_sync import GradientSync, ReducedFlags


class Average:
    """Exponential moving average of a module's parameters, which often scores better than the parameters themselves.

    Create it with `run.average`, which updates it after every step. The decay starts low, so that the average forgets
    the noisy early steps. Cost: one pass over the weights per step.

    Args:
        model: The module to average.
        decay: Weight of the old average in each update, from 0 up to but not including 1.

    Raises:
        BadInput: If `decay` is out of range.

    Example:
        >>> import torch
        >>> from headway.training.optim import Average
        >>> model = torch.nn.Linear(1, 1)
        >>> average = Average(model, decay=0.99)
        >>> average.update()
        >>> with average.swapped():
        ...     output = model(torch.ones(1, 1))
    """

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise BadInput(f"the decay of an average is {decay}", fix="choose a number of at least 0 and less than 1")
        self._model, self._decay, self._steps = model, decay, 0
        self._shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The averaged weights by parameter name."""
        return self._shadow

    @torch.no_grad()
    def update(self) -> None:
        """Update the average after an optimizer step."""
        self._steps += 1
        decay = min(self._decay, self._steps / (self._steps + 10))
        parameters = [parameter.detach() for parameter in self._model.parameters()]
        torch._foreach_lerp_(list(self._shadow.values()), parameters, 1 - decay)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Context manager: swap the averaged weights into the model, for evaluation and export. Do not train inside it.

        Yields:
            Nothing; the model's own weights are back when the block ends.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self._model.named_parameters():
            mine = self._shadow[name]
            kept = parameter.detach().clone()
            parameter.copy_(mine)
            mine.copy_(kept)

    def state_dict(self) -> dict[str, object]:
        """Return the state for a checkpoint.

        Returns:
            The averaged weights and the number of updates, as `load_state_dict` accepts them.
        """
        return {"steps": self._steps, "weights": dict(self._shadow)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a saved state.

        Args:
            state: What `state_dict` returned.

        Raises:
            BadInput: If it is the average of a model with other parameters.
        """
        weights = state["weights"]
        assert isinstance(weights, Mapping)
        if weights.keys() != self._shadow.keys():
            odd = sorted(weights.keys() ^ self._shadow.keys())
            raise BadInput(f"the saved average belongs to another model: {', '.join(odd[:5])} differ")
        for name, mine in self._shadow.items():
            value = weights[name]
            assert isinstance(value, Tensor)
            mine.copy_(value)
        self._steps = int(str(state["steps"]))


Scaler = torch.amp.GradScaler
_PRECISE = (torch.float32, torch.float64)  # dividing a half-precision loss by a weight is off by up to 0.4 %


@dataclass(slots=True)
class StepRequest:
    """The arguments of one run.step call."""

    loss: Tensor
    optimizers: Sequence[Optimizer]
    weight: float | Tensor = 1.0
    clip: float | None = None
    last: bool = True  # the last micro-batch of its step
    counts: bool = True  # False for a PaddingBatch
    expected_weight: float = 0.0  # total weight of the previous step, which all ranks divide by; 0 if unknown


@dataclass(slots=True)
class StepFlags:
    """Flags and metrics that this rank adds to the gradient all-reduce."""

    stop: bool = False
    budget: bool = False
    save: bool = False
    names: float = 0.0  # a digest of the metric names, to detect ranks that logged different metrics
    metrics: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step. `reduced` is None with a single rank, which acts on its own flags."""

    stepped: bool
    finite: bool = True
    norm: Tensor | None = None
    reduced: ReducedFlags | None = None


_STEPPED, _ACCUMULATED = StepResult(stepped=True), StepResult(stepped=False)


class LocalStepper:
    """The optimizer step of a single rank: no flat buckets, no collective."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.scaler: Scaler | None = None
        self._gradients = Accumulation(modules)
        self._flag = HostNumbers()

    def rebuild_buckets(self) -> None:
        """Rediscover the parameters between steps, when the set of trainable ones may have changed."""
        self._gradients.refresh()

    def clear(self, optimizers: Sequence[Optimizer]) -> None:
        """Clear the gradients of all placed parameters and of those of the optimizers."""
        self._gradients.clear(optimizers)

    def step(self, request: StepRequest, flags: StepFlags) -> StepResult:
        loss, weight, gradients = request.loss, request.weight, self._gradients
        found = nonfinite_loss(loss)  # also with a scaler, which would hide it
        if request.last and not gradients.open:
            if isinstance(found, Tensor):
                self._flag.send(found)
            unweighted = not isinstance(weight, Tensor) and weight == 1
            backward(loss if unweighted else loss / nonzero(weight), self.scaler)
        else:
            part = gradients.resume(request.optimizers)
            found = part.nonfinite = part.nonfinite + found
            if request.last and isinstance(found, Tensor):
                self._flag.send(found)
            if request.counts:
                part.weight = part.weight + (weight.detach() if isinstance(weight, Tensor) else weight)
                backward(loss, self.scaler)
            if not request.last:
                return _ACCUMULATED
            gradients.close(part)
            divide(request.optimizers, part.weight)
        if self._flag.wait()[0] if isinstance(found, Tensor) else found:
            gradients.clear(request.optimizers)
            return StepResult(stepped=False, finite=False)
        norm = update(request.optimizers, request.clip, self.scaler)
        gradients.clear(request.optimizers)
        return _STEPPED if norm is None else StepResult(stepped=True, norm=norm)


class DistributedStepper:
    """The optimizer step of several ranks: gradients reduced in fixed buckets, with flags in the last one's tail."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.scaler: Scaler | None = None
        self._modules = modules
        self._gradients = Accumulation(modules)
        self._sync: GradientSync | None = None
        self._checked: set[int] = set()

    def rebuild_buckets(self) -> None:
        """Rebuild the gradient buckets between steps if the set of trainable parameters has changed."""
        self._gradients.stash()
        self._gradients.refresh()
        parameters = trainable(self._modules)
        if self._sync is not None and not self._sync.fits(parameters):
            self._sync.remove()
            self._sync = None
        if self._sync is None:
            norms = [module for root in self._modules for module in root.modules() if _is_batch_norm(module)]
            self._sync = GradientSync(parameters, norms)

    def clear(self, optimizers: Sequence[Optimizer]) -> None:
        """Clear the gradients of all placed parameters and of those of the optimizers."""
        self._gradients.clear(optimizers)

    def step(self, request: StepRequest, flags: StepFlags) -> StepResult:
        sync = self.buckets_for(request.optimizers)
        part = self._gradients.resume(request.optimizers)
        loss = request.loss if request.counts else request.loss * 0
        if request.counts:
            part.present = True
            weight = request.weight
            part.weight = part.weight + (weight.detach() if isinstance(weight, Tensor) else weight)
        part.nonfinite = part.nonfinite + nonfinite_loss(loss)  # also with a scaler, which would hide it
        if not part.divisor:  # fixed by the first micro-batch: steps of other optimizers in between must not change it
            part.divisor = request.expected_weight if request.expected_weight and loss.dtype in _PRECISE else 1.0
        if not request.last:
            backward(loss, self.scaler, part.divisor)
            return _ACCUMULATED
        control_flags = (float(flags.stop), float(flags.budget), float(flags.save))
        sync.arm(part.weight, (float(part.present), *control_flags, part.nonfinite, flags.names), flags.metrics)
        backward(loss, self.scaler, part.divisor)
        reduced = sync.reduce(part.divisor)
        self._gradients.close(part)
        norm = update(request.optimizers, request.clip, self.scaler) if not reduced.nonfinite else None
        self._gradients.clear(request.optimizers)
        return StepResult(stepped=not reduced.nonfinite, finite=not reduced.nonfinite, norm=norm, reduced=reduced)

    def buckets_for(self, optimizers: Sequence[Optimizer]) -> GradientSync:
        """Return the gradient buckets, rebuilt if parameters were unfrozen since the epoch began."""
        self._check(optimizers)
        if self._sync is None or not self._sync.covers(parameters_of(optimizers)):
            self.rebuild_buckets()
        assert self._sync is not None
        return self._sync

    def _check(self, optimizers: Sequence[Optimizer]) -> None:
        for optimizer in optimizers:
            if id(optimizer) in self._checked:
                continue
            known = {id(parameter) for module in self._modules for parameter in module.parameters()}
            if any(id(parameter) not in known for parameter in parameters_of([optimizer])):
                raise BadInput(
                    "the optimizer has parameters that were not given to run.place: ranks would diverge",
                    fix="call model = run.place(model) before creating the optimizer",
                )
            self._checked.add(id(optimizer))


def trainable(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """List each trainable parameter once, in the order in which the modules were placed."""
    found: dict[int, nn.Parameter] = {}
    for module in modules:
        for parameter in module.parameters():
            if parameter.requires_grad:
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def backward(loss: Tensor, scaler: Scaler | None, divisor: float = 1.0, *, retain_graph: bool = False) -> None:
    """Compute the gradients of loss / divisor. The divisor goes into the initial gradient, so it costs nothing."""
    scaled = loss if scaler is None else scaler.scale(loss)
    first = None if divisor == 1 else torch.full_like(scaled, 1 / divisor)
    scaled.backward(first, retain_graph=retain_graph)  # type: ignore[no-untyped-call]


def update(optimizers: Sequence[Optimizer], clip: float | None, scaler: Scaler | None) -> Tensor | None:
    """Clip by the total norm of all gradients, step the optimizers and return the norm."""
    if scaler is not None:
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
    norm = None if clip is None else nn.utils.clip_grad_norm_(parameters_of(optimizers), clip)
    for optimizer in optimizers:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
    if scaler is not None:
        scaler.update()
    return norm


def divide(optimizers: Sequence[Optimizer], by: float | Tensor) -> None:
    """Divide the accumulated gradients by the total weight of the micro-batches."""
    grads = [parameter.grad for parameter in parameters_of(optimizers) if parameter.grad is not None]
    weight = nonzero(by)
    if isinstance(weight, Tensor) and grads:
        torch._foreach_div_(grads, weight.to(grads[0].device))
    elif grads:
        torch._foreach_div_(grads, float(weight))


def nonfinite_loss(loss: Tensor) -> float | Tensor:
    """Return 1 for a non-finite loss. On a GPU the result stays there: reading it would wait for the forward pass."""
    if loss.device.type == "cpu":
        return 0.0 if math.isfinite(loss.item()) else 1.0
    return (~torch.isfinite(loss.detach())).float()


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase)
