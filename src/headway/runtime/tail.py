"""What rides at the end of the last gradient bucket: everything the ranks must agree on after a step.

head         weight of the batch, whether this rank had one, stop, budget, save and bad-loss flags, names of metrics
metrics      one row a rank: a weight and the logged values times it. Rows are added by each rank for itself, in the
             order of ranks, so that a sum does not depend on where in the buffer its terms have travelled
used         which parameters had a gradient
statistics   running statistics of batch normalisation
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

WEIGHT, PRESENT, STOP, BUDGET, SAVE, BAD, NAMES = range(7)  # slots of the head
HEAD = 7
METRICS = 32  # a weight, and how many logged values can be averaged over ranks


@dataclass(slots=True)
class Agreed:
    """What all ranks know after a reduction."""

    weight: float = 0.0
    stop: bool = False
    budget: bool = False
    save: bool = False
    bad: bool = False
    names: float = 0.0  # the sum of the ranks' digests of what they logged
    metrics: list[float] = field(default_factory=list)


def room(ranks: int, parameters: int, statistics: Sequence[Tensor]) -> int:
    """How many numbers the tail has."""
    return HEAD + ranks * METRICS + parameters + sum(tensor.numel() for tensor in statistics)


class Tail:
    """Views into the end of the last bucket."""

    def __init__(self, flat: Tensor, rank: int, ranks: int, parameters: int, statistics: Sequence[Tensor]) -> None:
        self.head, rest = flat[:HEAD], flat[HEAD:]
        self._metrics, rest = rest[: ranks * METRICS].view(ranks, METRICS), rest[ranks * METRICS :]
        self.used, rest = rest[:parameters], rest[parameters:]
        self.statistics = []
        for tensor in statistics:
            self.statistics.append(rest[: tensor.numel()].view(tensor.shape))
            rest = rest[tensor.numel() :]
        self._rank = rank
        self._count = 0  # of metrics in this step

    def fill(self, weight: float | Tensor, flags: Sequence[Any], metrics: Sequence[Any]) -> None:
        """This rank's part, before it is sent."""
        put(self.head, [weight, *flags])
        self._metrics.zero_()
        put(self._metrics[self._rank], metrics)
        self._count = len(metrics)

    def agreed(self) -> Agreed:
        values = self.head.tolist()
        return Agreed(
            weight=values[WEIGHT],
            stop=values[STOP] > 0,
            budget=values[BUDGET] > 0,
            save=values[SAVE] > 0,
            bad=values[BAD] > 0,
            names=values[NAMES],
            metrics=added(self._metrics, self._count),
        )


def exchange(rank: int, ranks: int, names: float, metrics: Sequence[Any], device: torch.device) -> Agreed:
    """Add up logged values between two steps, to the same bits as if they had ridden on one."""
    flat = torch.zeros(1 + ranks * METRICS, dtype=torch.float32, device=device)
    rows = flat[1:].view(ranks, METRICS)
    flat[0] = names
    put(rows[rank], metrics)
    dist.all_reduce(flat)
    return Agreed(names=float(flat[0]), metrics=added(rows, len(metrics)))


def added(rows: Tensor, count: int) -> list[float]:
    """The columns' sums, term by term in the order of ranks."""
    if not count:
        return []
    totals = [0.0] * count
    for row in rows[:, :count].tolist():
        totals = [total + value for total, value in zip(totals, row, strict=True)]
    return totals


def put(slots: Tensor, values: Sequence[Any]) -> None:
    """Numbers are copied; what is on a device stays there, because reading it would wait for the forward pass."""
    if not values:
        return
    numbers = [0.0 if isinstance(value, Tensor) else value for value in values]
    slots[: len(numbers)].copy_(torch.tensor(numbers), non_blocking=True)
    for slot, value in enumerate(values):
        if isinstance(value, Tensor):
            slots[slot] = value.detach()
