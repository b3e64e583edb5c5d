"""Random access to the rows of a split by number: filtered, limited, read in place from local or cached shards."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput, NotThere
from headway.data.dataset.manifest import Column, Manifest, ShardFile, read_manifest
from headway.data.dataset.shards import Shard
from headway.data.loading.sampler import permute
from headway.storage import local_path

Locate = Callable[[ShardFile], Path]  # maps a shard to its local path


class Rows:
    """One split of one data set. Shards are opened on first use and stay open, which costs address space only.

    With a cache that cannot hold all shards, at most `max_open` stay open, because an open shard occupies disk space
    even after it was evicted.
    """

    def __init__(
        self,
        url: str,
        split: str,
        *,
        limit: int | None = None,
        where: Mapping[str, Any] | None = None,
        locate: Locate | None = None,
        max_open: int | None = None,
    ) -> None:
        self.url, self.split, self.manifest = url, split, read_manifest(url)
        self._files = _shard_files(self.manifest, split, url)
        self._locate = locate or _local_locator(url)
        self._starts = np.cumsum([0, *(shard.rows for shard in self._files)])
        self._shards: OrderedDict[int, Shard] = OrderedDict()
        self._max_open = max_open
        self._lock = threading.Lock()
        self._selected = self._select(dict(where or {}), limit)
        identity = repr((self.manifest.fingerprint, split, limit, sorted((where or {}).items(), key=str)))
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()

    def __len__(self) -> int:
        return int(self._starts[-1]) if self._selected is None else len(self._selected)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.manifest.columns

    def locate(self, rows: NDArray[np.int64]) -> list[tuple[Shard, int]]:
        """Return, for each row, its shard and its row number in that shard."""
        numbers = rows if self._selected is None else self._selected[rows]
        shards = np.searchsorted(self._starts, numbers, side="right") - 1
        inside = numbers - self._starts[shards]
        return [(self.shard(shard), row) for shard, row in zip(shards.tolist(), inside.tolist(), strict=True)]

    def cell(self, column: str, row: int) -> Any:
        ((shard, inside),) = self.locate(np.array([row]))
        return shard.cells(column)[inside]

    def integers(self, column: str) -> NDArray[np.int64]:
        """Return a whole integer column."""
        return self._gather(column, lambda cells: np.asarray(cells.view, dtype=np.int64))

    def lengths(self, column: str) -> NDArray[np.int64]:
        """Return the number of items per row of a list column, read from the offsets alone."""
        return self._gather(column, lambda cells: np.asarray(cells.lengths, dtype=np.int64))

    def _gather(self, column: str, read: Callable[[Any], NDArray[np.int64]]) -> NDArray[np.int64]:
        parts = [read(self.shard(number).cells(column)) for number in range(len(self._files))]
        whole = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return whole if self._selected is None else whole[self._selected]

    def shard(self, number: int) -> Shard:
        found = self._shards.get(number)
        if found is not None:
            return found
        with self._lock:
            found = self._shards.get(number)
            if found is None:
                found = self._shards[number] = self._open(self._files[number])
                while self._max_open is not None and len(self._shards) > self._max_open:
                    self._shards.popitem(last=False)
        return found

    def _open(self, file: ShardFile) -> Shard:
        """Open a shard. Retries, because another process may evict the file between locating and opening it."""
        for _ in range(5):
            path = self._locate(file)
            try:
                return Shard(path, self.columns)
            except BadInput:
                if path.exists():
                    raise
        raise NotThere(
            f"the shard {file.key} is evicted as fast as it is fetched", where=self.url, fix="raise cache.size"
        )

    def _select(self, where: dict[str, Any], limit: int | None) -> NDArray[np.int64] | None:
        chosen = self._matching(where) if where else None
        total = int(self._starts[-1]) if chosen is None else len(chosen)
        if where and not total:
            raise BadInput(
                f"no row of {self.url} ({self.split}) has {_describe_filter(where)}",
                fix="check `where` in the job file",
            )
        if limit is not None and limit < 1:
            raise BadInput(f"a limit of {limit} rows leaves none", fix="choose 1 or more")
        if limit is None or limit >= total:
            return chosen
        # Take a deterministic random sample: the first rows would all belong to the first classes.
        sample = np.sort(permute(total, 0, 0, np.arange(limit)))
        return sample if chosen is None else chosen[sample]

    def _matching(self, where: dict[str, Any]) -> NDArray[np.int64]:
        mask = np.ones(int(self._starts[-1]), bool)
        for name, wanted in where.items():
            column = self.manifest.column(name)
            values = wanted if isinstance(wanted, list | tuple) else [wanted]
            mask &= self._is_one_of(column, values)
        return np.flatnonzero(mask)

    def _is_one_of(self, column: Column, values: Sequence[Any]) -> NDArray[np.bool_]:
        if column.kind == "integer":
            numbers = [self._number(column, value) for value in values]
            parts = [np.asarray(self._cells(n, column).view) for n in range(len(self._files))]
            return np.isin(np.concatenate(parts), numbers)
        if column.kind == "text":
            wanted = {str(value) for value in values}
            cells = (self._cells(n, column) for n in range(len(self._files)))
            return np.array([shard[row] in wanted for shard in cells for row in range(len(shard))], dtype=bool)
        raise BadInput(
            f"rows cannot be filtered by {column.name}, a column of {column.kind}s", fix="filter by id or label"
        )

    def _cells(self, shard: int, column: Column) -> Any:
        return self.shard(shard).cells(column.name)

    def _number(self, column: Column, value: Any) -> int:
        """Return the integer for a filter value: a class name is looked up, grades and sizes are numbers already."""
        if column.name == "label" and str(value) in self.manifest.classes:
            return self.manifest.classes.index(str(value))
        if isinstance(value, bool) or not isinstance(value, int):
            known = ", ".join(self.manifest.classes[:20])
            raise BadInput(f"{column.name} {value!r} is not in {self.url}", fix=f"choose from {known}" if known else "")
        return value


def _shard_files(manifest: Manifest, split: str, url: str) -> tuple[ShardFile, ...]:
    if split not in manifest.splits:
        known = ", ".join(manifest.splits)
        raise BadInput(f"{url} has no split {split!r}", fix=f"choose one of {known}")
    if not manifest.rows(split):
        raise BadInput(f"the split {split!r} of {url} has no rows", fix="see what was dropped: headway data inspect")
    return manifest.splits[split]


def _local_locator(url: str) -> Locate:
    folder = local_path(url)
    if folder is None:
        raise BadInput(
            f"{url} is not on this machine", fix="open it through a cache: headway.data.dataset.shards.ShardCache"
        )

    def locate(shard: ShardFile) -> Path:
        path = folder / shard.key
        if not path.is_file():
            raise NotThere(f"the shard {shard.key} is missing", where=url, fix="prepare or copy the data again")
        return path

    return locate


def _describe_filter(where: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in where.items())
