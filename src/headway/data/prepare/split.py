"""Assign rows to splits, and cut the splits into chunks.

Chunk bounds depend on the rows and the settings alone; each chunk has a proof, a hash of its rows and the settings.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from headway.core.errors import BadInput
from headway.data.prepare.shard_task import Chunk, ShardSettings, proof_of
from headway.data.prepare.staging import RowStore
from headway.data.readers.files import Tree

_MIN_CHUNKS = 16  # chunks of a small split: enough to keep a machine's cores busy to the end
_MIN_ROWS = 16  # minimum rows per file


class ChunkPlan:
    """All chunks of a preparation. Rows are read from the staging file each time; only the proofs stay in memory."""

    def __init__(self, staging: RowStore, settings: ShardSettings, tree: Tree, dest: str) -> None:
        self._staging, self._tree, self._dest = staging, tree, dest
        self.settings = settings
        self._text = settings.to_json()
        self.proofs = {chunk.name: proof_of(self._text, chunk.to_json()) for chunk in self.chunks()}

    @property
    def proof(self) -> str:
        """Hash of all chunk proofs: equal for equal source and settings."""
        return hashlib.sha256(json.dumps(self.proofs, sort_keys=True).encode()).hexdigest()

    def chunks(self, doomed: Mapping[str, Mapping[str, str]] | None = None) -> Iterator[Chunk]:
        """Yield all chunks, or only those in `doomed`, with the rows to drop from each."""
        for split in self._staging.splits():
            rows_per_chunk = _rows_per_chunk(self._staging.count(split), self.settings.rows_per_shard)
            rows = (self._with_file_stats(row) for row in self._staging.rows(split))
            number = 0
            while chunk_rows := list(islice(rows, rows_per_chunk)):
                chunk = Chunk(split=split, number=number, rows=chunk_rows)
                if doomed is None:
                    yield chunk
                elif chunk.name in doomed:
                    yield Chunk(split=split, number=number, rows=chunk_rows, doomed=dict(doomed[chunk.name]))
                number += 1

    def task_input(self, chunk: Chunk) -> str:
        """Return the JSON input of `make_shard` for a chunk."""
        task = {"settings": self._text, "chunk": chunk.to_json(), "source": self._tree.url, "dest": self._dest}
        return json.dumps(task)

    def _with_file_stats(self, row: dict[str, Any]) -> dict[str, Any]:
        """Add size and mtime of local picture files, so that the chunk of a replaced file is made again."""
        if self._tree.path is None or not row["pictures"]:
            return row
        row["stamps"] = [_file_stats(os.path.join(self._tree.path, key)) for key in row["pictures"].values()]
        return row


def _rows_per_chunk(rows: int, most: int) -> int:
    """Return the rows per chunk. Splits too small to fill many shards are cut finer, so that all workers have work."""
    return min(most, max(_MIN_ROWS, -(-rows // _MIN_CHUNKS)))


def _file_stats(path: str) -> list[int]:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return []  # missing, or not a valid path: the worker reports it
    return [found.st_size, found.st_mtime_ns]


# Splits for sources that define none: groups stay together, classes in proportion, deterministic.


DEFAULT = {"train": 0.8, "val": 0.1, "test": 0.1}


def split_rows(staging: RowStore, fractions: Mapping[str, float], seed: int) -> int:
    """Assign a split to every row without one, and return the number of such rows.

    The result depends only on the rows' groups, labels and ids: not on their order, nor on the rows of other classes.
    """
    _check(fractions)
    before = staging.count("")
    if before:
        staging.assign(_assign_groups(staging, fractions, str(seed)))
    return before


def drop_leaks(staging: RowStore) -> int:
    """Drop rows whose group is also in a later split (train < val < test), report them as faults, and count them."""
    leaks = list(staging.rows_in_two_splits())
    for row, group, other in leaks:
        staging.remove([row], "group in two splits", f"group {group} is also in {other}", fault=True)
    return len(leaks)


def _assign_groups(staging: RowStore, fractions: Mapping[str, float], key: str) -> Iterator[tuple[str, str]]:
    """Yield (group, split): per class, largest groups first, each to the split with the largest deficit."""
    for _, groups in groupby(staging.groups(key), key=itemgetter(0)):
        deficit: dict[str, float] = {}
        for _, group, rows, total in groups:
            deficit = deficit or {split: fraction * total for split, fraction in fractions.items()}
            split = max(deficit, key=lambda name: deficit[name])  # on ties the first: train
            deficit[split] -= rows
            yield group, split


def _check(fractions: Mapping[str, float]) -> None:
    total = sum(fractions.values())
    if not fractions or any(fraction < 0 for fraction in fractions.values()) or abs(total - 1) > 1e-6:
        raise BadInput(
            f"the shares of the splits add up to {total:g}, not 1",
            fix="for example train=0.8,val=0.1,test=0.1",
        )
