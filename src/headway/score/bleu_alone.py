"""BLEU when nothing else is asked for: only the n-grams of references that their picture's hypothesis has are followed.

Most words of a reference are not in the hypothesis, and few pairs of them are, so each order looks at fewer places than
the one before. The counts are those of `bleu_counts`, without an index of the references.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from headway.errors import BadInput
from headway.score.bleu import BleuCounts, closest_lengths
from headway.score.ngrams import ORDERS, Grams, Ints, Vocabulary, find, flatten, runs


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


def _matched(grams: Grams, picture: Ints, gram: Ints, caption: Ints, pictures: int) -> tuple[Ints, Ints]:
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
