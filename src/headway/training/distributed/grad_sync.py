"""All-reduce gradients in fixed buckets, together with the flags and metrics that the ranks must agree on.

Parameters are grouped, last ones first, into flat buckets of about 25 MB that exist from the first step on. A large
gradient is copied as soon as it is computed, small ones together once their bucket is complete; then the bucket is
reduced while the backward pass still runs. The layout depends on the model alone, so a resumed run adds the same
numbers in the same order (DDP rearranges its buckets after the first step, which changes the sums over three or more
ranks).

On an accelerator the host must not wait for the backward pass of a step before it queues the update. So the flags are
reduced a second time, in host memory: what they depend on is known after the forward pass.

The last bucket ends in control slots (the tail): the batch's weight, stop and save flags, which parameters were used,
metrics to average, and the running statistics of batch normalization, which are averaged so that every rank holds the
same model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.core.errors import BadInput
from headway.training.devices import HostNumbers, small_tensor
from headway.training.step_times import RANKS, TIMES

# Control slots at the end of the last gradient bucket
#
# head         weight of the batch, whether this rank had one, stop, budget, save and bad-loss flags, and a digest of
#              the names of the logged metrics
# metrics      one row per rank: a weight and the logged values times it. Each rank adds the rows itself, in the order
#              of ranks, so that a sum does not depend on the position of its terms in the buffer
# used         which parameters had a gradient
# statistics   running statistics of batch normalization


WEIGHT, PRESENT, STOP, BUDGET, SAVE, NONFINITE, NAMES = range(7)  # slots of the head
HEAD = 7
METRICS = 32  # slots per rank: one weight, the others for logged values to average


@dataclass(slots=True)
class ReducedFlags:
    """Flags and metrics reduced over all ranks."""

    weight: float = 0.0
    stop: bool = False
    budget: bool = False
    save: bool = False
    nonfinite: bool = False
    names: float = 0.0  # the sum of the ranks' digests of the metric names they logged
    metrics: list[Any] = field(default_factory=list)  # numbers; tensors where reading them would wait for the device


def slot_count(ranks: int, parameters: int, statistics: Sequence[Tensor]) -> int:
    """Return the number of control slots."""
    return HEAD + ranks * METRICS + parameters + sum(tensor.numel() for tensor in statistics)


class ControlSlots:
    """Views of the control slots at the end of the last bucket."""

    def __init__(self, flat: Tensor, rank: int, ranks: int, parameters: int, statistics: Sequence[Tensor]) -> None:
        self.head, rest = flat[:HEAD], flat[HEAD:]
        self._metrics, rest = rest[: ranks * METRICS].view(ranks, METRICS), rest[ranks * METRICS :]
        self.used, rest = rest[:parameters], rest[parameters:]
        self.statistics = []
        for tensor in statistics:
            self.statistics.append(rest[: tensor.numel()].view(tensor.shape))
            rest = rest[tensor.numel() :]
        self._rank = rank
        self._count = 0  # number of metrics in this step
        self._mine: list[Any] = []  # this rank's head
        self._numbers = HostNumbers()

    def fill(self, weight: float | Tensor, flags: Sequence[Any], metrics: Sequence[Any]) -> None:
        """Write this rank's values before the reduction."""
        self._mine = [weight, *flags]
        copy_into_slots(self.head, self._mine)
        self._metrics.zero_()
        copy_into_slots(self._metrics[self._rank], metrics)
        self._count = len(metrics)

    def send_to_host(self) -> None:
        """Start copying the device's numbers of the head. They are known before the backward pass."""
        found = [value for value in self._mine if isinstance(value, Tensor)]
        if found:
            self._numbers.send(*found)

    def reduced(self) -> ReducedFlags:
        """Read the reduced slots."""
        return _flags_of(self.head.tolist(), sum_in_rank_order(self._metrics, self._count))

    def reduced_on_host(self) -> ReducedFlags:
        """Reduce the head over the hosts' own backend, which does not wait for the device to finish the step."""
        waited = iter(self._numbers.wait() if any(isinstance(value, Tensor) for value in self._mine) else ())
        head = torch.tensor([next(waited) if isinstance(value, Tensor) else float(value) for value in self._mine])
        dist.all_reduce(head)
        metrics = self._metrics[:, : self._count]
        totals = metrics[0].clone()
        for row in metrics[1:]:
            totals += row
        return _flags_of(head.tolist(), list(totals.unbind()))


def _flags_of(head: Sequence[float], metrics: list[Any]) -> ReducedFlags:
    return ReducedFlags(
        weight=head[WEIGHT],
        stop=head[STOP] > 0,
        budget=head[BUDGET] > 0,
        save=head[SAVE] > 0,
        nonfinite=head[NONFINITE] > 0,
        names=head[NAMES],
        metrics=metrics,
    )


def all_reduce_metrics(
    rank: int, ranks: int, names: float, metrics: Sequence[Any], device: torch.device
) -> ReducedFlags:
    """All-reduce logged values between two steps, bit-identical to sending them with a step's gradients."""
    flat = torch.zeros(1 + ranks * METRICS, dtype=torch.float32, device=device)
    rows = flat[1:].view(ranks, METRICS)
    flat[0] = names
    copy_into_slots(rows[rank], metrics)
    dist.all_reduce(flat)
    return ReducedFlags(names=float(flat[0]), metrics=sum_in_rank_order(rows, len(metrics)))


def sum_in_rank_order(rows: Tensor, count: int) -> list[float]:
    """Sum each column term by term, in the order of ranks."""
    if not count:
        return []
    totals = [0.0] * count
    for row in rows[:, :count].tolist():
        totals = [total + value for total, value in zip(totals, row, strict=True)]
    return totals


def copy_into_slots(slots: Tensor, values: Sequence[Any]) -> None:
    """Copy values into slots. Tensors are copied on their device: reading them would wait for the forward pass."""
    if not values:
        return
    numbers = [0.0 if isinstance(value, Tensor) else value for value in values]
    slots[: len(numbers)].copy_(small_tensor(numbers, slots.device), non_blocking=True)
    for slot, value in enumerate(values):
        if isinstance(value, Tensor):
            slots[slot] = value.detach()


# Gradient buckets

BUCKET_BYTES = 25 << 20
LARGE_BYTES = 64 << 10  # copy larger gradients at once, while they are in the cache; the next one reuses the memory
_MIN_DIVISOR = 1e-30  # smallest divisor: a batch of weight 0 has a gradient of 0, and 0 / 0 would be NaN


@dataclass(slots=True)
class Bucket:
    """A group of parameters and one flat buffer for all their gradients."""

    members: list[int]
    flat: Tensor
    missing: int = 0  # members whose gradient is not computed yet in this backward pass


class GradientSync:
    """Sums gradients over ranks. Create it once the trainable parameters are known, and again when they change."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], norms: Sequence[nn.Module] = (), *, bucket_bytes: int | None = None
    ) -> None:
        self.parameters = list(parameters)
        self._known = {id(parameter) for parameter in self.parameters}
        self._norms = [norm for norm in norms if isinstance(getattr(norm, "running_mean", None), Tensor)]
        rank, ranks, count = dist.get_rank(), dist.get_world_size(), len(self.parameters)
        self._slot_count = slot_count(ranks, count, self._statistics())
        self._buckets, self._views = _buckets(self.parameters, self._slot_count, bucket_bytes or BUCKET_BYTES)
        self._slots = ControlSlots(self._buckets[-1].flat[-self._slot_count :], rank, ranks, count, self._statistics())
        self._bucket_of = [0] * len(self.parameters)
        for number, bucket in enumerate(self._buckets):
            for index in bucket.members:
                self._bucket_of[index] = number
        self._large = [parameter.nbytes >= LARGE_BYTES for parameter in self.parameters]
        self._ready = [False] * len(self.parameters)
        self._armed, self._launched = False, 0
        self._on_host = self.parameters[0].device.type != "cpu"  # reading the slots would wait for the device
        self._pending: list[Any] = []
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._make_hook(index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(self.parameters)
        ]

    def _statistics(self) -> list[Tensor]:
        return [t for norm in self._norms for t in (norm.running_mean, norm.running_var)]  # type: ignore[misc]

    def fits(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Return whether the trainable parameters are still those of this layout."""
        mine = self.parameters
        return len(mine) == len(parameters) and all(a is b for a, b in zip(mine, parameters, strict=True))

    def covers(self, parameters: Iterable[Tensor]) -> bool:
        """Return whether all of `parameters` that require gradients are in this layout."""
        return all(id(parameter) in self._known for parameter in parameters if parameter.requires_grad)

    def remove(self) -> None:
        """Remove the hooks and clear the parameters' gradients."""
        for hook in self._hooks:
            hook.remove()
        for parameter in self.parameters:
            parameter.grad = None

    def arm(self, weight: float | Tensor, flags: Sequence[Any], metrics: Sequence[Any]) -> None:
        """Reduce buckets from now on as they become complete.

        Call before the backward pass of a step's last micro-batch.
        """
        self._slots.fill(weight, flags, metrics)
        if self._on_host:
            self._slots.send_to_host()
        for bucket in self._buckets:
            bucket.missing = len(bucket.members)
        self._ready = [False] * len(self.parameters)
        self._armed, self._launched = True, 0

    def reduce(self, divided_by: float = 1.0) -> ReducedFlags:
        """Reduce the remaining buckets, wait, and divide the gradients by all ranks' weight over `divided_by`.

        Call after the backward pass that followed `arm`.
        """
        self._armed = False
        used = self._fill_missing()
        self._slots.used.copy_(small_tensor(used, self._slots.used.device), non_blocking=True)
        self._pack_statistics()
        while self._launched < len(self._buckets):
            self._start_all_reduce()
        began = TIMES.begin(RANKS)
        for work in self._pending:
            work.wait()
        TIMES.end(RANKS, began)
        self._pending.clear()
        reduced = self._slots.reduced_on_host() if self._on_host else self._slots.reduced()
        self._divide(max(reduced.weight, _MIN_DIVISOR) / divided_by)
        self._unpack_statistics()
        if not all(used):
            self._drop_unused()
        return reduced

    def _divide(self, by: float) -> None:
        if by == 1:
            return
        for bucket in self._buckets:
            payload = bucket.flat if bucket is not self._buckets[-1] else bucket.flat[: -self._slot_count]
            payload.div_(by)

    def _fill_missing(self) -> list[bool]:
        """Fill in gradients not computed in this pass, from earlier micro-batches or with zeros.

        Return which parameters have a gradient.
        """
        used = list(self._ready)
        for bucket in self._buckets:
            if bucket.missing:
                self._fill(bucket)
        for index, arrived in enumerate(self._ready):
            if not arrived:
                parameter, view = self.parameters[index], self._views[index]
                used[index] = parameter.grad is not None
                if parameter.grad is None:
                    view.zero_()
                else:
                    view.copy_(parameter.grad)
                parameter.grad = view
        return used

    def _make_hook(self, index: int) -> Any:
        bucket, last = self._buckets[self._bucket_of[index]], len(self._buckets) - 1
        large, view = self._large[index], self._views[index]

        def hook(parameter: Tensor) -> None:
            if not self._armed or self._ready[index]:  # a recomputed layer may fire its hook twice
                return
            self._ready[index] = True
            if large:
                assert parameter.grad is not None
                view.copy_(parameter.grad.detach())
                parameter.grad = view
            bucket.missing -= 1
            if bucket.missing:
                return
            self._fill(bucket)
            # In order, so that all ranks reduce the same bucket at the same time; the last one waits for its slots.
            while self._launched < last and not self._buckets[self._launched].missing:
                self._start_all_reduce()

        return hook

    @torch.no_grad()
    def _fill(self, bucket: Bucket) -> None:
        """Copy all small gradients of this pass in one call: one at a time would be twice as slow."""
        ready = [index for index in bucket.members if self._ready[index] and not self._large[index]]
        if not ready:
            return
        parameters, views = [self.parameters[index] for index in ready], [self._views[index] for index in ready]
        torch._foreach_copy_(views, [parameter.grad for parameter in parameters])  # type: ignore[misc]
        for parameter, view in zip(parameters, views, strict=True):
            parameter.grad = view

    def _start_all_reduce(self) -> None:
        self._pending.append(dist.all_reduce(self._buckets[self._launched].flat, async_op=True))
        self._launched += 1

    def _drop_unused(self) -> None:
        """Set the gradient of a parameter that no rank used to None: with zeros, weight decay would still apply."""
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
        # Skip frozen layers: their statistics did not change, and averaging equal numbers may be off in the last bit.
        moving = [norm.training for norm in self._norms for _ in range(2)]
        pairs = zip(self._statistics(), self._slots.statistics, moving, strict=True)
        chosen = [(mine, mean) for mine, mean, moved in pairs if moved]
        if chosen:
            torch._foreach_copy_([mine for mine, _ in chosen], [mean for _, mean in chosen])


def _buckets(parameters: Sequence[nn.Parameter], tail: int, bucket_bytes: int) -> tuple[list[Bucket], list[Tensor]]:
    """Group parameters into buckets of one dtype and device each, last parameters first.

    The last bucket is float32 and ends in the control slots (`tail`).
    """
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
    """Return a gradient view with the parameter's strides if they are dense: channels_last stays channels_last."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    if span == parameter.numel():
        return torch.as_strided(flat, parameter.shape, parameter.stride(), start)
    return flat[start : start + parameter.numel()].view(parameter.shape)
