"""run.backward and run.update: gradients add up as in PyTorch until an update applies them.

For loops that run.step cannot express: optimizers that take a closure (LBFGS, SAM), several losses per update,
accumulation by hand. A backward pass adds to the gradients and divides nothing. An update averages the gradients of its
own optimizers' parameters over ranks, applies them and clears them; gradients of other parameters stay.

Guarantees: a checkpoint is taken only where no gradients wait for an update, because gradients are not saved. At the
end of a loop body without waiting gradients all of them are cleared, so that a resumed run has the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.core.errors import BadInput, RunFailed
from headway.training.accumulation import parameters_of, zero
from headway.training.devices import HostNumbers
from headway.training.distributed.grad_sync import GradientSync, ReducedFlags
from headway.training.distributed.process_group import ProcessGroup
from headway.training.optim import (
    DistributedStepper,
    LocalStepper,
    StepFlags,
    StepResult,
    backward,
    nonfinite_loss,
    update,
)

_NO_FLAGS = StepFlags()


class ManualUpdates:
    """The gradients between run.backward and run.update. One per run."""

    def __init__(self, stepper: LocalStepper | DistributedStepper, group: ProcessGroup) -> None:
        self._stepper, self._group = stepper, group
        self.pending = False  # gradients wait for an update
        self._used = False  # in this loop body
        self._weights: list[float] = []  # share of every loop body since the last update; 0 for a PaddingBatch
        self._nonfinite: float | Tensor = 0.0
        self._numbers = HostNumbers()

    @property
    def bodies(self) -> int:
        """Loop bodies since the last update, each with random numbers of its own."""
        return len(self._weights) if self.pending else 0

    def begin_body(self, share: float) -> None:
        if not self.pending:
            self._weights.clear()
            self._nonfinite = 0.0  # not after an update: another optimizer may follow it with the same loss
        self._weights.append(share)

    def end_body(self) -> None:
        if self._used and not self.pending:
            self._stepper.clear(())
        self._used = False

    def backward(self, loss: Tensor, share: float, *, retain_graph: bool) -> None:
        """Add the gradient of the loss, times this part's share of the batch."""
        self._nonfinite = self._nonfinite + nonfinite_loss(loss)  # also with a scaler, which would hide it
        if isinstance(self._nonfinite, Tensor):
            self._numbers.send(self._nonfinite)
        backward(loss if share == 1 else loss * share, self._stepper.scaler, retain_graph=retain_graph)
        self.pending = self._used = True

    def update(
        self,
        optimizers: Sequence[Optimizer],
        clip: float | None,
        closure: Callable[[], Any] | None,
        flags: StepFlags,
    ) -> StepResult:
        """Average over ranks, clip and apply the gradients of these optimizers, and clear them."""
        if not self.pending and closure is None and not _have_gradients(optimizers):
            raise BadInput("run.update has no gradients to apply", fix="call run.backward(loss) before it")
        if closure is not None:
            return self._update_with(closure, optimizers, clip, flags)
        reduced = self._reduce(optimizers, flags)
        finite = not self._is_nonfinite(reduced)
        norm = update(optimizers, clip, self._stepper.scaler) if finite else None
        self._done(optimizers)
        return StepResult(stepped=finite, finite=finite, norm=norm, reduced=reduced)

    def require_none(self, where: str) -> None:
        """Raise BadInput if gradients wait for an update, where they would be lost or mixed with others."""
        if self.pending:
            raise BadInput(
                f"gradients of run.backward wait for run.update {where}",
                fix="call run.update(optimizer) before, also after an epoch's last batch",
            )

    def _update_with(
        self, closure: Callable[[], Any], optimizers: Sequence[Optimizer], clip: float | None, flags: StepFlags
    ) -> StepResult:
        """Let the optimizer call the closure as often as it needs; every call leaves gradients averaged over ranks."""
        if self._stepper.scaler is not None or len(optimizers) != 1:
            raise BadInput("closure= needs one optimizer, and precision fp32 or bf16", fix="set precision: bf16")
        first: list[ReducedFlags | None] = []

        def average() -> None:
            reduced = self._reduce(optimizers, _NO_FLAGS if first else flags)
            first.append(reduced)
            if self._is_nonfinite(reduced):
                raise RunFailed("the loss is not finite", where="in the closure of run.update", fix="clip gradients")
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters_of(optimizers), clip)

        def evaluate() -> Any:
            with torch.enable_grad():
                loss = closure()
            average()
            return self._mean(loss)

        if self.pending:
            average()
        optimizers[0].step(evaluate)
        self._done(optimizers)
        return StepResult(stepped=True, reduced=first[0] if first else None)

    def _mean(self, loss: Any) -> Any:
        """Return the mean loss over ranks: a line search must decide the same on all of them."""
        if self._group.world.size == 1 or loss is None:
            return loss
        weight = self._weight
        total, count = self._group.all_reduce_sums([float(loss) * weight, weight])
        return torch.tensor(total / max(count, 1e-30), device=self._group.device)

    @property
    def _weight(self) -> float:
        return sum(self._weights) / len(self._weights) if self._weights else 1.0

    def _reduce(self, optimizers: Sequence[Optimizer], flags: StepFlags) -> ReducedFlags | None:
        """Average the gradients of the optimizers' parameters over ranks; those of others stay as they are."""
        if not isinstance(self._stepper, DistributedStepper):
            return None
        sync = self._stepper.buckets_for(optimizers)
        others = _take_others(sync, optimizers)
        control = (float(flags.stop), float(flags.budget), float(flags.save))
        head = (float(self._weight > 0), *control, self._nonfinite, flags.names)
        sync.arm(self._weight, head, flags.metrics)
        reduced = sync.reduce()
        for parameter, gradient in others:
            parameter.grad = gradient
        return reduced

    def _is_nonfinite(self, reduced: ReducedFlags | None) -> bool:
        if reduced is not None:
            return reduced.nonfinite
        return self._numbers.wait()[0] > 0 if isinstance(self._nonfinite, Tensor) else bool(self._nonfinite)

    def _done(self, optimizers: Sequence[Optimizer]) -> None:
        zero(optimizers)
        self.pending = False


def _have_gradients(optimizers: Sequence[Optimizer]) -> bool:
    """Whether an earlier loss has left gradients for these: one loss, and an update of each of its optimizers."""
    return any(parameter.grad is not None for parameter in parameters_of(optimizers))


def _take_others(sync: GradientSync, optimizers: Sequence[Optimizer]) -> list[tuple[Tensor, Tensor | None]]:
    """Remove and return the gradients of parameters that other optimizers update."""
    owned = {id(parameter) for parameter in parameters_of(optimizers)}
    others: list[tuple[Tensor, Tensor | None]] = [
        (parameter, parameter.grad) for parameter in sync.parameters if id(parameter) not in owned
    ]
    for parameter, _ in others:
        parameter.grad = None
    return others
