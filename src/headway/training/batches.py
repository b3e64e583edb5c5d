"""Training data as a pure function of epoch and step."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from headway.core.errors import BadInput
from headway.data.loading.sampler import PaddingBatch, permute, rng, share
from headway.training.context import log_line
from headway.training.determinism import ITEM, RngSeeder
from headway.training.devices import HostCopies, can_pin
from headway.training.distributed.process_group import ProcessGroup
from headway.training.iterables import (
    IterableReader,
    decode_state,
    die_with_parent,
    encode_state,
    let_workers_die_with_rank,
    relative_size,
)
from headway.training.nested import map_tensors
from headway.training.progress_state import TrainState

# Datasets as pure functions of (epoch, step, part): no position to save, and the same batches with any world size.
#
# A Feed is anything with `len()`, `batch(epoch, step, part, parts)` and `fingerprint`. `Loader` makes one from a map-
# style dataset. Shuffling and augmentation are keyed by (seed, epoch, index), so prefetching and resuming change
# nothing.


BLOCK = 4096  # indices shuffled at a time, so that one call of the permutation serves many steps


@runtime_checkable
class Feed(Protocol):
    """Protocol of training data: batches by number.

    `batch` must be a pure function that does not depend on earlier calls: a resumed run asks for the batches that it
    has not seen yet, and a run with more ranks for smaller parts of the same batches. `Loader` makes a Feed from a
    dataset.

    Example:
        >>> import torch
        >>> from headway import Feed
        >>> class Squares:
        ...     fingerprint = "squares-1"
        ...     def __len__(self):
        ...         return 4
        ...     def batch(self, epoch, step, part, parts):
        ...         x = torch.arange(8.0) + 8 * step
        ...         return x[part::parts], x[part::parts] ** 2
        >>> isinstance(Squares(), Feed)
        True
    """

    @property
    def fingerprint(self) -> str:
        """A digest that changes when the batches would: content, order, batch size."""

    def __len__(self) -> int:
        """Steps per epoch."""

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Any:
        """Return one part of one global batch.

        Args:
            epoch: Number of the epoch, from 0.
            step: Number of the batch in the epoch, from 0.
            part: Number of the part, from 0 to `parts` - 1.
            parts: Number of parts: ranks times micro-batches.

        Returns:
            The part, or a PaddingBatch if that part is empty.
        """


class Loader:
    """Make a Feed from a map-style dataset: batches in an order that depends on the seed and the epoch alone.

    If the dataset has `item(index, rng)`, the loader calls that with a numpy generator for each item of each epoch.
    Otherwise it indexes the dataset after seeding Python's, numpy's and torch's default generators, at about 10 µs per
    item.

    Args:
        dataset: An object with `__len__`, and `__getitem__` or `item`.
        batch_size: Items in a global batch, over all ranks.
        shuffle: Whether each epoch has an order of its own.
        collate: Makes a batch from a list of items; by default torch's `default_collate`.
        workers: Processes per rank that prepare batches in advance; 0 prepares them in the training process.
        drop_last: Whether to leave out an incomplete last batch, unless it is the only one.
        seed: Seed of order and augmentation. None: the run's seed.

    Raises:
        BadInput: If the dataset is empty or has no length, or the batch size is below 1.

    Example:
        >>> from headway import Loader
        >>> loader = Loader(list(range(10)), batch_size=4, shuffle=False)
        >>> len(loader)
        3
        >>> loader.batch(epoch=0, step=2, part=0, parts=1)
        tensor([8, 9])
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
            raise BadInput(f"the batch size is {batch_size}", fix="set it to 1 or more")
        if not hasattr(dataset, "__len__"):
            raise BadInput(
                f"{type(dataset).__name__} has no length, so its steps cannot be counted",
                fix="give the dataset a __len__, or pass it to run.steps in a torch.utils.data.DataLoader",
            )
        if len(dataset) == 0:
            raise BadInput("the dataset is empty", fix="check its path and filters")

    def __len__(self) -> int:
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (1 if rest and not (self.drop_last and whole) else 0)

    @property
    def fingerprint(self) -> str:
        """Digest of the dataset (its own `fingerprint`, or its type), its length and the loader's settings."""
        inner = getattr(self.dataset, "fingerprint", type(self.dataset).__qualname__)
        settings = (inner, len(self.dataset), self.batch_size, self.shuffle, self.drop_last, self.seed)
        return hashlib.sha256(repr(settings).encode()).hexdigest()[:16]

    def indices(self, epoch: int, step: int, part: int = 0, parts: int = 1) -> list[int]:
        """Return the indices of the items in a batch. Error messages about a bad batch name them, too.

        Args:
            epoch: Number of the epoch, from 0.
            step: Number of the batch in the epoch, from 0.
            part: Number of the part, from 0 to `parts` - 1.
            parts: Number of parts into which the batch is divided.

        Returns:
            Indices into the dataset.

        Example:
            >>> from headway import Loader
            >>> Loader("abcdef", batch_size=4, shuffle=False).indices(epoch=0, step=0, part=1, parts=2)
            [2, 3]
        """
        first = step * self.batch_size
        start, stop = share(min(self.batch_size, len(self.dataset) - first), part, parts)
        if not self.shuffle:
            return list(range(first + start, first + stop))
        return [self._at(epoch, first + offset) for offset in range(start, stop)]

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Any:
        """Return one part of one global batch, collated.

        Args:
            epoch: Number of the epoch, from 0.
            step: Number of the batch in the epoch, from 0.
            part: Number of the part, from 0 to `parts` - 1.
            parts: Number of parts: ranks times micro-batches.

        Returns:
            The part, or a PaddingBatch if that part is empty.
        """
        chosen = self.indices(epoch, step, part, parts)
        if chosen:
            return self._collate([self._fetch(epoch, index) for index in chosen])
        padding_index = self.indices(epoch, step)[0]
        return PaddingBatch(self._collate([self._fetch(epoch, padding_index)]))

    def part_weight(self, step: int, part: int, parts: int) -> float:
        """Return the size of a part relative to an equal one: 1.0 where all parts of the batch are of one size.

        Args:
            step: Number of the batch in the epoch, from 0.
            part: Number of the part, from 0 to `parts` - 1.
            parts: Number of parts: ranks times micro-batches.

        Returns:
            What a mean loss over this part weighs in the mean over the batch; 0 for an empty part.

        Example:
            >>> from headway import Loader
            >>> [Loader("abcdef", batch_size=3).part_weight(0, part, parts=2) for part in (0, 1)]
            [1.3333333333333333, 0.6666666666666666]
        """
        size = min(self.batch_size, len(self.dataset) - step * self.batch_size)
        start, stop = share(size, part, parts)
        return (stop - start) * parts / size

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


def batch_indices(feed: Any, epoch: int, step: int) -> Sequence[int] | None:
    """Return the items of a global batch if the feed can name them, for messages about a bad batch."""
    indices = getattr(feed, "indices", None)
    return indices(epoch, step) if callable(indices) else None


# This rank's batches from any position, prefetched by worker processes if the feed asks for them.
#
# Feeds are pure functions, so prefetching changes nothing. `iterables` reads everything else.


Key = tuple[int, int, int, int]  # epoch, step, part, parts


class KeySampler(Sampler[Key]):
    """Yields the keys of an epoch's batches from a step on, in the order in which workers produce them."""

    def __init__(self) -> None:
        self.epoch, self.first, self.last, self.parts = 0, 0, 0, range(1)
        self.total_parts = 1

    def __iter__(self) -> Iterator[Key]:
        for step in range(self.first, self.last):
            for part in self.parts:
                yield self.epoch, step, part, self.total_parts


class KeyedDataset(Dataset[Any]):
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __getitem__(self, key: Key) -> Any:
        return self._feed.batch(*key)


class WorkerPrefetcher:
    """Worker processes for one feed, kept across epochs."""

    def __init__(self, feed: Feed, workers: int, *, pin: bool = False) -> None:
        self._keys = KeySampler()
        self._loader: DataLoader[Any] = DataLoader(
            KeyedDataset(feed),
            batch_size=None,
            sampler=self._keys,
            num_workers=workers,
            collate_fn=_identity,
            worker_init_fn=_init_worker,
            persistent_workers=True,
            multiprocessing_context="fork",  # workers inherit the feed: nothing is pickled or loaded again
            pin_memory=pin,
            generator=torch.Generator(),  # not the default generator, which belongs to the model
        )

    def batches(self, epoch: int, first: int, last: int, parts: range, total_parts: int) -> Iterator[Any]:
        keys = self._keys
        keys.epoch, keys.first, keys.last, keys.parts, keys.total_parts = epoch, first, last, parts, total_parts
        return iter(self._loader)

    def close(self) -> None:
        """Shut the workers down, and kill those that remain: they ignore SIGTERM and SIGINT."""
        iterator = self._loader._iterator
        if iterator is None:
            return
        workers = list(getattr(iterator, "_workers", ()))
        iterator._shutdown_workers()  # type: ignore[attr-defined]
        for worker in workers:
            worker.kill()
        self._loader._iterator = None


def batches_from_feed(feed: Feed, epoch: int, first: int, parts: range, total_parts: int) -> Iterator[Any]:
    """Yield the same batches without workers, in this process."""
    for step in range(first, len(feed)):
        for part in parts:
            yield feed.batch(epoch, step, part, total_parts)


def _identity(batch: Any) -> Any:
    return batch


def _init_worker(worker: int) -> None:
    """Make a worker ignore the signals meant for its rank, and die with the rank."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()


class RankBatches:
    """This rank's batches from a Feed, a DataLoader or any iterable. Workers live as long as the run."""

    def __init__(self, group: ProcessGroup, device: torch.device, seeder: RngSeeder) -> None:
        self._group, self._world, self._device, self._seeder = group, group.world, device, seeder
        self.on_cpu = device.type == "cpu"
        self._copies = None if self.on_cpu else HostCopies(device)
        self._prefetchers: dict[int, WorkerPrefetcher] = {}
        self._readers: dict[int, IterableReader] = {}
        self._reader: IterableReader | None = None  # of the iterable that was read last
        self._restored: dict[str, Any] | None = None
        self.micros = 1  # micro-batches of the current step: the last of an iterable may have fewer

    def set_seed(self, feed: Any) -> None:
        """Give the run's seed to a feed that has none."""
        if getattr(feed, "seed", 0) is None:
            feed.seed = self._seeder.seed

    def training_batches(self, feed: Any, position: TrainState, micros: int) -> Iterator[Any]:
        """Yield this rank's micro-batches of the epoch from the position on; PaddingBatch where a part is empty."""
        world = self._world
        self.micros = micros
        if not isinstance(feed, Feed):
            batches = self._from_iterable(feed, position, micros)
            return batches if micros == 1 else self._grouped(batches, micros)
        self.set_seed(feed)
        parts, total_parts = range(world.rank * micros, (world.rank + 1) * micros), world.size * micros
        workers = getattr(feed, "workers", 0)
        if not workers:
            return batches_from_feed(feed, position.passed, position.batch, parts, total_parts)
        return self._prefetcher(feed, workers).batches(position.passed, position.batch, len(feed), parts, total_parts)

    def _from_iterable(self, source: Any, position: TrainState, micros: int) -> Iterator[Any]:
        reader = self._reader = self._reader_of(source)
        restored, self._restored = self._restored, None
        if restored is not None:
            reader.restore(restored, position)
        if position.batch and self._world.rank == 0:
            log_line(reader.describe_resume(position.batch))
        return reader.epoch(position, position.batch * micros)

    def _reader_of(self, source: Any) -> IterableReader:
        known = self._readers.get(id(source))
        if known is None:
            self._readers = {key: reader for key, reader in self._readers.items() if not reader.read_once}
            known = self._readers[id(source)] = IterableReader(source, self._group, self._seeder)
        return known

    def _grouped(self, batches: Iterator[Any], micros: int) -> Iterator[Any]:
        """Yield micro-batches, of which an epoch's last step may have fewer: none is carried into the next epoch."""
        while group := list(islice(batches, micros)):
            self.micros = len(group)
            yield from group

    def batches_per_step(self, micros: int) -> int:
        """Return how many batches of the iterable that is being read make a step of all ranks."""
        return micros * (self._reader.rounds if self._reader is not None else 1)

    # State of iterables in checkpoints

    def state(self, position: TrainState) -> list[str] | None:
        """Return the ranks' states of the iterable that was read last; None for a Feed, which has no state."""
        if self._reader is None:
            return None
        return self._group.all_gather_text(encode_state(self._reader.state(position)))

    def restore(self, states: Sequence[str] | None) -> None:
        """Continue the next iterable from the states in a checkpoint."""
        if not states:
            return
        if len(states) != self._world.size:
            log_line(f"the data's position was saved by {len(states)} ranks and cannot be restored on another number")
            return
        self._restored = decode_state(states[self._world.rank])

    def share(self, feed: Any, position: TrainState, micro: int, micros: int) -> float:
        """Return the weight of this rank's micro-batch in the mean over the batch, where the feed can tell; else 1."""
        part_weight = getattr(feed, "part_weight", None)
        if not callable(part_weight):
            return relative_size(feed, position.batch * micros + micro) if micros > 1 else 1.0
        parts = self._world.size * micros
        return float(part_weight(position.batch, self._world.rank * micros + micro, parts))

    def evaluation_batches(self, feed: Any) -> Iterator[Any]:
        """Yield whole batches, round-robin over ranks: without padding, so that sums and counts need no correction."""
        rank, size = self._world.rank, self._world.size
        if not isinstance(feed, Feed):
            let_workers_die_with_rank(feed)
            if isinstance(getattr(feed, "sampler", None), DistributedSampler):
                return iter(feed)  # it gives each rank its own part
            return (batch for number, batch in enumerate(feed) if number % size == rank)
        self.set_seed(feed)
        return (feed.batch(0, step, 0, 1) for step in range(rank, len(feed), size))

    def to_device(self, batch: Any) -> Any:
        """Return the batch on this rank's device, without its PaddingBatch wrapper."""
        inner = batch.batch if type(batch) is PaddingBatch else batch
        return inner if self._copies is None else map_tensors(inner, self._copies)

    def close(self) -> None:
        for prefetcher in self._prefetchers.values():
            prefetcher.close()

    def _prefetcher(self, feed: Feed, workers: int) -> WorkerPrefetcher:
        if id(feed) not in self._prefetchers:
            self._prefetchers[id(feed)] = WorkerPrefetcher(feed, workers, pin=can_pin(self._device))
        return self._prefetchers[id(feed)]
