"""ROUGE-L, and METEOR 1.5 if Java and the `pycocoevalcap` package (which contains its jar) are installed.

Headway cannot ship the jar, and there is no equivalent implementation without Java. If either is missing, METEOR is
skipped and the reason reported. It is slow.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput, HeadwayError, install_command

_JAR = Path("meteor", "meteor-1.5.jar")
_BAR = "|||"  # field separator of METEOR's protocol


def why_not() -> str:
    """Return why METEOR cannot be computed here, with a fix.

    Returns:
        The reason; empty if it can be computed.

    Example:
        >>> from headway.metrics.rouge_meteor import why_not
        >>> isinstance(why_not(), str)
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
        >>> from headway.metrics.rouge_meteor import meteor, why_not
        >>> if not why_not():
        ...     corpus, each = meteor(["a dog runs"], [["a dog runs"]])
    """
    if reason := why_not():
        raise BadInput(f"METEOR cannot be computed: {reason}")
    with _Meteor() as process:
        statistics = [process.ask("SCORE", *theirs, mine) for mine, theirs in zip(hypotheses, references, strict=True)]
        each = [float(process.ask("EVAL", *statistics))] + [float(process.line()) for _ in statistics]
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

    def ask(self, *fields: str) -> str:
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
        answer = self._process.stdout.readline()
        if not answer.endswith("\n"):
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()[-3:]
            raise HeadwayError(
                f"METEOR's Java program ended with code {self._process.returncode}: {' / '.join(said) or 'no message'}",
                fix="java -version   # METEOR 1.5 needs Java 8 or newer and 2 GB of memory",
            )
        return answer.strip()

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
        >>> from headway.metrics.rouge_meteor import rouge_l
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
        >>> from headway.metrics.rouge_meteor import rouge_l_of
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
