"""Which batches this rank gets, from whatever the script hands over: a feed, a DataLoader, any sized iterable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from headway.data.partition import Filler
from headway.runtime.control import say
from headway.runtime.feed import Feed
from headway.runtime.identity import World
from headway.runtime.position import Position
from headway.runtime.prefetch import Prefetcher, from_feed, from_iterable
from headway.runtime.randomness import Dice


class Supply:
    """Batches for one rank. Worker processes are kept for as long as the run lives."""

    def __init__(self, world: World, device: torch.device, dice: Dice) -> None:
        self._world, self._device, self._dice = world, device, dice
        self.on_cpu = device.type == "cpu"
        self._prefetchers: dict[int, Prefetcher] = {}

    def adopt(self, feed: Any) -> None:
        """A feed without a seed of its own gets the run's."""
        if getattr(feed, "seed", 0) is None:
            feed.seed = self._dice.seed

    def training(self, feed: Any, position: Position, micros: int) -> Iterator[Any]:
        """This rank's micro-batches of the epoch from the position on; `Filler` where a part is empty."""
        world = self._world
        if not isinstance(feed, Feed):
            if position.batch and world.rank == 0:
                say(f"{type(feed).__name__} cannot be entered in the middle: replaying {position.batch} batches")
            skip = position.batch * micros
            return from_iterable(feed, self._dice, position.passed, skip, world.size)
        self.adopt(feed)
        parts, of = range(world.rank * micros, (world.rank + 1) * micros), world.size * micros
        workers = getattr(feed, "workers", 0)
        if not workers:
            return from_feed(feed, position.passed, position.batch, parts, of)
        return self._prefetcher(feed, workers).batches(position.passed, position.batch, len(feed), parts, of)

    def evaluation(self, feed: Any) -> Iterator[Any]:
        """Whole batches, dealt out in turn: nothing is padded, so sums and counts are right as they are."""
        rank, size = self._world.rank, self._world.size
        if not isinstance(feed, Feed):
            return (batch for number, batch in enumerate(feed) if number % size == rank)
        self.adopt(feed)
        return (feed.batch(0, step, 0, 1) for step in range(rank, len(feed), size))

    def placed(self, batch: Any) -> Any:
        """The batch itself, on this rank's device."""
        inner = batch.batch if type(batch) is Filler else batch
        return inner if self.on_cpu else moved(inner, self._device)

    def close(self) -> None:
        for prefetcher in self._prefetchers.values():
            prefetcher.close()

    def _prefetcher(self, feed: Feed, workers: int) -> Prefetcher:
        if id(feed) not in self._prefetchers:
            self._prefetchers[id(feed)] = Prefetcher(feed, workers, pin=self._device.type == "cuda")
        return self._prefetchers[id(feed)]


def moved(batch: Any, device: torch.device) -> Any:
    """Every tensor of a nested batch on the device, without waiting."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: moved(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(value, device) for value in batch)
    return batch
