"""Training data as a pure function of (epoch, step, part): no position to save, and the same batches on any world size.

A feed is anything with `len()`, `batch(epoch, step, part, parts)` and `fingerprint`. `Loader` makes one of a map-style
dataset. Shuffling and augmentation are keyed by (seed, epoch, index), so prefetching and resuming change nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput
from headway.data.loading.sampler import PaddingBatch, permute, rng, share
from headway.training.determinism import ITEM, RngSeeder

BLOCK = 4096  # indices shuffled at a time: one call of the permutation serves many steps


@runtime_checkable
class Feed(Protocol):
    """Batches by number. `batch` must not depend on what was asked before."""

    @property
    def fingerprint(self) -> str:
        """Changes when the batches would: content, order, batch size."""

    def __len__(self) -> int:
        """Steps in an epoch."""

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Any:
        """Part `part` of `parts` of one global batch; `Filler` where that part is empty."""


class Loader:
    """A feed over a map-style dataset.

    A dataset with `item(index, rng)` is handed a numpy generator of its own for every item of every epoch. Any other is
    indexed, with Python's, numpy's and torch's default generators seeded for that item: that costs about 10 µs an item.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
        drop_last: bool = False,
        seed: int | None = None,
    ) -> None:
        self._check(dataset, batch_size)
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, shuffle
        self.workers, self.drop_last, self.seed = workers, drop_last, seed
        self._collate = collate or _default_collate()
        self._item = getattr(dataset, "item", None)
        self._block: tuple[tuple[int, int], NDArray[np.int64]] | None = None
        self._seeder: RngSeeder | None = None

    @staticmethod
    def _check(dataset: Any, batch_size: int) -> None:
        if batch_size < 1:
            raise BadInput(f"the batch size is {batch_size}", fix="choose 1 or more")
        if not hasattr(dataset, "__len__"):
            raise BadInput(
                f"{type(dataset).__name__} has no length, so its steps cannot be counted",
                fix="give the dataset a __len__, or pass an iterable of known length to run.steps",
            )
        if len(dataset) == 0:
            raise BadInput("the dataset is empty", fix="check its path and filters")

    def __len__(self) -> int:
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (1 if rest and not (self.drop_last and whole) else 0)

    @property
    def fingerprint(self) -> str:
        inner = getattr(self.dataset, "fingerprint", type(self.dataset).__qualname__)
        words = (inner, len(self.dataset), self.batch_size, self.shuffle, self.drop_last, self.seed)
        return hashlib.sha256(repr(words).encode()).hexdigest()[:16]

    def indices(self, epoch: int, step: int, part: int = 0, parts: int = 1) -> list[int]:
        """Which items: also what an error message names when a batch goes wrong."""
        first = step * self.batch_size
        start, stop = share(min(self.batch_size, len(self.dataset) - first), part, parts)
        if not self.shuffle:
            return list(range(first + start, first + stop))
        return [self._at(epoch, first + offset) for offset in range(start, stop)]

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Any:
        chosen = self.indices(epoch, step, part, parts)
        if chosen:
            return self._collate([self._fetch(epoch, index) for index in chosen])
        stand_in = self.indices(epoch, step)[0]
        return PaddingBatch(self._collate([self._fetch(epoch, stand_in)]))

    def _at(self, epoch: int, position: int) -> int:
        key = (epoch, position // BLOCK)
        block = self._block  # read once: another thread may replace it
        if block is None or block[0] != key:
            first = key[1] * BLOCK
            positions = np.arange(first, min(first + BLOCK, len(self.dataset)), dtype=np.int64)
            block = (key, permute(len(self.dataset), self.seed or 0, epoch, positions))
            self._block = block
        return int(block[1][position % BLOCK])

    def _fetch(self, epoch: int, index: int) -> Any:
        if self._item is not None:
            return self._item(index, rng(self.seed or 0, epoch, index))
        if self._seeder is None or self._seeder.seed != (self.seed or 0):
            self._seeder = RngSeeder(self.seed or 0)
        self._seeder.reseed(ITEM, index, epoch)
        return self.dataset[index]


def _default_collate() -> Callable[[list[Any]], Any]:
    from torch.utils.data import default_collate

    return default_collate


def batch_names(feed: Any, epoch: int, step: int) -> Sequence[int] | None:
    """The items of a global batch where the feed can tell: for messages about a batch that went wrong."""
    indices = getattr(feed, "indices", None)
    return indices(epoch, step) if callable(indices) else None
