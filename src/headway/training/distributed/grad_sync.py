"""Gradients summed over ranks in a layout that never changes, with everything the ranks must agree on riding along.

Parameters are grouped, last ones first, into flat buckets of about 25 MB that exist from the first step on. A large
gradient is copied as soon as it is there, small ones together when all of their bucket have come; then the bucket is
sent while the backward pass still runs. The layout is a function of the model alone, so a resumed run adds the same
numbers in the same order (DDP rearranges its buckets after the first step, which changes the sums of three or more
ranks).

The last bucket ends in a tail: the batch's weight, stop and save flags, which parameters were used, metrics to average,
and the running statistics of batch normalisation, which are averaged so that every rank holds the same model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.core.errors import BadInput

# What rides at the end of the last gradient bucket: everything the ranks must agree on after a step.
#
# head         weight of the batch, whether this rank had one, stop, budget, save and bad-loss flags, names of metrics
# metrics      one row a rank: a weight and the logged values times it. Rows are added by each rank for itself, in the
#              order of ranks, so that a sum does not depend on where in the buffer its terms have travelled
# used         which parameters had a gradient
# statistics   running statistics of batch normalisation


WEIGHT, PRESENT, STOP, BUDGET, SAVE, BAD, NAMES = range(7)  # slots of the head
HEAD = 7
METRICS = 32  # a weight, and how many logged values can be averaged over ranks


@dataclass(slots=True)
class ReducedFlags:
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


class ControlSlots:
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

    def agreed(self) -> ReducedFlags:
        values = self.head.tolist()
        return ReducedFlags(
            weight=values[WEIGHT],
            stop=values[STOP] > 0,
            budget=values[BUDGET] > 0,
            save=values[SAVE] > 0,
            bad=values[BAD] > 0,
            names=values[NAMES],
            metrics=added(self._metrics, self._count),
        )


def exchange(rank: int, ranks: int, names: float, metrics: Sequence[Any], device: torch.device) -> ReducedFlags:
    """Add up logged values between two steps, to the same bits as if they had ridden on one."""
    flat = torch.zeros(1 + ranks * METRICS, dtype=torch.float32, device=device)
    rows = flat[1:].view(ranks, METRICS)
    flat[0] = names
    put(rows[rank], metrics)
    dist.all_reduce(flat)
    return ReducedFlags(names=float(flat[0]), metrics=added(rows, len(metrics)))


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


BUCKET_BYTES = 25 << 20
LARGE_BYTES = 64 << 10  # a gradient that is copied as it comes: still in the cache, and its memory serves the next one
_LEAST = 1e-30  # a batch that weighs nothing has no gradient: 0 / tiny is 0, 0 / 0 would not be


@dataclass(slots=True)
class Bucket:
    """Some parameters, and one flat buffer for all their gradients."""

    members: list[int]
    flat: Tensor
    missing: int = 0  # members whose gradient has not come yet in this pass


class GradientSync:
    """Sums gradients over ranks. Made once the trainable parameters are known; made anew when they change."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], norms: Sequence[nn.Module] = (), *, bucket_bytes: int | None = None
    ) -> None:
        self.parameters = list(parameters)
        self._known = {id(parameter) for parameter in self.parameters}
        self._norms = [norm for norm in norms if isinstance(getattr(norm, "running_mean", None), Tensor)]
        rank, ranks, count = dist.get_rank(), dist.get_world_size(), len(self.parameters)
        self._room = room(ranks, count, self._statistics())
        self._buckets, self._views = _buckets(self.parameters, self._room, bucket_bytes or BUCKET_BYTES)
        self._slots = ControlSlots(self._buckets[-1].flat[-self._room :], rank, ranks, count, self._statistics())
        self._home = [0] * len(self.parameters)
        for number, bucket in enumerate(self._buckets):
            for index in bucket.members:
                self._home[index] = number
        self._large = [parameter.nbytes >= LARGE_BYTES for parameter in self.parameters]
        self._arrived = [False] * len(self.parameters)
        self._armed, self._launched = False, 0
        self._works: list[Any] = []
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._arrival(index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(self.parameters)
        ]

    def _statistics(self) -> list[Tensor]:
        return [t for norm in self._norms for t in (norm.running_mean, norm.running_var)]  # type: ignore[misc]

    def fits(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether the trainable parameters are still the ones this layout was made for."""
        mine = self.parameters
        return len(mine) == len(parameters) and all(a is b for a, b in zip(mine, parameters, strict=True))

    def covers(self, parameters: Iterable[Tensor]) -> bool:
        """Whether every one of them that learns is in this layout."""
        return all(id(parameter) in self._known for parameter in parameters if parameter.requires_grad)

    def remove(self) -> None:
        """Let go of the parameters; their gradients are gone."""
        for hook in self._hooks:
            hook.remove()
        for parameter in self.parameters:
            parameter.grad = None

    def arm(self, weight: float | Tensor, flags: Sequence[Any], metrics: Sequence[Any]) -> None:
        """Before the backward pass of a step's last micro-batch: from here on, full buckets are sent."""
        self._slots.fill(weight, flags, metrics)
        for bucket in self._buckets:
            bucket.missing = len(bucket.members)
        self._arrived = [False] * len(self.parameters)
        self._armed, self._launched = True, 0

    def reduce(self, divided_by: float = 1.0) -> ReducedFlags:
        """After that pass: send what is left, wait, and divide by what is left of the weight of all ranks."""
        self._armed = False
        used = self._complete()
        self._slots.used.copy_(torch.tensor(used, dtype=torch.float32))
        self._pack_statistics()
        while self._launched < len(self._buckets):
            self._launch()
        for work in self._works:
            work.wait()
        self._works.clear()
        agreed = self._slots.agreed()
        self._divide(max(agreed.weight, _LEAST) / divided_by)
        self._unpack_statistics()
        if not all(used):
            self._drop_unused()
        return agreed

    def _divide(self, by: float) -> None:
        if by == 1:
            return
        for bucket in self._buckets:
            payload = bucket.flat if bucket is not self._buckets[-1] else bucket.flat[: -self._room]
            payload.div_(by)

    def _complete(self) -> list[bool]:
        """What did not come in this pass: a gradient of earlier micro-batches, or none at all. Which were used?"""
        used = list(self._arrived)
        for bucket in self._buckets:
            if bucket.missing:
                self._fill(bucket)
        for index, arrived in enumerate(self._arrived):
            if not arrived:
                parameter, view = self.parameters[index], self._views[index]
                used[index] = parameter.grad is not None
                if parameter.grad is None:
                    view.zero_()
                else:
                    view.copy_(parameter.grad)
                parameter.grad = view
        return used

    def _arrival(self, index: int) -> Any:
        home, last = self._buckets[self._home[index]], len(self._buckets) - 1
        large, view = self._large[index], self._views[index]

        def arrived(parameter: Tensor) -> None:
            if not self._armed or self._arrived[index]:  # a recomputed layer may come twice
                return
            self._arrived[index] = True
            if large:
                assert parameter.grad is not None
                view.copy_(parameter.grad.detach())
                parameter.grad = view
            home.missing -= 1
            if home.missing:
                return
            self._fill(home)
            # In order, so that all ranks send the same bucket at the same time; the last one waits for its tail.
            while self._launched < last and not self._buckets[self._launched].missing:
                self._launch()

        return arrived

    @torch.no_grad()
    def _fill(self, bucket: Bucket) -> None:
        """All small gradients that have come in this pass, in one call: by one it would be twice as slow."""
        come = [index for index in bucket.members if self._arrived[index] and not self._large[index]]
        if not come:
            return
        parameters, views = [self.parameters[index] for index in come], [self._views[index] for index in come]
        torch._foreach_copy_(views, [parameter.grad for parameter in parameters])  # type: ignore[misc]
        for parameter, view in zip(parameters, views, strict=True):
            parameter.grad = view

    def _launch(self) -> None:
        self._works.append(dist.all_reduce(self._buckets[self._launched].flat, async_op=True))
        self._launched += 1

    def _drop_unused(self) -> None:
        """A parameter that no rank used has no gradient, rather than a zero that would still feed weight decay."""
        for parameter, count in zip(self.parameters, self._slots.used.tolist(), strict=True):
            if count == 0:
                parameter.grad = None

    def _pack_statistics(self) -> None:
        if not self._norms:
            return
        torch._foreach_copy_(self._slots.statistics, self._statistics())
        torch._foreach_mul_(self._slots.statistics, self._slots.head[PRESENT])

    def _unpack_statistics(self) -> None:
        if not self._norms:
            return
        torch._foreach_div_(self._slots.statistics, self._slots.head[PRESENT].clamp_min(1))
        # A frozen layer's statistics did not move, and an average of equal numbers may be off in the last bit.
        moving = [norm.training for norm in self._norms for _ in range(2)]
        pairs = zip(self._statistics(), self._slots.statistics, moving, strict=True)
        chosen = [(mine, mean) for mine, mean, moved in pairs if moved]
        if chosen:
            torch._foreach_copy_([mine for mine, _ in chosen], [mean for _, mean in chosen])


def _buckets(parameters: Sequence[nn.Parameter], tail: int, bucket_bytes: int) -> tuple[list[Bucket], list[Tensor]]:
    """Buckets of one dtype and device each, last parameters first; the tail closes the last one, which is float32."""
    groups: list[list[int]] = []
    size = 0
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        alike = groups and _kind(parameters[groups[-1][0]]) == _kind(parameter)
        if not alike or size + parameter.nbytes > bucket_bytes:
            groups.append([])
            size = 0
        groups[-1].append(index)
        size += parameter.nbytes
    device = parameters[0].device
    if _kind(parameters[groups[-1][0]]) != (torch.float32, device):
        groups.append([])
    buckets: list[Bucket] = []
    views: dict[int, Tensor] = {}
    for group in groups:
        size = sum(parameters[i].numel() for i in group) + (tail if group is groups[-1] else 0)
        dtype, where = _kind(parameters[group[0]]) if group else (torch.float32, device)
        flat = torch.zeros(size, dtype=dtype, device=where)
        start = 0
        for index in group:
            parameter = parameters[index]
            if parameter.layout is not torch.strided:
                raise BadInput("sparse parameters cannot be reduced", fix="use sparse=False")
            views[index] = _view(flat, start, parameter)
            start += parameter.numel()
        buckets.append(Bucket(members=group, flat=flat))
    return buckets, [views[index] for index in range(len(parameters))]


def _kind(tensor: Tensor) -> tuple[torch.dtype, torch.device]:
    return tensor.dtype, tensor.device


def _view(flat: Tensor, start: int, parameter: Tensor) -> Tensor:
    """A gradient with the parameter's own strides where they are dense: channels_last stays channels_last."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    if span == parameter.numel():
        return torch.as_strided(flat, parameter.shape, parameter.stride(), start)
    return flat[start : start + parameter.numel()].view(parameter.shape)
