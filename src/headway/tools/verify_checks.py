"""Compare two runs' checkpoints bit by bit and their metrics, and lint a script for nondeterminism. Needs torch."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.storage import open_store
from headway.training.checkpoint.reader import CheckpointReader
from headway.training.checkpoint.serialization import flatten

# Results of a comparison, as plain values


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One part of a checkpoint that differs between the runs."""

    part: str  # such as `model/head.weight`
    step: int
    amount: float | None = None  # the largest absolute difference of a numeric tensor
    words: str = ""  # description, for anything else


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointComparison:
    """Result of comparing the checkpoints of two runs."""

    steps: tuple[int, ...]  # of the checkpoints that both have, in order
    tensors: int
    largest: float  # over all tensors of the last checkpoint; 0 is bit-identical
    where: str  # the tensor with the largest difference
    differing: tuple[str, ...]  # parts of the last checkpoint that differ, in the order of the state
    first: Difference | None  # the first differing part in the first checkpoint that differs


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricComparison:
    """Result of comparing the metrics of two runs, without their timestamps."""

    records: int
    first_step: int | None = None  # the first that differs
    names: tuple[str, ...] = ()  # metrics that differ there
    values: tuple[Any, Any] = (None, None)  # of the first of these names
    clocks: tuple[str, ...] = ()  # metrics, such as timings, that differ between any two runs


Record = Mapping[str, Any]


def compare_histories(one: Sequence[Record], other: Sequence[Record], *, trusted: int = -1) -> MetricComparison:
    """Compare metrics step by step.

    A metric that differs up to the `trusted` step, where the states agree, does not depend on the state alone: a
    timing, for example. It is reported in `clocks` and not counted as a difference.
    """
    ours, theirs = _by_step(one), _by_step(other)
    clocks = {name for step in ours for name in _differing(ours, theirs, step) if step <= trusted}
    for step in sorted(ours.keys() | theirs.keys()):
        names = sorted(_differing(ours, theirs, step) - clocks)
        if names:
            values = (ours.get(step, {}).get(names[0]), theirs.get(step, {}).get(names[0]))
            return MetricComparison(
                records=len(ours), first_step=step, names=tuple(names), values=values, clocks=tuple(sorted(clocks))
            )
    return MetricComparison(records=len(ours), clocks=tuple(sorted(clocks)))


def _by_step(records: Sequence[Record]) -> dict[int, dict[str, Any]]:
    merged: dict[int, dict[str, Any]] = {}
    for record in records:
        merged.setdefault(record["step"], {}).update({key: record[key] for key in record if key != "time"})
    return merged


def _differing(ours: dict[int, dict[str, Any]], theirs: dict[int, dict[str, Any]], step: int) -> set[str]:
    one, other = ours.get(step, {}), theirs.get(step, {})
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def steps_of(url: str) -> list[int]:
    """Return the steps of a run's checkpoints, oldest first."""
    return [kept.step for kept in CheckpointReader(open_store(url)).list_commits()]


def compare(one: str, other: str) -> CheckpointComparison:
    """Compare the checkpoints that both runs have, up to the first that differs, and the last one in full."""
    steps = sorted(set(steps_of(one)) & set(steps_of(other)))
    ours, theirs = CheckpointReader(open_store(one)), CheckpointReader(open_store(other))
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
    return CheckpointComparison(
        steps=tuple(steps),
        tensors=tensors,
        largest=(worst.amount or 0.0) if worst else 0.0,
        where=worst.part if worst and worst.amount else "",
        differing=tuple(difference.part for difference in found),
        first=first,
    )


def differences(one: dict[str, Any], other: dict[str, Any], step: int) -> Iterator[Difference]:
    """Yield the parts in which two states differ: tensors first, in the order of the checkpoint."""
    (tree, tensors), (its_tree, its_tensors) = flatten(one), flatten(other)
    for part, tensor in tensors.items():
        its = its_tensors.get(part)
        if its is None or its.shape != tensor.shape or its.dtype != tensor.dtype:
            yield Difference(part=part, step=step, words=f"{_shape(tensor)} and {_shape(its)}")
        elif not bitwise_equal(tensor, its):
            yield Difference(part=part, step=step, amount=largest_difference(tensor, its))
    for part in its_tensors.keys() - tensors.keys():
        yield Difference(part=part, step=step, words=f"no tensor and {_shape(its_tensors[part])}")
    yield from _other_values(tree, its_tree, "", step)


def bitwise_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bits. NaN equals NaN here, and 0.0 differs from -0.0."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def largest_difference(one: Tensor, other: Tensor) -> float:
    gap = (one.double() - other.double()).abs()
    return math.inf if bool(gap.isnan().any()) else float(gap.max())


def _other_values(one: Any, other: Any, part: str, step: int) -> Iterator[Difference]:
    """Compare values that are not tensors: counters, learning rates, positions."""
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
    """Return whether this is a tensor's placeholder in the tree; tensors are compared separately."""
    return isinstance(value, dict) and bool(value.keys() & {"$tensor", "$array"})


def _shape(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


# Nondeterminism lint: calls in a script whose values the run's seed does not determine. It parses the code and never
# runs it.


# Without an argument these seed themselves from the system; with one they are the script's own generators.
GENERATORS = ("Generator", "Philox", "PCG64", "Random", "RandomState", "default_rng", "seed")
# Different in every run, whatever is seeded.
ENTROPY = ("SystemRandom", "getrandbits", "monotonic", "perf_counter", "time_ns", "token_bytes", "token_hex", "urandom",
           "uuid1", "uuid4")  # fmt: skip
# These hold a position in the data that no checkpoint contains.
ITERATORS = ("cycle", "iter")


@dataclass(frozen=True, kw_only=True, slots=True)
class NondeterminismSuspect:
    """One suspicious line of code."""

    where: str  # file:line
    code: str
    kind: str  # unseeded, own, iterator


def find_suspects(files: Iterable[tuple[str, Path]]) -> list[NondeterminismSuspect]:
    """List suspicious lines by file and line. Files that are not Python 3 are skipped: they cannot be what trains."""
    found: list[NondeterminismSuspect] = []
    for name, path in files:
        try:
            text = path.read_text()
            tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError):
            continue
        lines = text.splitlines()
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        marked = ((call.lineno, kind) for call in calls for kind in _kinds(call))
        found += [
            NondeterminismSuspect(where=f"{name}:{line}", code=lines[line - 1].strip(), kind=kind)
            for line, kind in sorted(set(marked))
        ]
    return found


def _kinds(call: ast.Call) -> Iterator[str]:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called in ENTROPY:
        yield "unseeded"
    elif called in GENERATORS:
        # torch.Generator is seeded by a separate call; its argument, if any, is a device.
        yield "own" if call.args or call.keywords or called == "Generator" else "unseeded"
    elif called in ITERATORS and isinstance(call.func, ast.Name | ast.Attribute):
        yield "iterator"
