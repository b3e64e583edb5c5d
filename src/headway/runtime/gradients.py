"""Gradients summed over ranks in a layout that never changes, with everything the ranks must agree on riding along.

Parameters are grouped, last ones first, into flat buckets of about 25 MB that exist from the first step on, and every
`grad` is a view into its bucket: nothing is copied. A bucket is reduced while the backward pass still runs. The layout
is a function of the model alone, so a resumed run adds the same numbers in the same order (DDP rearranges its buckets
after the first step, which changes the sums of three or more ranks).

The last bucket ends in a tail: the batch's weight, stop and save flags, which parameters were used, metrics to average,
and the running statistics of batch normalisation, which are averaged so that every rank holds the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.errors import BadInput

BUCKET_BYTES = 25 << 20
WEIGHT, PRESENT, STOP, BUDGET, SAVE, BAD, NAMES = range(7)  # slots of the tail's head
HEAD = 7
METRICS = 32  # a weight, and how many logged values can be averaged over ranks
_LEAST = 1e-30  # a batch that weighs nothing has no gradient: 0 / tiny is 0, 0 / 0 would not be


@dataclass(slots=True)
class Bucket:
    """Some parameters, and one flat buffer for all their gradients."""

    members: list[int]
    flat: Tensor
    missing: int = 0  # members whose gradient has not come yet in this pass


@dataclass(slots=True)
class Agreed:
    """What all ranks know after a reduction."""

    weight: float
    stop: bool
    budget: bool
    save: bool
    bad: bool
    names: float
    metrics: list[float] = field(default_factory=list)


class GradientSync:
    """Sums gradients over ranks. Made once the trainable parameters are known; made anew when they change."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], norms: Sequence[nn.Module] = (), *, bucket_bytes: int | None = None
    ) -> None:
        self.parameters = list(parameters)
        self._norms = [norm for norm in norms if isinstance(getattr(norm, "running_mean", None), Tensor)]
        self._device = self.parameters[0].device
        self._tail = self._make_tail()
        self._buckets, self._views = _buckets(self.parameters, self._tail, bucket_bytes or BUCKET_BYTES)
        self._tail = self._buckets[-1].flat[-self._tail.numel() :]
        self._slots = _slots(self._tail, len(self.parameters), self._statistics())
        self._home = [0] * len(self.parameters)
        for number, bucket in enumerate(self._buckets):
            for index in bucket.members:
                self._home[index] = number
        self._used = [False] * len(self.parameters)
        self._armed, self._launched = False, 0
        self._works: list[Any] = []
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._arrival(index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(self.parameters)
        ]
        self.clear()

    def _make_tail(self) -> Tensor:
        size = HEAD + METRICS + len(self.parameters) + sum(t.numel() for t in self._statistics())
        return torch.zeros(size, dtype=torch.float32, device=self._device)

    def _statistics(self) -> list[Tensor]:
        return [t for norm in self._norms for t in (norm.running_mean, norm.running_var)]  # type: ignore[misc]

    def fits(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether the trainable parameters are still the ones this layout was made for."""
        mine = self.parameters
        return len(mine) == len(parameters) and all(a is b for a, b in zip(mine, parameters, strict=True))

    def remove(self) -> None:
        """Let go of the parameters; their gradients are gone."""
        for hook in self._hooks:
            hook.remove()
        for parameter in self.parameters:
            parameter.grad = None

    def arm(self, weight: float | Tensor, flags: Sequence[Any], metrics: Sequence[Any]) -> None:
        """Before the backward pass of a step's last micro-batch: from here on, full buckets are sent."""
        head = self._slots.head
        values = [weight, *flags, *metrics]
        head.zero_()
        numbers = [0.0 if isinstance(value, Tensor) else value for value in values]
        head[: len(numbers)].copy_(torch.tensor(numbers), non_blocking=True)
        for slot, value in enumerate(values):
            if isinstance(value, Tensor):  # stays on the device: reading it would wait for the forward pass
                head[slot] = value.detach()
        for bucket in self._buckets:
            bucket.missing = len(bucket.members)
        self._armed, self._launched = True, 0

    def reduce(self) -> None:
        """After that pass: send what is left, wait, and divide by the weight of all ranks."""
        self._armed = False
        self._slots.used.copy_(torch.tensor(self._used, dtype=torch.float32))
        self._pack_statistics()
        while self._launched < len(self._buckets):
            self._launch()
        for work in self._works:
            work.wait()
        self._works.clear()
        weight = self._slots.head[WEIGHT].clamp_min(_LEAST)
        for bucket in self._buckets:
            payload = bucket.flat if bucket is not self._buckets[-1] else bucket.flat[: -self._tail.numel()]
            payload.div_(weight.to(payload.dtype))
        self._unpack_statistics()
        self._drop_unused()

    def agreed(self) -> Agreed:
        values = self._slots.head.tolist()
        return Agreed(
            weight=values[WEIGHT],
            stop=values[STOP] > 0,
            budget=values[BUDGET] > 0,
            save=values[SAVE] > 0,
            bad=values[BAD] > 0,
            names=values[NAMES],
            metrics=values[HEAD:],
        )

    def exchange(self, names: float, metrics: Sequence[Any]) -> Agreed:
        """Add up logged values between two steps, to the same bits as if they had ridden on one.

        The whole last bucket is sent, empty but for them: an all-reduce adds in an order that depends on where in its
        buffer a number lies.
        """
        self.arm(0.0, [0.0] * (NAMES - 1) + [names], metrics)
        self._armed = False
        dist.all_reduce(self._buckets[-1].flat)
        agreed = self.agreed()
        self._buckets[-1].flat.zero_()
        return agreed

    def clear(self) -> None:
        """After the optimizer: gradients are zero views again."""
        for bucket in self._buckets:
            bucket.flat.zero_()
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.grad is not view:
                parameter.grad = view
        self._used = [False] * len(self.parameters)

    def _arrival(self, index: int) -> Any:
        def arrived(parameter: Tensor) -> None:
            self._used[index] = True
            view = self._views[index]
            if parameter.grad is not view:  # somebody called zero_grad(): take the gradient back into its bucket
                view.copy_(parameter.grad)  # type: ignore[arg-type]
                parameter.grad = view
            if not self._armed:
                return
            home = self._home[index]
            self._buckets[home].missing -= 1
            # In order, so that all ranks send the same bucket at the same time; the last one waits for its tail.
            while self._launched < len(self._buckets) - 1 and self._buckets[self._launched].missing <= 0:
                self._launch()

        return arrived

    def _launch(self) -> None:
        self._works.append(dist.all_reduce(self._buckets[self._launched].flat, async_op=True))
        self._launched += 1

    def _drop_unused(self) -> None:
        """A parameter that no rank used has no gradient, rather than a zero that would still feed weight decay."""
        if all(self._used):
            return
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


@dataclass(frozen=True, slots=True)
class Slots:
    """Views into the tail."""

    head: Tensor
    used: Tensor
    statistics: list[Tensor]


def _slots(tail: Tensor, parameters: int, statistics: Sequence[Tensor]) -> Slots:
    head, rest = tail[: HEAD + METRICS], tail[HEAD + METRICS :]
    used, rest = rest[:parameters], rest[parameters:]
    views = []
    for tensor in statistics:
        views.append(rest[: tensor.numel()].view(tensor.shape))
        rest = rest[tensor.numel() :]
    return Slots(head=head, used=used, statistics=views)


def _buckets(parameters: Sequence[nn.Parameter], tail: Tensor, bucket_bytes: int) -> tuple[list[Bucket], list[Tensor]]:
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
    if _kind(parameters[groups[-1][0]]) != _kind(tail):
        groups.append([])
    buckets: list[Bucket] = []
    views: dict[int, Tensor] = {}
    for group in groups:
        room = tail.numel() if group is groups[-1] else 0
        like = parameters[group[0]] if group else tail
        flat = torch.zeros(sum(parameters[i].numel() for i in group) + room, dtype=like.dtype, device=like.device)
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
