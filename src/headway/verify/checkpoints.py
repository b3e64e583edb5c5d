"""Two runs' checkpoints, tensor by tensor and to the bit. Needs torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headway.runtime.encoding import flatten
from headway.runtime.restore import Archive
from headway.storage import open_store
from headway.verify.findings import Compared, Difference


def steps_of(url: str) -> list[int]:
    """The steps of a run's checkpoints, oldest first."""
    return [kept.step for kept in Archive(open_store(url)).recorded()]


def compare(one: str, other: str) -> Compared:
    """All checkpoints that both runs have; the last in full."""
    steps = sorted(set(steps_of(one)) & set(steps_of(other)))
    ours, theirs = Archive(open_store(one)), Archive(open_store(other))
    first: Difference | None = None
    found: list[Difference] = []
    tensors = 0
    for step in steps:
        if first is not None and step != steps[-1]:
            continue
        mine, its = ours.load(step).state, theirs.load(step).state
        found = list(differences(mine, its, step))
        first = first or next(iter(found), None)
        tensors = len(flatten(mine)[1])
    worst = max(found, key=lambda difference: difference.amount or 0.0, default=None)
    return Compared(
        steps=tuple(steps),
        tensors=tensors,
        largest=(worst.amount or 0.0) if worst else 0.0,
        where=worst.part if worst and worst.amount else "",
        differing=tuple(difference.part for difference in found),
        first=first,
    )


def differences(one: dict[str, Any], other: dict[str, Any], step: int) -> Iterator[Difference]:
    """The parts of two states that differ: tensors first, in the order of the checkpoint."""
    (tree, tensors), (its_tree, its_tensors) = flatten(one), flatten(other)
    for part, tensor in tensors.items():
        its = its_tensors.get(part)
        if its is None or its.shape != tensor.shape or its.dtype != tensor.dtype:
            yield Difference(part=part, step=step, words=f"{_shape(tensor)} and {_shape(its)}")
        elif not same_bits(tensor, its):
            yield Difference(part=part, step=step, amount=largest_difference(tensor, its))
    for part in its_tensors.keys() - tensors.keys():
        yield Difference(part=part, step=step, words=f"nothing and {_shape(its_tensors[part])}")
    yield from _other_values(tree, its_tree, "", step)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Also where both are nan, which equals nothing; and not where one is 0.0 and the other -0.0."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def largest_difference(one: Tensor, other: Tensor) -> float:
    gap = (one.double() - other.double()).abs()
    return math.inf if bool(gap.isnan().any()) else float(gap.max())


def _other_values(one: Any, other: Any, part: str, step: int) -> Iterator[Difference]:
    """What is no tensor: counters, learning rates, positions."""
    if _is_tensor(one) or _is_tensor(other):
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            yield from _other_values(one.get(key), other.get(key), f"{part}/{key}".lstrip("/"), step)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (mine, its) in enumerate(zip(one, other, strict=True)):
            yield from _other_values(mine, its, f"{part}/{number}", step)
    elif one != other:
        yield Difference(part=part, step=step, words=f"{one!r} and {other!r}")


def _is_tensor(value: Any) -> bool:
    """By the mark that stands for one in the tree; it was compared by itself."""
    return isinstance(value, dict) and bool(value.keys() & {"$tensor", "$array"})


def _shape(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
