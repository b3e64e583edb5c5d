"""Corpus BLEU-1 to BLEU-4 of captions as coco-caption computes it: sums of clipped matches, closest reference length.

The BLEU of translations is sacrebleu's, in `translation.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.metrics.ngrams import ORDERS, Floats, Hypotheses, Ints, References

# coco-caption's guards against division by zero; part of the definition, since they affect the last digits.
_TINY, _SMALL = 1e-15, 1e-9


@dataclass(frozen=True, slots=True)
class BleuCounts:
    """Sufficient statistics of BLEU, one row per hypothesis. The corpus score is that of the summed rows.

    Attributes:
        correct: rows × orders: matches, clipped to the highest count in any one reference.
        guesses: rows × orders: n-grams in the hypothesis.
        length: Words of each hypothesis.
        reference_length: Words of the reference closest in length; the shorter on ties.
    """

    correct: Ints  # rows × orders: matches, clipped to the highest count in any one reference
    guesses: Ints  # rows × orders: n-grams in the hypothesis
    length: Ints
    reference_length: Ints  # of the reference closest in length; the shorter on ties

    def corpus(self) -> Floats:
        """Return BLEU-1 … BLEU-4 over all hypotheses.

        Returns:
            Four numbers.
        """
        scores: Floats = self.summed(np.ones((1, len(self.length))))[0]
        return scores

    def summed(self, weights: Floats) -> Floats:
        """Return BLEU-1 … BLEU-4 of resampled corpora.

        Args:
            weights: resamples × hypotheses: how often each hypothesis counts in each resample.

        Returns:
            resamples × 4 numbers.
        """
        counts = (self.correct, self.guesses, self.length, self.reference_length)
        return _bleu(*(weights @ count.astype(np.float64) for count in counts))

    def each(self) -> Floats:
        """Return BLEU-1 … BLEU-4 of each hypothesis alone.

        Returns:
            rows × 4 numbers.
        """
        return _bleu(self.correct, self.guesses, self.length, self.reference_length)


def _bleu(
    correct: Ints | Floats, guesses: Ints | Floats, length: Ints | Floats, reference_length: Ints | Floats
) -> Floats:
    """Return BLEU per row: geometric mean of the precisions times the brevity penalty."""
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
        # bincount sums as doubles, which represent these small integers exactly
        correct[:, order] = np.bincount(counted.caption[hit], weights=matches, minlength=rows)
    guesses = np.maximum(0, lengths[:, None] - np.arange(ORDERS))
    captions, sizes = references.captions_for(hypotheses.picture)
    return BleuCounts(correct, guesses, lengths, closest_lengths(lengths, references.lengths[captions], sizes))


def closest_lengths(lengths: Ints, theirs: Ints, sizes: Ints) -> Ints:
    """Return, for each hypothesis, the closest of its reference lengths; the shorter on ties.

    `theirs` are the lengths of all references; `sizes` are the numbers of consecutive references per hypothesis.
    """
    if len(lengths) == 0:
        return lengths
    # Combine distance and length into one sort key, distance first; its minimum is the answer.
    longest = int(theirs.max()) + 1
    rank = np.abs(theirs - np.repeat(lengths, sizes)) * longest + theirs
    closest: Ints = np.minimum.reduceat(rank, np.cumsum(sizes) - sizes) % longest
    return closest
