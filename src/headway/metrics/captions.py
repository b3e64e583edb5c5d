"""Caption metrics: BLEU-1 to 4, ROUGE-L and CIDEr, equal to coco-caption's given the same tokens.

    score(["a dog runs"], [["a dog is running", "the dog runs"]])   # {"bleu_1": …, "rouge_l": …, "cider": …}

To score the same pictures repeatedly, as a training loop does, keep a `CaptionScorer`: it indexes the references once.
Scores are sums over the whole corpus; never average those of batches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.errors import BadInput
from headway.metrics.bleu import BleuCounts, bleu_counts, bleu_counts_alone
from headway.metrics.cider import Cider
from headway.metrics.ngrams import ORDERS, Floats, References
from headway.metrics.ptb_tokenizer import NO_BREAK, tokenize_all
from headway.metrics.rouge_meteor import rouge_l

BLEU = tuple(f"bleu_{n}" for n in range(1, ORDERS + 1))
_BLANK = re.compile(r"[ \t\n\v\f\r]+")
METRICS = (*BLEU, "rouge_l", "cider")


@dataclass(frozen=True, slots=True)
class CaptionScores:
    """Scores per picture of one set of hypotheses, with the statistics that the corpus scores need.

    Attributes:
        bleu: Sufficient statistics of BLEU, one row per picture.
        rouge_l: ROUGE-L of each picture.
        cider: CIDEr of each picture.
    """

    bleu: BleuCounts
    rouge_l: Floats
    cider: Floats

    def corpus(self) -> dict[str, float]:
        """Return one number per metric, over all pictures.

        Returns:
            bleu_1 … bleu_4, rouge_l and cider.
        """
        scores = dict(zip(BLEU, self.bleu.corpus().tolist(), strict=True))
        return scores | {"rouge_l": float(self.rouge_l.mean()), "cider": float(self.cider.mean())}

    def each(self) -> dict[str, list[float]]:
        """Return each metric's scores per picture. The mean of the pictures' BLEU is not the corpus BLEU.

        Returns:
            A list per metric, in the order of the pictures.
        """
        scores = dict(zip(BLEU, self.bleu.each().T.tolist(), strict=True))
        return scores | {"rouge_l": self.rouge_l.tolist(), "cider": self.cider.tolist()}


class CaptionScorer:
    """Score hypotheses against references that are tokenised and indexed once, as a training loop needs it.

    Args:
        references: For each picture, its reference captions.
        tokenized: Whether captions are words separated by spaces already. Otherwise they are tokenised as coco-caption
            does it.

    Raises:
        BadInput: If there are no references, or a picture has none.

    Example:
        >>> from headway.metrics.captions import CaptionScorer
        >>> scorer = CaptionScorer([["a dog runs", "the dog is running"], ["two cats sleep"]])
        >>> round(scorer.score(["a dog runs", "two cats"])["bleu_1"], 3)
        0.819
        >>> scorer.measure(["a dog runs", "two cats"]).each()["rouge_l"][0]
        1.0
    """

    def __init__(self, references: Sequence[Sequence[str]], *, tokenized: bool = False) -> None:
        self._tokenized = tokenized
        self.groups = _groups(references, tokenized)
        self.references = References(self.groups)
        self.cider = Cider(self.references)

    def measure(self, hypotheses: Sequence[str]) -> CaptionScores:
        """Score one hypothesis per picture, keeping what each picture contributes.

        Args:
            hypotheses: One caption per picture, in the order of the references.

        Returns:
            The scores per picture.

        Raises:
            BadInput: If their number is not that of the pictures.
        """
        _refuse_text("hypotheses", hypotheses)
        captions = self.tokens(hypotheses)
        read = self.references.read(captions)
        counts = bleu_counts(self.references, read)
        return CaptionScores(counts, rouge_l(captions, self.groups), self.cider.scores_of(read))

    def tokens(self, captions: Sequence[str]) -> list[str]:
        """Return the captions as they are scored: tokens joined by single spaces.

        Args:
            captions: The captions.

        Returns:
            As many texts.
        """
        return _tokens(captions, self._tokenized)

    def score(self, hypotheses: Sequence[str]) -> dict[str, float]:
        """Score one hypothesis per picture.

        Args:
            hypotheses: One caption per picture, in the order of the references.

        Returns:
            bleu_1 … bleu_4, rouge_l and cider over all pictures.

        Raises:
            BadInput: If their number is not that of the pictures.
        """
        return self.measure(hypotheses).corpus()


def score(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, tokenized: bool = False
) -> dict[str, float]:
    """Return bleu_1 … bleu_4, rouge_l and cider of one hypothesis per picture against all references of that picture.

    Scores are of the whole corpus: never average those of batches.

    Args:
        hypotheses: One caption per picture.
        references: For each picture, its reference captions.
        tokenized: Whether captions are words separated by spaces already. Otherwise they are tokenised as coco-caption
            does it.

    Returns:
        One number per metric.

    Raises:
        BadInput: If the numbers of pictures differ, or a picture has no references.

    Example:
        >>> from headway.metrics.captions import score
        >>> scores = score(["a dog runs"], [["a dog is running", "the dog runs"]])
        >>> sorted(scores)
        ['bleu_1', 'bleu_2', 'bleu_3', 'bleu_4', 'cider', 'rouge_l']
        >>> round(scores["bleu_1"], 3)
        1.0
    """
    return CaptionScorer(references, tokenized=tokenized).score(hypotheses)


def bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, tokenized: bool = False
) -> dict[str, float]:
    """Return bleu_1 … bleu_4 alone, in less time than `score` takes to index the references.

    Args:
        hypotheses: One caption per picture.
        references: For each picture, its reference captions.
        tokenized: Whether captions are words separated by spaces already.

    Returns:
        One number per order.

    Raises:
        BadInput: If the numbers of pictures differ, or a picture has no references.

    Example:
        >>> from headway.metrics.captions import bleu
        >>> round(bleu(["a dog runs"], [["a dog is running", "the dog runs"]])["bleu_2"], 3)
        1.0
    """
    _refuse_text("hypotheses", hypotheses)
    counts = bleu_counts_alone(_tokens(hypotheses, tokenized), _groups(references, tokenized))
    return dict(zip(BLEU, counts.corpus().tolist(), strict=True))


def score_each(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, tokenized: bool = False
) -> dict[str, list[float]]:
    """Return the scores of each picture alone. CIDEr still uses the document frequencies over all pictures.

    Args:
        hypotheses: One caption per picture.
        references: For each picture, its reference captions.
        tokenized: Whether captions are words separated by spaces already.

    Returns:
        A list per metric, in the order of the pictures.

    Raises:
        BadInput: If the numbers of pictures differ, or a picture has no references.

    Example:
        >>> from headway.metrics.captions import score_each
        >>> score_each(["a dog runs", "a cat"], [["a dog runs"], ["two birds"]])["rouge_l"]
        [1.0, 0.0]
    """
    return CaptionScorer(references, tokenized=tokenized).measure(hypotheses).each()


def _groups(references: Sequence[Sequence[str]], tokenized: bool) -> list[list[str]]:
    _refuse_text("references", references)
    for group in references:
        _refuse_text("the references of a picture", group)
    if not references:
        raise BadInput("there are no references to score against")
    return [_tokens(group, tokenized) for group in references]


def _tokens(captions: Sequence[str], tokenized: bool) -> list[str]:
    return [_single_blanks(caption) for caption in captions] if tokenized else tokenize_all(captions)


def _single_blanks(caption: str) -> str:
    """Collapse whitespace, as ROUGE-L would count empty words. A no-break space is part of a token and stays."""
    if NO_BREAK in caption:
        return " ".join(word for word in _BLANK.split(caption) if word)
    return " ".join(caption.split())


def _refuse_text(what: str, given: object) -> None:
    if isinstance(given, str):
        raise BadInput(f"{what} must be a list of captions, not one text", fix=f"[{given[:30]!r}]")
