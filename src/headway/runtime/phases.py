"""Phases as data: which parameters learn, how fast, and what the best checkpoint is called, for a stretch of epochs."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.optim import Optimizer

from headway.errors import BadInput
from headway.runtime.schedules import Schedule
from headway.spec.model import Phase


def freeze(modules: Iterable[nn.Module], phase: Phase) -> int:
    """Let only the parameters learn that the phase names, by patterns as in a shell; returns how many learn."""
    names = [(name, parameter) for module in modules for name, parameter in module.named_parameters()]
    for pattern in phase.train:
        if not any(fnmatchcase(name, pattern) for name, _ in names):
            raise BadInput(
                f"phase {phase.name}: no parameter is called {pattern!r}",
                fix=f"the model has {', '.join(sorted({name.partition('.')[0] + '.*' for name, _ in names}))}",
            )
    learning = 0
    for name, parameter in names:
        parameter.requires_grad_(any(fnmatchcase(name, pattern) for pattern in phase.train))
        learning += parameter.numel() if parameter.requires_grad else 0
    return learning


def set_rate(objects: Iterable[Any], lr: float | None) -> None:
    """At a phase's beginning: schedules start again, and everything that learns does so at the phase's rate."""
    things = list(objects)
    if lr is not None:
        for optimizer in things:
            if isinstance(optimizer, Optimizer):
                for group in optimizer.param_groups:
                    group["lr"] = group["initial_lr"] = lr
    for schedule in things:
        if isinstance(schedule, Schedule):
            schedule.restart(lr)
