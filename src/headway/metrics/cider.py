"""CIDEr as coco-caption's "Cider" computes it (the paper's CIDEr-D): tf-idf similarity of n-grams, times ten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.metrics.ngrams import ORDERS, Floats, Hypotheses, Ints, NgramCells, NgramCounts, References

_SIGMA = 6.0  # standard deviation of the length penalty
_SCALE = 10.0


class Cider:
    """CIDEr against references indexed once, with precomputed document frequencies and norms.

    Made for validation after every epoch and for rewards: several hypotheses may belong to one picture, in any order.
    All captions must be tokenised. A call's cost depends on its hypotheses, hardly on the references.

    Args:
        references: For each picture, its tokenised reference captions; or references indexed already.

    Raises:
        BadInput: If a picture has no references.

    Example:
        >>> from headway.metrics.cider import Cider
        >>> cider = Cider([["a dog runs on grass"], ["two cats sleep in bed"]])
        >>> [round(float(score), 3) for score in cider.scores(["a dog runs on grass", "one bird"], picture=[0, 0])]
        [10.0, 0.0]
    """

    def __init__(self, references: References | Sequence[Sequence[str]]) -> None:
        self.references = references if isinstance(references, References) else References(references)
        self._rarest = float(np.log(max(1, self.references.pictures)))  # the weight of an n-gram that no picture has
        self._orders = [self._prepared(cells) for cells in self.references.cells]

    def scores(self, hypotheses: Sequence[str], picture: Sequence[int] | None = None) -> Floats:
        """Score tokenised hypotheses.

        Args:
            hypotheses: Tokenised captions.
            picture: Number of the picture of each hypothesis. None: the i-th belongs to the i-th picture.

        Returns:
            One score per hypothesis.

        Raises:
            BadInput: If the numbers of hypotheses and pictures differ, or a picture does not exist.
        """
        return self.scores_of(self.references.read(hypotheses, picture))

    def scores_of(self, hypotheses: Hypotheses) -> Floats:
        """Score hypotheses already indexed by `References.read`.

        Args:
            hypotheses: The indexed hypotheses.

        Returns:
            One score per hypothesis.
        """
        pairs = _pairs(self.references, hypotheses)
        similarity = np.zeros(len(pairs.reference))
        for order, counted in zip(self._orders, hypotheses.counted, strict=True):
            similarity += self._similarity(order, counted, hypotheses, pairs)
        similarity *= np.exp(-(_length_gap(self.references, hypotheses, pairs) ** 2) / (2 * _SIGMA**2))
        total = np.bincount(pairs.hypothesis, weights=similarity, minlength=len(hypotheses.picture))
        scores: Floats = total / ORDERS / self.references.sizes[hypotheses.picture] * _SCALE
        return scores

    def _prepared(self, cells: NgramCells) -> _Order:
        idf = self._rarest - np.log(np.maximum(1, cells.pictures_with()))
        entries = cells.counted(self.references.first)
        norms = _norms(entries, idf[entries.gram], len(self.references.captions))
        return _Order(cells, entries.caption, idf, norms)

    def _similarity(self, order: _Order, counted: NgramCounts, hypotheses: Hypotheses, pairs: _Pairs) -> Floats:
        """Return, per pair, the clipped cosine similarity of the tf-idf vectors of this order."""
        weight, known = np.full(len(counted.gram), self._rarest), counted.gram < len(order.idf)
        weight[known] = order.idf[counted.gram[known]]
        norms = _norms(counted, weight, len(hypotheses.picture))
        place, overlap = _overlaps(order, counted, weight, hypotheses, pairs)
        product = np.bincount(place, weights=overlap, minlength=len(pairs.reference))
        length = norms[pairs.hypothesis] * order.norms[pairs.reference]
        return np.divide(product, length, out=np.zeros(len(length)), where=length > 0)


@dataclass(frozen=True, slots=True)
class _Order:
    """Precomputed data of the references' n-grams of one order."""

    cells: NgramCells
    caption: Ints  # caption of each entry of the cells
    idf: Floats  # per n-gram
    norms: Floats  # per reference


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Every hypothesis with every reference of its picture."""

    hypothesis: Ints
    reference: Ints
    start: Ints  # index of each hypothesis's first pair


def _pairs(references: References, hypotheses: Hypotheses) -> _Pairs:
    reference, sizes = references.captions_for(hypotheses.picture)
    return _Pairs(np.repeat(np.arange(len(sizes)), sizes), reference, np.cumsum(sizes) - sizes)


def _overlaps(
    order: _Order, counted: NgramCounts, weight: Floats, hypotheses: Hypotheses, pairs: _Pairs
) -> tuple[Ints, Floats]:
    """Return, for each n-gram shared by a hypothesis and a reference, its pair and its contribution."""
    cells = order.cells
    cell = cells.find(hypotheses.picture[counted.caption], counted.gram)
    hit = np.flatnonzero(cell >= 0)
    starts = cells.starts[cell[hit]]
    sizes = cells.starts[cell[hit] + 1] - starts
    mine = np.repeat(hit, sizes)
    entry = np.arange(len(mine)) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    theirs = cells.counts[entry]
    start = pairs.start[counted.caption[mine]]
    place = start + order.caption[entry] - pairs.reference[start]
    return place, np.minimum(counted.count[mine], theirs) * theirs * weight[mine] ** 2


def _length_gap(references: References, hypotheses: Hypotheses, pairs: _Pairs) -> Ints:
    """Return the difference in length, counted in bigrams as coco-caption does: a caption of one word has none."""
    mine, theirs = hypotheses.flat.lengths[pairs.hypothesis], references.lengths[pairs.reference]
    return np.maximum(0, mine - 1) - np.maximum(0, theirs - 1)


def _norms(counted: NgramCounts, weight: Floats, captions: int) -> Floats:
    """Return the norm of each caption's tf-idf vector."""
    return np.sqrt(np.bincount(counted.caption, weights=(counted.count * weight) ** 2, minlength=captions))
