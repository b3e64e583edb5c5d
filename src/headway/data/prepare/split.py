"""From staged rows to chunks: bounds that depend on the rows and the settings alone, and a proof of each."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from headway.core.errors import BadInput
from headway.data.prepare.shard_task import Chunk, Settings, proof_of
from headway.data.prepare.staging import RowStore
from headway.data.readers.files import Tree

_PIECES = 16  # of a small split: enough to keep a machine's cores busy to the end
_LEAST = 16  # rows that are worth a file


class ChunkPlan:
    """What there is to do. Rows are read from the staging file each time: nothing is kept but the proofs."""

    def __init__(self, staging: RowStore, settings: Settings, tree: Tree, dest: str) -> None:
        self._staging, self._tree, self._dest = staging, tree, dest
        self.settings = settings
        self._text = settings.to_json()
        self.proofs = {chunk.name: proof_of(self._text, chunk.to_json()) for chunk in self.chunks()}

    @property
    def proof(self) -> str:
        """Of the whole: the same source and settings have the same."""
        return hashlib.sha256(json.dumps(self.proofs, sort_keys=True).encode()).hexdigest()

    def chunks(self, doomed: Mapping[str, Mapping[str, str]] | None = None) -> Iterator[Chunk]:
        """All of them, or those named in `doomed`, whose rows there listed must go."""
        for split in self._staging.splits():
            room = _room(self._staging.count(split), self.settings.rows_in_a_shard)
            rows = (self._stamped(row) for row in self._staging.rows(split))
            number = 0
            while taken := list(islice(rows, room)):
                chunk = Chunk(split=split, number=number, rows=taken)
                if doomed is None:
                    yield chunk
                elif chunk.name in doomed:
                    yield Chunk(split=split, number=number, rows=taken, doomed=dict(doomed[chunk.name]))
                number += 1

    def order(self, chunk: Chunk) -> str:
        """What `make_shard` is given."""
        asked = {"settings": self._text, "chunk": chunk.to_json(), "source": self._tree.url, "dest": self._dest}
        return json.dumps(asked)

    def _stamped(self, row: dict[str, Any]) -> dict[str, Any]:
        """With size and time of its pictures, where that is cheap to ask: one that was replaced is read again."""
        if self._tree.path is None or not row["pictures"]:
            return row
        row["stamps"] = [_stamp(os.path.join(self._tree.path, key)) for key in row["pictures"].values()]
        return row


def _room(rows: int, most: int) -> int:
    """How many rows a chunk has. A split too small to fill many shards is cut finer, so that all workers have work."""
    return min(most, max(_LEAST, -(-rows // _PIECES)))


def _stamp(path: str) -> list[int]:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return []  # missing, or no path at all: the worker says so in the report
    return [found.st_size, found.st_mtime_ns]


# Splits where a source gives none: groups kept whole, classes in proportion, the same rows every time.


DEFAULT = {"train": 0.8, "val": 0.1, "test": 0.1}


def split_rows(staging: RowStore, fractions: Mapping[str, float], seed: int) -> int:
    """Give every row without a split one; returns how many rows that were.

    Depends on the rows' groups, labels and ids alone: not on their order, nor on the rows of other classes.
    """
    _check(fractions)
    before = staging.count("")
    if before:
        staging.assign(_dealt(staging, fractions, str(seed)))
    return before


def drop_leaks(staging: RowStore) -> int:
    """Rows of a group that a split further on (train < val < test) has too are dropped, and reported as faults."""
    leaks = list(staging.leaking())
    for row, group, other in leaks:
        staging.remove([row], "group in two splits", f"group {group} is also in {other}", fault=True)
    return len(leaks)


def _dealt(staging: RowStore, fractions: Mapping[str, float], key: str) -> Iterator[tuple[str, str]]:
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
