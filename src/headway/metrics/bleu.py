"""Corpus BLEU-1 to BLEU-4 as coco-caption computes it: sums of clipped matches, closest reference length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from headway.core.errors import BadInput
from headway.metrics.ngrams import (
    ORDERS,
    Floats,
    Hypotheses,
    Ints,
    NgramTable,
    References,
    Vocabulary,
    find,
    flatten,
    runs,
)

# coco-caption's own guards against dividing by zero; part of the definition, since they show in the last digits.
_TINY, _SMALL = 1e-15, 1e-9


@dataclass(frozen=True, slots=True)
class BleuCounts:
    """What BLEU is made of, one row a hypothesis. Rows may be summed: that is what the corpus score does."""

    correct: Ints  # rows × orders: matches, clipped at the highest count in one reference
    guesses: Ints  # rows × orders: n-grams in the hypothesis
    length: Ints
    reference_length: Ints  # of the reference closest in length, the shorter of two equally close

    def corpus(self) -> Floats:
        """BLEU-1 … BLEU-4 of all hypotheses together."""
        scores: Floats = self.summed(np.ones((1, len(self.length))))[0]
        return scores

    def summed(self, weights: Floats) -> Floats:
        """BLEU-1 … BLEU-4 of the corpora in which hypothesis j is counted weights[i, j] times, for every i."""
        counts = (self.correct, self.guesses, self.length, self.reference_length)
        return _bleu(*(weights @ count.astype(np.float64) for count in counts))

    def each(self) -> Floats:
        """BLEU-1 … BLEU-4 of each hypothesis by itself."""
        return _bleu(self.correct, self.guesses, self.length, self.reference_length)


def _bleu(
    correct: Ints | Floats, guesses: Ints | Floats, length: Ints | Floats, reference_length: Ints | Floats
) -> Floats:
    """BLEU of each row: precisions multiply up order by order, and shortness is punished."""
    precision = (correct + _TINY) / (guesses + _SMALL)
    means = np.cumprod(precision, axis=1) ** (1.0 / np.arange(1, ORDERS + 1))
    ratio = (length + _TINY) / (reference_length + _SMALL)
    penalty = np.exp(np.minimum(0.0, 1.0 - 1.0 / ratio))
    scores: Floats = means * penalty[:, None]
    return scores


def bleu_counts(references: References, hypotheses: Hypotheses) -> BleuCounts:
    rows, lengths = len(hypotheses.picture), hypotheses.flat.lengths
    correct = np.zeros((rows, ORDERS), np.int64)
    for order, (counted, cells) in enumerate(zip(hypotheses.counted, references.cells, strict=True)):
        cell = cells.find(hypotheses.picture[counted.caption], counted.gram)
        hit = np.flatnonzero(cell >= 0)
        matches = np.minimum(counted.count[hit], cells.most[cell[hit]])
        # bincount adds doubles, which hold these small integers exactly
        correct[:, order] = np.bincount(counted.caption[hit], weights=matches, minlength=rows)
    guesses = np.maximum(0, lengths[:, None] - np.arange(ORDERS))
    captions, sizes = references.captions_for(hypotheses.picture)
    return BleuCounts(correct, guesses, lengths, closest_lengths(lengths, references.lengths[captions], sizes))


def closest_lengths(lengths: Ints, theirs: Ints, sizes: Ints) -> Ints:
    """For each hypothesis the closest of its reference lengths, the shorter where two are equally close.

    `theirs` are the lengths of all references, `sizes` how many of them in turn belong to each hypothesis.
    """
    if len(lengths) == 0:
        return lengths
    # The distance weighs most, then the length itself: one number whose minimum is the answer.
    longest = int(theirs.max()) + 1
    rank = np.abs(theirs - np.repeat(lengths, sizes)) * longest + theirs
    closest: Ints = np.minimum.reduceat(rank, np.cumsum(sizes) - sizes) % longest
    return closest


# BLEU when nothing else is asked for: only the n-grams of references that their picture's hypothesis has are
# followed.
#
# Most words of a reference are not in the hypothesis, and few pairs of them are, so each order looks at fewer places
# than the one before. The counts are those of `bleu_counts`, without an index of the references.


def bleu_counts_alone(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> BleuCounts:
    """The counts of one tokenised hypothesis a picture against the references of that picture."""
    if len(hypotheses) != len(references):
        raise BadInput(f"{len(hypotheses)} hypotheses for {len(references)} pictures")
    sizes = np.fromiter(map(len, references), np.int64, len(references))
    if not sizes.all():
        raise BadInput(f"picture {int(np.argmin(sizes))} has no references")
    vocabulary = Vocabulary()
    mine = flatten(hypotheses, vocabulary.words)
    orders = list(vocabulary.learn(mine))
    flat = flatten(list(chain.from_iterable(references)), dict(vocabulary.words))
    caption, left = flat.caption(), flat.left()
    picture = np.repeat(np.repeat(np.arange(len(sizes)), sizes), flat.lengths)
    correct = np.zeros((len(hypotheses), ORDERS), np.int64)
    at = np.flatnonzero(flat.words < len(vocabulary.words))
    gram = flat.words[at]
    for order, grams in enumerate(orders):
        if order:
            at, gram = at[left[at] > order], gram[left[at] > order]
            last = flat.words[at + order]
            gram = find(vocabulary.tables[order - 1], gram * len(vocabulary.words) + last)
            known = (gram >= 0) & (last < len(vocabulary.words))
            at, gram = at[known], gram[known]
        matched, hit = _matched(grams, picture[at], gram, caption[at], len(hypotheses))
        correct[:, order] = matched
        at, gram = at[hit], gram[hit]
    guesses = np.maximum(0, mine.lengths[:, None] - np.arange(ORDERS))
    return BleuCounts(correct, guesses, mine.lengths, closest_lengths(mine.lengths, flat.lengths, sizes))


def _matched(grams: NgramTable, picture: Ints, gram: Ints, caption: Ints, pictures: int) -> tuple[Ints, Ints]:
    """The clipped matches of each hypothesis in one order, and which of the references' n-grams they have."""
    bits = grams.kinds.bit_length()
    mine, starts = runs(np.sort(grams.caption << bits | grams.gram))
    counts = np.diff(starts, append=len(grams.gram))
    place = np.minimum(np.searchsorted(mine, picture << bits | gram), max(0, len(mine) - 1))
    hit = np.flatnonzero(mine[place] == picture << bits | gram) if len(mine) else place[:0]
    # One entry for each n-gram and reference, then the reference that has it most often.
    shift = int(caption.max(initial=0)).bit_length()
    entries, at = runs(np.sort(place[hit] << shift | caption[hit]))
    most = np.zeros(len(mine), np.int64)
    np.maximum.at(most, entries >> shift, np.diff(at, append=len(hit)))
    matches = np.bincount(mine >> bits, weights=np.minimum(counts, most), minlength=pictures)
    return matches.astype(np.int64), hit
