"""Batches from prepared data by step number: globally shuffled, identical for any world size, resumable at any step.

Threads read a row as a copy from a memory map (raw) or one JPEG decode, into reused buffers. torch is needed only to
return the batch as tensors.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput
from headway.data.dataset.manifest import Column
from headway.data.dataset.rows import Rows
from headway.data.dataset.shards import Shard
from headway.data.loading.prefetch import BufferPool, Key, Prefetcher, pinned, pool
from headway.data.loading.sampler import PaddingBatch, SampleGroup, SampleOrder, balanced, share, uniforms
from headway.data.loading.transforms import check_crop, copy_jpeg, copy_raw
from headway.data.prepare.executor import usable_cores

if TYPE_CHECKING:
    from headway.data.loading.transforms import Augment

Indices = NDArray[np.int64]
_CROPS = 11  # random stream for crop positions and mirroring
_BLOCK = 4096  # positions looked up at a time: one call of the permutation serves many steps
_SLICE = 16  # pictures: fewer are not worth a thread of their own


@dataclass(frozen=True, slots=True)
class WeightedSource:
    """A source with its relative sampling weight."""

    rows: Rows
    weight: float = 1.0


class ConcatDataset:
    """Several sources concatenated, with global row numbers."""

    def __init__(self, sources: Sequence[WeightedSource | Rows]) -> None:
        if not sources:
            raise BadInput("no data source was given", fix="name at least one source")
        self.sources = [source if isinstance(source, WeightedSource) else WeightedSource(source) for source in sources]
        self.starts = np.cumsum([0, *(len(source.rows) for source in self.sources)])
        first = self.sources[0].rows
        for other in (source.rows for source in self.sources[1:]):
            if other.manifest.classes != first.manifest.classes:
                what = f"{first.url} and {other.url} do not have the same classes"
                raise BadInput(what, fix="prepare them together, or give both the same class names")

    def __len__(self) -> int:
        return int(self.starts[-1])

    def origin(self, row: int) -> tuple[Rows, int]:
        """Return the source of a row and its row number there."""
        source = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.sources[source].rows, row - int(self.starts[source])

    def locate(self, rows: Indices) -> list[tuple[Shard, int]]:
        """Return, for each row, its shard and its row number in that shard."""
        if len(self.sources) == 1:
            return self.sources[0].rows.locate(rows)
        found: list[tuple[Shard, int]] = [None] * len(rows)  # type: ignore[list-item]  # each is set below
        which = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(which).tolist():
            mine = np.flatnonzero(which == number)
            located = self.sources[number].rows.locate(rows[mine] - self.starts[number])
            for at, place in zip(mine.tolist(), located, strict=True):
                found[at] = place
        return found

    def sample_groups(self, balance: float | None) -> list[SampleGroup]:
        """Return one sample group per source by weight; with `balance`, one per class of each source."""
        found: list[SampleGroup] = []
        for source, start in zip(self.sources, self.starts[:-1].tolist(), strict=True):
            mine = range(start, start + len(source.rows))
            if balance is None:
                found.append(SampleGroup(mine, source.weight))
            else:
                labels = source.rows.integers("label")
                found += balanced(np.arange(mine.start, mine.stop), labels, power=balance, share=source.weight)
        return found

    @property
    def fingerprint(self) -> str:
        settings = repr([(source.rows.fingerprint, source.weight) for source in self.sources])
        return hashlib.sha256(settings.encode()).hexdigest()


class PictureFeed:
    """Batches of pictures and their other columns, as a dictionary of tensors and lists.

    Pictures are uint8 of shape n × 3 × height × width in channels-last memory order: transfer them as they are and
    normalise on the device. Training samples the sources by weight, crops and mirrors at random and, with `balance`,
    samples rare classes more often (P ∝ 1 / frequency ^ balance). Otherwise every row comes once, in order,
    centre-cropped.

    Pure: a batch depends on (seed, epoch, step) and nothing else.
    """

    workers = 0  # it has its own threads

    def __init__(
        self,
        sources: Sequence[WeightedSource | Rows],
        batch_size: int,
        *,
        training: bool,
        crop: int | None = None,
        columns: Sequence[str] | None = None,
        mirror: bool = False,
        balance: float | None = None,
        augment: Augment | None = None,
        seed: int | None = None,
        drop_last: bool = False,
        threads: int | None = None,
        ahead: int = 2,
        pin: bool = False,
    ) -> None:
        if batch_size < 1:
            raise BadInput(f"the batch size must be at least 1, not {batch_size}", fix="choose 1 or more")
        self.data, self.seed, self.batch_size = ConcatDataset(sources), seed, batch_size
        self._training, self._mirror, self._augment = training, mirror and training, augment if training else None
        self._columns = _selected_columns(self.data.sources[0].rows, columns)
        self._crop = _crop_sizes(self._columns, crop)
        self._order = SampleOrder(
            self.data.sample_groups(balance) if training else [SampleGroup(range(len(self.data)), 1.0)],
            len(self.data),
            shuffle=training,
        )
        self._drop_last, self._pin, self._balance = drop_last, pin, balance
        self._buffers = BufferPool()
        self._threads = threads or usable_cores()
        self._pool: ThreadPoolExecutor | None = None
        self._prefetcher = Prefetcher(self._begin, len(self), ahead)
        self._block: tuple[tuple[int, int, int], Indices] | None = None

    def __len__(self) -> int:
        whole, rest = divmod(len(self._order), self.batch_size)
        return whole + (1 if rest and not (self._drop_last and whole) else 0)

    @property
    def fingerprint(self) -> str:
        names = [column.name for column in self._columns]
        settings = (self.data.fingerprint, self.batch_size, self._training, self._crop, names, self._mirror)
        more = (self._balance, repr(self._augment), self.seed, self._drop_last)
        return hashlib.sha256(repr((settings, more)).encode()).hexdigest()[:16]

    def indices(self, epoch: int, step: int, part: int = 0, parts: int = 1) -> list[int]:
        """Return the global row numbers of a batch, or of one rank's part."""
        places = self._positions(step, part, parts)
        return self._rows(epoch, places).tolist() if len(places) else []

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Any:
        """Return the batch as a dictionary, wrapped in a `PaddingBatch` if this part of the batch is empty."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of {len(self)}")
        return self._prefetcher.get((epoch, step, part, parts))

    def _positions(self, step: int, part: int, parts: int) -> Indices:
        first = step * self.batch_size
        start, stop = share(min(self.batch_size, len(self._order) - first), part, parts)
        return np.arange(first + start, first + stop)

    def _rows(self, epoch: int, places: Indices) -> Indices:
        """Look up rows block by block with a one-block cache: a batch spans one or two blocks."""
        seed = self.seed or 0
        blocks = places // _BLOCK
        if int(blocks[0]) != int(blocks[-1]):
            cut = int(np.searchsorted(blocks, blocks[0], side="right"))
            return np.concatenate([self._rows(epoch, places[:cut]), self._rows(epoch, places[cut:])])
        key = (seed, epoch, int(blocks[0]))
        known = self._block  # read once: another thread may replace it
        if known is None or known[0] != key:
            first = key[2] * _BLOCK
            whole = np.arange(first, min(first + _BLOCK, len(self._order)))
            known = self._block = (key, self._order.rows_at(seed, epoch, whole))
        return known[1][places % _BLOCK]

    def _begin(self, key: Key) -> Future[Any]:
        epoch, step, part, parts = key
        places = self._positions(step, part, parts)
        empty = len(places) == 0
        if empty:
            places = np.array([step * self.batch_size])  # padding: runs through the model with weight 0
        if self._pool is None:
            self._pool = pool(self._threads)
        return _BatchFill(self, epoch, places, self._rows(epoch, places), empty).start(self._pool, self._threads)

    # The methods below are called by the threads that fill a batch.

    def allocate(self, count: int) -> dict[str, tuple[NDArray[np.uint8], Any]]:
        """Allocate each picture column: the numpy array, and the tensor that owns its memory if there is one."""
        made: dict[str, tuple[NDArray[np.uint8], Any]] = {}
        for name, (height, width) in self._crop.items():
            shape = (count, height, width, 3)
            made[name] = pinned(shape) if self._pin else (self._buffers.acquire(shape), None)
        return made

    def fill(self, buffers: dict[str, Any], epoch: int, places: Indices, rows: Indices, first: int, last: int) -> None:
        draws = self._random_draws(epoch, places[first:last])
        located = self.data.locate(rows[first:last])
        for column in self._columns:
            if column.kind == "picture":
                put = copy_raw if column.encoding == "raw" else copy_jpeg
                place = buffers[column.name][0][first:last]
                for at, (shard, inside) in enumerate(located):
                    top, left, mirror = draws[at]
                    put(shard.cells(column.name)[inside], place[at], top, left, self._mirror and mirror < 0.5)

    def _random_draws(self, epoch: int, places: Indices) -> list[list[float]]:
        if not self._training:
            return [[0.5, 0.5, 1.0]] * len(places)
        draws: list[list[float]] = uniforms(self.seed or 0, epoch, places, 3, stream=_CROPS).tolist()
        return draws

    def to_batch(self, buffers: dict[str, Any], epoch: int, places: Indices, rows: Indices) -> dict[str, Any]:
        import torch

        batch: dict[str, Any] = {"row": torch.from_numpy(rows)}
        located = self.data.locate(rows)
        for column in self._columns:
            if column.kind == "picture":
                array, tensor = buffers[column.name]
                batch[column.name] = (torch.from_numpy(array) if tensor is None else tensor).permute(0, 3, 1, 2)
                continue
            cells = [shard.cells(column.name)[inside] for shard, inside in located]
            batch[column.name] = _tensor(cells, column)
        if self._augment is not None:
            batch["draws"] = self._augment.draw(self.seed or 0, epoch, places)
        return batch


class _BatchFill:
    """One batch being filled by several threads. The last thread to finish completes the future."""

    def __init__(self, feed: PictureFeed, epoch: int, places: Indices, rows: Indices, empty: bool) -> None:
        self._feed, self._epoch, self._places, self._rows, self._empty = feed, epoch, places, rows, empty
        self._buffers = feed.allocate(len(rows))
        self._future: Future[Any] = Future()
        self._left = 0
        self._lock = threading.Lock()

    def start(self, threads: ThreadPoolExecutor, max_slices: int) -> Future[Any]:
        count = len(self._rows)
        slices = max(1, min(max_slices, count // _SLICE))
        bounds = [count * n // slices for n in range(slices + 1)]
        self._left = slices
        for first, last in pairwise(bounds):
            threads.submit(self._fill, first, last)
        return self._future

    def _fill(self, first: int, last: int) -> None:
        try:
            if not self._future.cancelled():
                self._feed.fill(self._buffers, self._epoch, self._places, self._rows, first, last)
            with self._lock:
                self._left -= 1
                done = self._left == 0
            if done and not self._future.cancelled():
                self._end(self._finished_batch())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the batch is asked for
            self._fail(error)

    def _finished_batch(self) -> Any:
        batch = self._feed.to_batch(self._buffers, self._epoch, self._places, self._rows)
        self._buffers = {}  # the batch is now the sole owner of its memory
        if not self._empty:
            return batch
        return PaddingBatch(batch)

    def _end(self, batch: Any) -> None:
        try:
            self._future.set_result(batch)
        except InvalidStateError:
            pass  # cancelled just now: nobody waits for it

    def _fail(self, error: BaseException) -> None:
        try:
            self._future.set_exception(error)
        except InvalidStateError:
            pass  # another slice failed first, or nobody waits for it


def _tensor(cells: list[Any], column: Column) -> Any:
    """Convert numbers to one tensor; leave texts and variable-length lists as they are."""
    import torch

    if column.kind == "integer":
        return torch.tensor(cells, dtype=torch.int64)
    return torch.from_numpy(np.stack(cells)) if column.kind == "numbers" else cells


def _selected_columns(rows: Rows, names: Sequence[str] | None) -> tuple[Column, ...]:
    """Return the columns to read: by default all but the original picture size."""
    if names is None:
        return tuple(column for column in rows.columns if column.name not in ("width", "height"))
    return tuple(rows.manifest.column(name) for name in names)


def _crop_sizes(columns: Sequence[Column], crop: int | None) -> dict[str, tuple[int, int]]:
    sizes: dict[str, tuple[int, int]] = {}
    for column in columns:
        if column.kind != "picture":
            continue
        if crop is None and column.encoding != "raw":
            raise BadInput(f"the pictures in {column.name!r} differ in size", fix="choose a crop, such as 224")
        stored = (column.height, column.width)
        wanted = stored if crop is None else (crop, crop)
        if column.encoding == "raw":
            check_crop(stored, wanted)
        sizes[column.name] = wanted
    return sizes
