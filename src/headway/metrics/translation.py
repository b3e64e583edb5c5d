"""Translation metrics by sacrebleu, with the signatures that make scores comparable with published ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.core.errors import BadInput, MissingExtra
from headway.metrics.classification import Floats, Ints

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]] | Sequence[str],
    *,
    tokenizer: str = "13a",
    lowercase: bool = False,
) -> dict[str, Any]:
    """Return corpus BLEU and chrF of sentences by sacrebleu, with its signatures.

    Args:
        hypotheses: The translations, one per sentence.
        references: One list of reference sentences, or several lists if each sentence has several translations.
        tokenizer: Name of a sacrebleu tokenizer.
        lowercase: Whether to ignore case.

    Returns:
        bleu and chrf with their signatures, and precisions, brevity_penalty, length_ratio, sentences and references.

    Raises:
        BadInput: If there are no sentences, their numbers differ, or sacrebleu has no such tokenizer.
        MissingExtra: If sacrebleu is not installed.

    Example:
        >>> from headway.metrics.translation import score
        >>> scores = score(["the dog runs in the park"], ["the dog runs in the park"])
        >>> round(scores["bleu"], 1), round(scores["chrf"], 1)
        (100.0, 100.0)
    """
    sets = _checked(hypotheses, references)
    metric, chrf = _bleu(tokenizer, lowercase), _chrf()
    bleu, characters = metric.corpus_score(list(hypotheses), sets), chrf.corpus_score(list(hypotheses), sets)
    return {
        "bleu": float(bleu.score),
        "chrf": float(characters.score),
        "precisions": [float(value) for value in bleu.precisions],
        "brevity_penalty": float(bleu.bp),
        "length_ratio": bleu.sys_len / bleu.ref_len if bleu.ref_len else None,
        "sentences": len(hypotheses),
        "references": len(sets),
        "signature": f"BLEU|{metric.get_signature()}",
        "chrf_signature": f"chrF2|{chrf.get_signature()}",
    }


@dataclass(frozen=True, slots=True)
class TranslationCounts:
    """Sufficient statistics of sacrebleu's BLEU, one row per sentence; rows can be summed.

    Attributes:
        correct: sentences × 4: clipped matches.
        guesses: sentences × 4: n-grams in the translation.
        length: Tokens of each translation.
        reference_length: Tokens of the reference closest in length.
    """

    correct: Ints  # sentences × 4
    guesses: Ints
    length: Ints
    reference_length: Ints

    def summed(self, weights: Floats) -> Floats:
        """Return corpus BLEU of resampled corpora.

        Args:
            weights: resamples × sentences: how often each sentence counts in each resample.

        Returns:
            One score per resample.
        """
        compute = _metrics().BLEU.compute_bleu
        counts = (self.correct, self.guesses, self.length, self.reference_length)
        sums = ((weights @ count.astype(np.float64)).astype(np.int64).tolist() for count in counts)
        each = (compute(*row, smooth_method="exp").score for row in zip(*sums, strict=True))
        return np.fromiter(each, np.float64, len(weights))


def translation_counts(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]] | Sequence[str],
    *,
    tokenizer: str = "13a",
    lowercase: bool = False,
) -> TranslationCounts:
    """Return the counts of every sentence, for bootstrap intervals.

    Args:
        hypotheses: The translations, one per sentence.
        references: One list of reference sentences, or several lists.
        tokenizer: Name of a sacrebleu tokenizer.
        lowercase: Whether to ignore case.

    Returns:
        One row per sentence.

    Raises:
        BadInput: If there are no sentences, their numbers differ, or sacrebleu has no such tokenizer.
        MissingExtra: If sacrebleu is not installed.

    Example:
        >>> from headway.metrics.samples import interval
        >>> from headway.metrics.translation import translation_counts
        >>> counts = translation_counts(["the dog runs fast"] * 3, ["the dog runs fast"] * 3)
        >>> round(interval(counts.summed, samples=3, resamples=20).low, 1)
        100.0
    """
    sets, metric = _checked(hypotheses, references), _bleu(tokenizer, lowercase)
    scores = [
        metric.corpus_score([mine], [[theirs[number]] for theirs in sets]) for number, mine in enumerate(hypotheses)
    ]
    return TranslationCounts(
        np.array([score.counts for score in scores], np.int64).reshape(-1, 4),
        np.array([score.totals for score in scores], np.int64).reshape(-1, 4),
        np.array([score.sys_len for score in scores], np.int64),
        np.array([score.ref_len for score in scores], np.int64),
    )


def _checked(hypotheses: Sequence[str], references: Sequence[Sequence[str]] | Sequence[str]) -> list[list[str]]:
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise BadInput("hypotheses and references must be lists of sentences, not one text")
    first = references[0] if references else []
    several = not isinstance(first, str)
    sets = [list(one) for one in references] if several else [list(map(str, references))]
    if not hypotheses:
        raise BadInput("there are no sentences to score")
    for number, sentences in enumerate(sets, 1):
        if len(sentences) != len(hypotheses):
            which = f" in set {number}" if len(sets) > 1 else ""
            raise BadInput(f"{len(hypotheses):,} hypotheses, but {len(sentences):,} references{which}")
    return sets


def _bleu(tokenizer: str, lowercase: bool) -> BLEU:
    bleu = _metrics().BLEU
    if tokenizer not in bleu.TOKENIZERS:
        raise BadInput(f"sacrebleu has no tokenizer {tokenizer!r}", fix=f"one of {', '.join(sorted(bleu.TOKENIZERS))}")
    metric: BLEU = bleu(tokenize=tokenizer, lowercase=lowercase)
    return metric


def _chrf() -> Any:
    return _metrics().CHRF()


def _metrics() -> Any:
    try:
        from sacrebleu import metrics
    except ImportError:
        raise MissingExtra("translation", needed_for="scoring translations", package="sacrebleu") from None
    return metrics
