"""What two runs of one job were found to have in common, as plain values. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One part of a checkpoint that is not the same in both runs."""

    part: str  # as `model/head.weight`
    step: int
    amount: float | None = None  # the largest, of a tensor of numbers
    words: str = ""  # for anything else


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """The checkpoints of two runs."""

    steps: tuple[int, ...]  # of the checkpoints that both have, in order
    tensors: int
    largest: float  # over all tensors of the last; 0 is bit-identical
    where: str  # the tensor in which that is
    differing: tuple[str, ...]  # parts of the last that differ, in the order of the state
    first: Difference | None  # the first part of the first checkpoint that differs


@dataclass(frozen=True, kw_only=True, slots=True)
class Histories:
    """The metrics of two runs, without their times."""

    records: int
    first_step: int | None = None  # the first that differs
    names: tuple[str, ...] = ()  # what differs there
    values: tuple[Any, Any] = (None, None)  # of the first of these names
    clocks: tuple[str, ...] = ()  # metrics that differ in any two runs, though the state does not


Record = Mapping[str, Any]


def compare_histories(one: Sequence[Record], other: Sequence[Record], *, trusted: int = -1) -> Histories:
    """Step by step. A metric that differs up to the `trusted` step, where the states agree, measures something else:
    the time, say. It is named, and proves nothing."""
    ours, theirs = _by_step(one), _by_step(other)
    clocks = {name for step in ours for name in _differing(ours, theirs, step) if step <= trusted}
    for step in sorted(ours.keys() | theirs.keys()):
        names = sorted(_differing(ours, theirs, step) - clocks)
        if names:
            values = (ours.get(step, {}).get(names[0]), theirs.get(step, {}).get(names[0]))
            return Histories(
                records=len(ours), first_step=step, names=tuple(names), values=values, clocks=tuple(sorted(clocks))
            )
    return Histories(records=len(ours), clocks=tuple(sorted(clocks)))


def _by_step(records: Sequence[Record]) -> dict[int, dict[str, Any]]:
    merged: dict[int, dict[str, Any]] = {}
    for record in records:
        merged.setdefault(record["step"], {}).update({key: record[key] for key in record if key != "time"})
    return merged


def _differing(ours: dict[int, dict[str, Any]], theirs: dict[int, dict[str, Any]], step: int) -> set[str]:
    one, other = ours.get(step, {}), theirs.get(step, {})
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
