"""Learning-rate schedules as pure functions of the step, so that resuming needs only the step; and training phases.

schedule = Schedule(optimizer, "cosine", steps=len(loader) * epochs, warmup=500)
run.step(loss, optimizer, scheduler=schedule)

`plateau` is the exception: it lowers the rate when scores stop rising. Call `schedule.record_score(score)` after each
evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.optim import Optimizer

from headway.core.errors import BadInput
from headway.spec.model import Phase

Factor = Callable[[int], float]  # number of the next step, from 0 -> share of the base rate


def constant(warmup: int = 0) -> Factor:
    """Linear warm-up, then constant.

    Args:
        warmup: Steps of the warm-up.

    Returns:
        A function from the number of the next step, from 0, to a share of the base rate.

    Example:
        >>> from headway.training.schedules import constant
        >>> [constant(warmup=4)(step) for step in (0, 3, 100)]
        [0.25, 1.0, 1.0]
    """
    return _after_warmup(warmup, lambda step: 1.0)


def cosine(steps: int, warmup: int = 0, floor: float = 0.0) -> Factor:
    """Linear warm-up, then half a cosine down to `floor` times the base rate.

    Args:
        steps: Total number of steps, warm-up included.
        warmup: Steps of the warm-up.
        floor: Share of the base rate at the end and after it.

    Returns:
        A function from the number of the next step, from 0, to a share of the base rate.

    Example:
        >>> from headway.training.schedules import cosine
        >>> [round(cosine(steps=100)(step), 3) for step in (0, 50, 100)]
        [1.0, 0.5, 0.0]
    """

    def decay(step: int) -> float:
        done = min(1.0, (step - warmup) / max(1, steps - warmup))
        return floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2

    return _after_warmup(warmup, decay)


def linear(steps: int, warmup: int = 0, floor: float = 0.0) -> Factor:
    """Linear warm-up, then linear decay to `floor` times the base rate.

    Args:
        steps: Total number of steps, warm-up included.
        warmup: Steps of the warm-up.
        floor: Share of the base rate at the end and after it.

    Returns:
        A function from the number of the next step, from 0, to a share of the base rate.

    Example:
        >>> from headway.training.schedules import linear
        >>> [linear(steps=100)(step) for step in (0, 50, 100)]
        [1.0, 0.5, 0.0]
    """

    return _after_warmup(warmup, lambda step: max(floor, 1 - (1 - floor) * (step - warmup) / max(1, steps - warmup)))


def _after_warmup(warmup: int, then: Factor) -> Factor:
    """Return linear warm-up for `warmup` steps, followed by `then`."""
    return lambda step: (step + 1) / warmup if step < warmup else then(step)


def noam(width: int, warmup: int = 4000) -> Factor:
    """width^-½ · min(n^-½, n · warmup^-1.5) at the n-th step, counted from 1, as in "Attention Is All You Need".

    Args:
        width: The model's width. Use a base rate of 1, or another factor of this formula.
        warmup: Steps of the linear warm-up.

    Returns:
        A function from the number of the next step, from 0, to a share of the base rate.

    Example:
        >>> from headway.training.schedules import noam
        >>> round(noam(width=512, warmup=4000)(3999), 6)
        0.000699
    """
    return lambda step: width**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)


def inverse_sqrt(warmup: int) -> Factor:
    """Linear warm-up, then decay with the inverse square root of the step.

    Args:
        warmup: Steps of the warm-up, at the end of which the rate is the base rate.

    Returns:
        A function from the number of the next step, from 0, to a share of the base rate.

    Example:
        >>> from headway.training.schedules import inverse_sqrt
        >>> [inverse_sqrt(warmup=100)(step) for step in (49, 99, 399)]
        [0.5, 1.0, 0.5]
    """
    return lambda step: min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def one_cycle(steps: int, rise: float = 0.3, start: float = 1 / 25, end: float = 1e-4 / 25) -> Factor:
    """Half a cosine from `start` times the base rate up to the base rate, then one down to `end` times it.

    Args:
        steps: Total number of steps.
        rise: Share of the steps in which the rate rises.
        start: Share of the base rate at the first step.
        end: Share of the base rate at the last step.

    Returns:
        A function from the number of the next step, from 0, to a share of the base rate.

    Example:
        >>> from headway.training.schedules import one_cycle
        >>> rate = one_cycle(steps=100, rise=0.3)
        >>> round(rate(0), 3), round(rate(29), 3)
        (0.04, 1.0)
    """
    peak = rise * steps - 1

    def between(low: float, high: float, done: float) -> float:
        return high + (low - high) * (1 + math.cos(math.pi * min(1.0, done))) / 2

    def factor(step: int) -> float:
        if step <= peak:
            return between(start, 1.0, step / peak if peak > 0 else 1.0)
        return between(1.0, end, (step - peak) / max(1e-9, steps - 1 - peak))

    return factor


KINDS: dict[str, Callable[..., Factor]] = {
    "constant": constant,
    "cosine": cosine,
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "noam": noam,
    "one_cycle": one_cycle,
    "plateau": constant,
}


class Schedule:
    """Set the learning rate of each parameter group to a share of the group's initial rate.

    Give it to `run.restore` and to `run.step(..., scheduler=schedule)`. `plateau` lowers the rate when scores stop
    rising: call `record_score` after each evaluation.

    Args:
        optimizer: The optimizer whose rates it sets.
        kind: `constant`, `cosine`, `inverse_sqrt`, `linear`, `noam`, `one_cycle` or `plateau`.
        patience: For `plateau`: scores in a row without a new best after which the rate is still kept.
        shrink: For `plateau`: factor by which the rate is lowered.
        **options: Arguments of the function that `kind` names, such as `steps` and `warmup`; `plateau` takes those of
            `constant`.

    Raises:
        BadInput: If no schedule is called `kind`, or it does not take these options.

    Example:
        >>> import torch
        >>> from headway.training.schedules import Schedule
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> schedule = Schedule(optimizer, "linear", steps=10)
        >>> schedule.step()
        >>> round(schedule.lr, 3)
        0.09
    """

    def __init__(
        self, optimizer: Optimizer, kind: str, *, patience: int = 5, shrink: float = 0.1, **options: Any
    ) -> None:
        if kind not in KINDS:
            raise BadInput(f"unknown schedule {kind!r}", fix=f"choose one of {', '.join(KINDS)}")
        try:
            self._factor = KINDS[kind](**options)
        except TypeError as error:
            raise BadInput(f"the schedule {kind!r} does not accept these options: {error}") from None
        self._optimizer, self._patience, self._shrink = optimizer, patience, shrink
        self._falls = kind == "plateau"
        self._bases = [group.setdefault("initial_lr", float(group["lr"])) for group in optimizer.param_groups]
        self._step, self._scale = 0, 1.0
        self._best: float | None = None
        self._since = 0
        self._apply()

    @property
    def lr(self) -> float:
        """The first group's learning rate for the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self) -> None:
        """Advance the schedule after an optimizer step."""
        self._step += 1
        self._apply()

    def record_score(self, score: float) -> bool:
        """Take an evaluation's score; `plateau` lowers the rate when scores stop rising, other kinds ignore it.

        Args:
            score: The score, higher being better.

        Returns:
            True if the rate was lowered.

        Example:
            >>> import torch
            >>> from headway.training.schedules import Schedule
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
            >>> schedule = Schedule(optimizer, "plateau", patience=1)
            >>> [schedule.record_score(score) for score in (0.5, 0.4, 0.4)]
            [False, False, True]
        """
        if not self._falls:
            return False
        if self._best is None or score > self._best:
            self._best, self._since = score, 0
            return False
        self._since += 1
        if self._since <= self._patience:
            return False
        self._scale, self._since = self._scale * self._shrink, 0
        self._apply()
        return True

    def restart(self, lr: float | None = None) -> None:
        """Restart from step 0, for a new phase.

        Args:
            lr: The new base rate of all groups. None: keep theirs.
        """
        if lr is not None:
            self._bases = [lr] * len(self._bases)
        self._step, self._scale, self._best, self._since = 0, 1.0, None, 0
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint.

        Returns:
            Plain values that `load_state_dict` accepts.
        """
        return {
            "step": self._step,
            "scale": self._scale,
            "best": self._best,
            "since": self._since,
            "bases": list(self._bases),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Args:
            state: What `state_dict` returned.
        """
        self._step, self._scale = state["step"], state["scale"]
        self._best, self._since, self._bases = state["best"], state["since"], list(state["bases"])
        self._apply()

    def _apply(self) -> None:
        share = self._factor(self._step) * self._scale
        for group, base in zip(self._optimizer.param_groups, self._bases, strict=True):
            group["lr"] = base * share


# Phases: which parameters train for a number of epochs, and at which rate


def freeze(modules: Iterable[nn.Module], phase: Phase) -> int:
    """Freeze all parameters but those that match the phase's shell patterns. `run.phases` calls it.

    Args:
        modules: The models.
        phase: A phase, whose `train` holds the patterns.

    Returns:
        How many numbers are trainable.

    Raises:
        BadInput: If a pattern matches no parameter.

    Example:
        >>> import torch
        >>> from headway.spec import Phase
        >>> from headway.training.schedules import freeze
        >>> freeze([torch.nn.Linear(3, 2)], Phase(name="head", epochs=1, train=("bias",)))
        2
    """
    names = [(name, parameter) for module in modules for name, parameter in module.named_parameters()]
    for pattern in phase.train:
        if not any(fnmatchcase(name, pattern) for name, _ in names):
            raise BadInput(
                f"phase {phase.name}: no parameter matches {pattern!r}",
                fix=f"the model has {', '.join(sorted({name.partition('.')[0] + '.*' for name, _ in names}))}",
            )
    learning = 0
    for name, parameter in names:
        parameter.requires_grad_(any(fnmatchcase(name, pattern) for pattern in phase.train))
        learning += parameter.numel() if parameter.requires_grad else 0
    return learning


def set_rate(objects: Iterable[Any], lr: float | None) -> None:
    """Set the optimizers to a phase's rate and restart the schedules. `run.phases` calls it at the start of a phase.

    Args:
        objects: Optimizers and schedules; other objects are ignored.
        lr: The phase's rate. None: keep the optimizers' own.

    Example:
        >>> import torch
        >>> from headway.training.schedules import set_rate
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> set_rate([optimizer], lr=0.01)
        >>> optimizer.param_groups[0]["lr"]
        0.01
    """
    items = list(objects)
    if lr is not None:
        for optimizer in items:
            if isinstance(optimizer, Optimizer):
                for group in optimizer.param_groups:
                    group["lr"] = group["initial_lr"] = lr
    for schedule in items:
        if isinstance(schedule, Schedule):
            schedule.restart(lr)
