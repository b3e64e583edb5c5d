"""ROUGE-L as coco-caption computes it: the best precision and the best recall over the references, apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_BETA2 = 1.2**2


def rouge_l(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """ROUGE-L of each tokenised hypothesis."""
    each = (rouge_l_of(mine, theirs) for mine, theirs in zip(hypotheses, references, strict=True))
    return np.fromiter(each, np.float64, len(hypotheses))


def rouge_l_of(hypothesis: str, references: Sequence[str]) -> float:
    # Split at single blanks, as coco-caption does: an empty caption is one empty word, and equals another empty one.
    words = hypothesis.split(" ")
    bits = dict[str, int]()
    for place, word in enumerate(words):
        bits[word] = bits.get(word, 0) | 1 << place
    everything = (1 << len(words)) - 1
    precision = recall = 0.0
    for reference in references:
        theirs = reference.split(" ")
        common = _common(bits, everything, theirs)
        precision, recall = max(precision, common / len(words)), max(recall, common / len(theirs))
    if not precision:
        return 0.0
    return (1 + _BETA2) * precision * recall / (recall + _BETA2 * precision)


def _common(bits: dict[str, int], everything: int, words: list[str]) -> int:
    """The length of the longest common subsequence, a whole row of the table in one integer (Hyyrö 2004)."""
    row = everything  # a zero bit: the subsequence grew by one at this place
    for word in words:
        match = row & bits.get(word, 0)
        if match:
            row = (row + match | row - match) & everything
    return (everything ^ row).bit_count() if row != everything else 0
