"""Splits where a source gives none: groups kept whole, classes in proportion, the same rows every time."""

from __future__ import annotations

import hashlib
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
        by_label = groupby(staging.groups(), key=itemgetter(0))
        chosen = [pair for label, groups in by_label for pair in _deal(groups, fractions, f"{seed} {label}")]
        staging.assign(chosen)
    return before


def drop_leaks(staging: Staging) -> int:
    """Rows of a group that a split further on (train < val < test) has too are dropped, and reported as faults."""
    leaks = list(staging.leaking())
    for row, group, other in leaks:
        staging.remove([row], "group in two splits", f"group {group} is also in {other}", fault=True)
    return len(leaks)


def _deal(groups: Iterator[tuple[str, str, int]], fractions: Mapping[str, float], key: str) -> list[tuple[str, str]]:
    """The largest groups first, each to the split that lacks most; among equals, `key` decides the order."""

    def order(group: tuple[str, str, int]) -> tuple[int, bytes]:
        return -group[2], hashlib.blake2b(f"{key} {group[1]}".encode(), digest_size=8).digest()

    dealt = sorted(groups, key=order)
    total = sum(rows for _, _, rows in dealt)
    lacking = {split: fraction * total for split, fraction in fractions.items()}
    chosen = []
    for _, name, rows in dealt:
        split = max(lacking, key=lambda name: lacking[name])  # the first of equals: train
        lacking[split] -= rows
        chosen.append((name, split))
    return chosen


def _check(fractions: Mapping[str, float]) -> None:
    total = sum(fractions.values())
    if not fractions or any(fraction < 0 for fraction in fractions.values()) or abs(total - 1) > 1e-6:
        raise BadInput(
            f"the parts of the splits add up to {total:g}, not 1",
            fix="for example train=0.8,val=0.1,test=0.1",
        )
