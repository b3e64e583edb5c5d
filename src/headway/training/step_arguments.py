"""The two forms of run.step: a mean loss as PyTorch users write it, or a sum with its weight, asked for by name.

A mean over this rank's part of a batch is multiplied by that part's share, so that parts of different sizes (ranks,
micro-batches, an incomplete last batch) give the mean over the whole batch. A share of 1 changes no bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from torch import Tensor
from torch.optim import Optimizer

from headway.core.errors import BadInput

Optimizers = Optimizer | Sequence[Optimizer]
FORMS = "run.step(loss, optimizer) for a mean, or run.step(optimizer, loss_sum=loss, weight=count) for a sum"


def read_step_arguments(
    loss: Any, optimizer: Any, loss_sum: Tensor | None, weight: float | Tensor | None, share: float
) -> tuple[Tensor, tuple[Optimizer, ...], float | Tensor]:
    """Return the loss as a sum, the optimizers, and the weight to divide by. Raises BadInput unless it is one form.

    `share` is the size of this rank's part of the batch relative to an equal part, which weighs a mean.
    """
    if loss_sum is not None:
        if isinstance(loss, Tensor):
            _refuse("a loss and loss_sum=")
        if weight is None:
            _refuse("loss_sum= without weight=, the number of samples or tokens that it is a sum of")
        return loss_sum, read_optimizers(optimizer if loss is None else loss), weight
    if weight is not None:
        _refuse("a loss together with weight=, which does not say whether the loss is a mean or a sum")
    if not isinstance(loss, Tensor):
        _refuse("no loss")
    return loss if share == 1 else loss * share, read_optimizers(optimizer), share


def read_optimizers(given: Any) -> tuple[Optimizer, ...]:
    """Return one optimizer or several as a tuple. Raises BadInput for anything else."""
    found = (given,) if isinstance(given, Optimizer) else tuple(given) if isinstance(given, Sequence) else ()
    if not found or not all(hasattr(one, "param_groups") for one in found):
        raise BadInput("no optimizer was given", fix="pass an optimizer of torch.optim, or a list of them")
    return found


def _refuse(what: str) -> NoReturn:
    raise BadInput(f"run.step was given {what}", fix=f"call {FORMS}")
