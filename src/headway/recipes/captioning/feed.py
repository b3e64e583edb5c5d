"""Batches for training and evaluation: pure functions of their number, whoever asks, on however many ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.mix import Order, Pool
from headway.data.partition import Filler, share
from headway.data.permutation import uniforms
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import Numbers, Pictures
from headway.recipes.captioning.words import Vocabulary

_WHICH_CAPTIONS, _WHICH_SIDE = 1, 2  # random streams
EVALUATED_AT_ONCE: Final = 32  # what a wide beam computes of more at once leaves the cache


class Batch(NamedTuple):
    """Some pictures, as the model takes them."""

    rows: Tensor  # which, numbered through all sources
    pictures: Tensor  # uint8 (n, 3, side, side), or the grids (n, cells, channels) that a frozen encoder makes of them
    captions: Tensor | None = None  # int64 (n, captions each, length), PAD at the end


class Views(Protocol):
    """What the model is given of each picture of a source."""

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor: ...


class Sources:
    """Several sources as one: rows are numbered through."""

    def __init__(self, pictures: Sequence[Pictures], views: Sequence[Views] | None = None) -> None:
        self.pictures = list(pictures)
        self.starts = np.cumsum([0, *(len(source) for source in pictures)])
        self._views: list[Views] = list(views or (source.pixels for source in pictures))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def pools(self) -> list[Pool]:
        bounds = zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), self.pictures, strict=True)
        return [Pool(range(start, stop), source.weight) for start, stop, source in bounds]

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor:
        if len(self._views) == 1:
            return self._views[0].read(rows, mirrored)
        which = np.searchsorted(self.starts, rows, side="right") - 1
        made: Tensor | None = None
        for number in np.unique(which).tolist():
            mine = np.flatnonzero(which == number)
            part = self._views[number].read(
                rows[mine] - self.starts[number], None if mirrored is None else mirrored[mine]
            )
            made = part.new_empty(len(rows), *part.shape[1:]) if made is None else made
            made[torch.from_numpy(mine)] = part
        assert made is not None
        return made


class TrainingFeed:
    """Batches of pictures, each with some of its captions, shuffled anew in every epoch. Nothing is remembered.

    Sources are drawn from by weight; an epoch has as many pictures as all of them together.
    """

    def __init__(self, cfg: Config, sources: Sources, words: Vocabulary, *, seed: int) -> None:
        self.workers, self.seed, self.sources = cfg.workers, seed, sources
        self._mirror, self._each = cfg.mirror, cfg.captions
        self._batch = min(cfg.batch, len(sources))
        self._order = Order(sources.pools(), len(sources))
        self._said, self._counts = _numbered(sources.pictures, words, cfg.max_length)
        seen = [(pictures.fingerprint, pictures.weight) for pictures in sources.pictures]
        asked = (seen, words.words, seed, self._batch, cfg.captions, cfg.max_length, cfg.mirror, cfg.side)
        self._fingerprint = hashlib.sha256(repr(asked).encode()).hexdigest()[:16]

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def __len__(self) -> int:
        """Whole batches: another order in every epoch leaves out others."""
        return len(self._order) // self._batch

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Batch | Filler:
        start, stop = share(self._batch, part, parts)
        positions = step * self._batch + np.arange(start, max(stop, start + 1))
        made = self._made(epoch, positions)
        return made if stop > start else Filler(made)

    def _made(self, epoch: int, positions: Numbers) -> Batch:
        """Each picture with `captions` of its references, chosen without repeating one before all had their turn."""
        rows = self._order.at(self.seed, epoch, positions)
        chance = uniforms(self.seed, epoch, positions, self._said.shape[1], stream=_WHICH_CAPTIONS)
        index = torch.from_numpy(rows)
        has = self._counts[index]
        beyond = np.arange(self._said.shape[1])[None] >= has.numpy()[:, None]
        order = torch.from_numpy(np.argsort(chance + beyond, axis=1, kind="stable"))
        which = order.gather(1, torch.arange(self._each)[None] % has[:, None])
        captions = self._said[index[:, None], which].long()
        longest = int((captions != 0).sum(dim=2).max())
        mirrored = uniforms(self.seed, epoch, positions, 1, stream=_WHICH_SIDE)[:, 0] < 0.5 if self._mirror else None
        return Batch(index, self.sources.read(rows, mirrored), captions[:, :, :longest])


def _numbered(sources: Sequence[Pictures], words: Vocabulary, max_length: int) -> tuple[Tensor, Tensor]:
    """All references as numbers (pictures, the most references, length), and how many each picture has."""
    every = [said for pictures in sources for said in pictures.references]
    counts = torch.tensor([len(said) for said in every])
    rows = np.zeros((len(every), int(counts.max()), max_length + 2), np.int32)
    for row, said in zip(rows, every, strict=True):
        for n, text in enumerate(said):
            numbers = words.encode(text, max_length=max_length)
            row[n, : len(numbers)] = numbers
    return torch.from_numpy(rows), counts


class EvaluationFeed:
    """All pictures once, in order; of `both_sides`, as two views each (n, 2, …), the second mirrored."""

    workers = 0

    def __init__(self, sources: Sources, batch: int = EVALUATED_AT_ONCE, *, both_sides: bool = False) -> None:
        self._sources, self._batch, self._both = sources, batch, both_sides

    @property
    def fingerprint(self) -> str:
        return f"{len(self._sources)} in order"

    def __len__(self) -> int:
        return -(-len(self._sources) // self._batch)

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Batch:
        first = step * self._batch
        start, stop = share(min(self._batch, len(self._sources) - first), part, parts)
        rows = np.arange(first + start, first + stop)
        seen = self._sources.read(rows)
        if self._both:
            seen = torch.stack([seen, self._sources.read(rows, np.ones(len(rows), np.bool_))], dim=1)
        return Batch(torch.from_numpy(rows), seen)
