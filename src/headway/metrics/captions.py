"""Caption metrics: BLEU-1 to 4, ROUGE-L and CIDEr, equal to coco-caption's given the same tokens.

    score(["a dog runs"], [["a dog is running", "the dog runs"]])   # {"bleu_1": …, "rouge_l": …, "cider": …}

To score the same pictures repeatedly, as a training loop does, keep a `CaptionScorer`: it indexes the references once.
Scores are sums over the whole corpus; never average those of batches.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput, HeadwayError, install_command
from headway.metrics.bleu import BleuCounts, bleu_counts
from headway.metrics.ngrams import ORDERS, Floats, Hypotheses, Ints, NgramCells, NgramCounts, References
from headway.metrics.ptb_tokenizer import NO_BREAK, tokenize_all

# CIDEr as coco-caption's "Cider" computes it (the paper's CIDEr-D): tf-idf similarity of n-grams, times ten.


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
        >>> from headway.metrics.captions import Cider
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


# ROUGE-L, and METEOR 1.5 if Java and the `pycocoevalcap` package (which contains its jar) are installed.
#
# Headway cannot ship the jar, and there is no equivalent implementation without Java. If either is missing, METEOR is
# skipped and the reason reported. It is slow.


_JAR = Path("meteor", "meteor-1.5.jar")
_BAR = "|||"  # field separator of METEOR's protocol


def unavailable_reason() -> str:
    """Return why METEOR cannot be computed here, with a fix.

    Returns:
        The reason; empty if it can be computed.

    Example:
        >>> from headway.metrics.captions import unavailable_reason
        >>> isinstance(unavailable_reason(), str)
        True
    """
    if shutil.which("java") is None:
        return "Java is not installed (METEOR is a Java program)"
    if _jar() is None:
        return f"its jar is not installed: {install_command('meteor')}"
    return ""


def meteor(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, list[float]]:
    """Return METEOR 1.5 of tokenised hypotheses, by the reference implementation in Java.

    Args:
        hypotheses: One tokenised caption per picture.
        references: For each picture, its tokenised reference captions.

    Returns:
        The score of the whole corpus, and that of each hypothesis.

    Raises:
        BadInput: If Java or the jar is not installed.
        HeadwayError: If the Java program ends early.

    Example:
        >>> from headway.metrics.captions import meteor, unavailable_reason
        >>> if not unavailable_reason():
        ...     corpus, each = meteor(["a dog runs"], [["a dog runs"]])
    """
    if reason := unavailable_reason():
        raise BadInput(f"METEOR cannot be computed: {reason}")
    with _Meteor() as process:
        statistics = [
            process.evaluate("SCORE", *theirs, mine) for mine, theirs in zip(hypotheses, references, strict=True)
        ]
        each = [float(process.evaluate("EVAL", *statistics))] + [float(process.line()) for _ in statistics]
    return each.pop(), each


def _jar() -> Path | None:
    package = find_spec("pycocoevalcap")
    folders = (package.submodule_search_locations or []) if package else []
    return next((jar for folder in folders if (jar := Path(folder) / _JAR).is_file()), None)


class _Meteor:
    """The running jar: one request line, one response line."""

    def __enter__(self) -> _Meteor:
        jar = _jar()
        assert jar is not None
        self._errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        command = ["java", "-Dfile.encoding=UTF-8", "-Xmx2G", "-jar", jar.name, "-", "-", "-stdio", "-l", "en", "-norm"]
        self._process = subprocess.Popen(
            command,
            cwd=jar.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )
        return self

    def evaluate(self, *fields: str) -> str:
        assert self._process.stdin is not None
        # The bar inside a caption would start a new field, a double blank an empty word.
        clean = (" ".join(field.replace(_BAR, "").split()) for field in fields)
        try:
            self._process.stdin.write(f" {_BAR} ".join(clean) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # there will be no response either, and `line` reports why
        return self.line()

    def line(self) -> str:
        assert self._process.stdout is not None
        reply = self._process.stdout.readline()
        if not reply.endswith("\n"):
            self._process.wait()
            self._errors.seek(0)
            errors = " / ".join(self._errors.read().strip().splitlines()[-3:]) or "no message"
            raise HeadwayError(
                f"METEOR's Java program ended with code {self._process.returncode}: {errors}",
                fix="java -version   # METEOR 1.5 needs Java 8 or newer and 2 GB of memory",
            )
        return reply.strip()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


# ROUGE-L as coco-caption computes it: the best precision and the best recall over the references, independently.


_BETA2 = 1.2**2


def rouge_l(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Return ROUGE-L of each tokenised hypothesis, as coco-caption computes it.

    Args:
        hypotheses: One tokenised caption per picture.
        references: For each picture, its tokenised reference captions.

    Returns:
        One score per hypothesis.

    Example:
        >>> from headway.metrics.captions import rouge_l
        >>> rouge_l(["a dog runs"], [["a dog is running", "a dog runs"]]).tolist()
        [1.0]
    """
    each = (rouge_l_of(mine, theirs) for mine, theirs in zip(hypotheses, references, strict=True))
    return np.fromiter(each, np.float64, len(hypotheses))


def rouge_l_of(hypothesis: str, references: Sequence[str]) -> float:
    # Split at single blanks, as coco-caption does: an empty caption is one empty word, and equals another empty one.
    """Return ROUGE-L of one tokenised hypothesis: the F-measure of the best precision and the best recall.

    Args:
        hypothesis: Words separated by single spaces.
        references: Its tokenised reference captions.

    Returns:
        The score.

    Example:
        >>> from headway.metrics.captions import rouge_l_of
        >>> round(rouge_l_of("a dog", ["a cat"]), 3)
        0.5
    """
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
    """Return the length of the longest common subsequence, with a table row as one integer (Hyyrö 2004)."""
    row = everything  # a zero bit: the subsequence grew by one at this position
    for word in words:
        match = row & bits.get(word, 0)
        if match:
            row = (row + match | row - match) & everything
    return (everything ^ row).bit_count() if row != everything else 0


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
        _reject_plain_string("hypotheses", hypotheses)
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
    """Return bleu_1 … bleu_4 alone, as `score` does.

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
    _reject_plain_string("hypotheses", hypotheses)
    index = References(_groups(references, tokenized))
    counts = bleu_counts(index, index.read(_tokens(hypotheses, tokenized)))
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
    _reject_plain_string("references", references)
    for group in references:
        _reject_plain_string("the references of a picture", group)
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


def _reject_plain_string(what: str, given: object) -> None:
    if isinstance(given, str):
        raise BadInput(f"{what} must be a list of captions, not one text", fix=f"[{given[:30]!r}]")
