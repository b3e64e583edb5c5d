"""Batches of sentence pairs: bucketed by length, with as many sentences as fit into a token budget.

Rows are assigned to length buckets once; an epoch shuffles the rows inside their bucket and the batches among each
other. Both orders are keyed bijections, so that any batch of any epoch is found directly and every sentence comes once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput
from headway.data.dataset.rows import Rows
from headway.data.loading.loader import ConcatDataset, WeightedSource
from headway.data.loading.sampler import PaddingBatch, SampleGroup, SampleOrder, permute, quotas, share
from headway.data.text import END, PAD, START

_BUCKETS = 16  # maximum: more would pad less, but leave more batches partly filled
_BATCHES = 0x5EED0101  # separates the order of the batches from that of the rows


class SentenceFeed:
    """Batches as dictionaries of int64 tensors: `source` (… <end>), `target` (<start> … <end>), both padded, and `row`.

    `tokens` limits sentences × longest, on either side. Sentences of more than `max_length` tokens are skipped and
    counted in `left_out`. Without `training`, every pair comes once, in the same batches each time.
    """

    workers = 0

    def __init__(
        self,
        sources: Sequence[WeightedSource | Rows],
        tokens: int,
        *,
        training: bool,
        max_length: int = 100,
        seed: int | None = None,
    ) -> None:
        self.data, self.seed = ConcatDataset(sources), seed
        self._tokens, self._training, self._max = tokens, training, max_length
        if tokens < max_length + 2:
            raise BadInput(
                f"{tokens} tokens are too few for a sentence of {max_length}",
                fix="raise tokens, or max_length",
            )
        lengths = self._lengths()
        self.left_out = int((lengths > max_length + 2).sum())
        self._make_buckets(lengths)

    def _lengths(self) -> NDArray[np.int64]:
        """Return the length of each pair's longer side, with <start> and <end>."""
        sides = [
            np.concatenate([source.rows.lengths(column) for source in self.data.sources])
            for column in ("source_ids", "target_ids")
        ]
        return np.asarray(np.maximum(*sides) + 2, dtype=np.int64)

    def _make_buckets(self, lengths: NDArray[np.int64]) -> None:
        usable = np.flatnonzero(lengths <= self._max + 2)
        if not len(usable):
            raise BadInput(f"every sentence is longer than {self._max} tokens", fix="raise max_length")
        cuts = np.unique(np.quantile(lengths[usable], np.linspace(0, 1, _BUCKETS + 1)[1:], method="higher"))
        bucket_of = np.searchsorted(cuts, lengths)
        self._orders: list[SampleOrder] = []
        self._sizes: list[int] = []
        batches = []
        for number, longest in enumerate(cuts.tolist()):
            rows = usable[bucket_of[usable] == number]
            order = self._order(rows, usable)
            size = max(1, self._tokens // int(longest))
            self._orders.append(order)
            self._sizes.append(size)
            batches.append(-(-len(order) // size))
        self._starts = np.cumsum([0, *batches])

    def _order(self, rows: NDArray[np.int64], usable: NDArray[np.int64]) -> SampleOrder:
        """Return the bucket's sampling order: each source gets positions by its weight and its share of the bucket."""
        if not self._training or len(self.data.sources) == 1:
            return SampleOrder([SampleGroup(rows, 1.0)], len(rows), shuffle=self._training)
        whole = quotas([source.weight for source in self.data.sources], len(usable))
        pools, places = [], 0.0
        for number, wanted in enumerate(whole.tolist()):
            first, last = self.data.starts[number], self.data.starts[number + 1]
            mine = rows[(rows >= first) & (rows < last)]
            in_all = int(((usable >= first) & (usable < last)).sum())
            share = wanted * len(mine) / max(1, in_all)
            pools.append(SampleGroup(mine, share))
            places += share
        return SampleOrder(pools, max(1, round(places)), shuffle=True)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def fingerprint(self) -> str:
        settings = (self.data.fingerprint, self._tokens, self._training, self._max, self.seed)
        return hashlib.sha256(repr(settings).encode()).hexdigest()[:16]

    def indices(self, epoch: int, step: int, part: int = 0, parts: int = 1) -> list[int]:
        """Return the global row numbers of a batch, or of one rank's part."""
        seed = self.seed or 0
        number = step
        if self._training:
            number = int(permute(len(self), seed ^ _BATCHES, epoch, np.array([step]))[0])
        bucket = int(np.searchsorted(self._starts, number, side="right")) - 1
        order, size = self._orders[bucket], self._sizes[bucket]
        first = (number - int(self._starts[bucket])) * size
        start, stop = share(min(size, len(order) - first), part, parts)
        if start == stop:
            return []
        rows: list[int] = order.rows_at(seed + bucket, epoch, np.arange(first + start, first + stop)).tolist()
        return rows

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Any:
        """Return the batch as a dictionary, wrapped in a `PaddingBatch` if this part of the batch is empty."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of {len(self)}")
        rows = self.indices(epoch, step, part, parts)
        if rows:
            return self._made(rows)
        return PaddingBatch(self._made(self.indices(epoch, step)[:1]))

    def _made(self, rows: list[int]) -> dict[str, Any]:
        import torch

        located = self.data.locate(np.array(rows))
        source = [shard.cells("source_ids")[inside] for shard, inside in located]
        target = [shard.cells("target_ids")[inside] for shard, inside in located]
        return {
            "row": torch.tensor(rows),
            "source": torch.from_numpy(_padded(source, start=False)),
            "target": torch.from_numpy(_padded(target, start=True)),
        }


def _padded(sentences: Sequence[NDArray[np.int32]], *, start: bool) -> NDArray[np.int64]:
    longest = max(len(sentence) for sentence in sentences) + 1 + start
    table = np.full((len(sentences), longest), PAD, np.int64)
    for row, sentence in zip(table, sentences, strict=True):
        end = start + len(sentence)
        row[start:end] = sentence
        row[end] = END
    if start:
        table[:, 0] = START
    return table
