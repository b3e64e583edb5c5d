"""Splits where a source gives none: groups kept whole, classes in proportion, the same rows every time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter

from headway.data.staging import Staging
from headway.errors import BadInput

DEFAULT = {"train": 0.8, "val": 0.1, "test": 0.1}


def split_rows(staging: Staging, fractions: Mapping[str, float], seed: int) -> int:
    """Give every row without a split one; returns how many rows that were.

    Depends on the rows' groups, labels and ids alone: not on their order, nor on the rows of other classes.
    """
    _check(fractions)
    before = staging.count("")
    if before:
        staging.assign(_dealt(staging, fractions, str(seed)))
    return before


def drop_leaks(staging: Staging) -> int:
    """Rows of a group that a split further on (train < val < test) has too are dropped, and reported as faults."""
    leaks = list(staging.leaking())
    for row, group, other in leaks:
        staging.remove([row], "group in two splits", f"group {group} is also in {other}", fault=True)
    return len(leaks)


def _dealt(staging: Staging, fractions: Mapping[str, float], key: str) -> Iterator[tuple[str, str]]:
    """(group, split): class by class, the largest groups first, each to the split that lacks most."""
    for _, groups in groupby(staging.groups(key), key=itemgetter(0)):
        lacking: dict[str, float] = {}
        for _, group, rows, total in groups:
            lacking = lacking or {split: fraction * total for split, fraction in fractions.items()}
            split = max(lacking, key=lambda name: lacking[name])  # the first of equals: train
            lacking[split] -= rows
            yield group, split


def _check(fractions: Mapping[str, float]) -> None:
    total = sum(fractions.values())
    if not fractions or any(fraction < 0 for fraction in fractions.values()) or abs(total - 1) > 1e-6:
        raise BadInput(
            f"the parts of the splits add up to {total:g}, not 1",
            fix="for example train=0.8,val=0.1,test=0.1",
        )
