"""Text normalisation and filters for captions and sentence pairs. Pure functions: every exclusion has a reason."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

# VizWiz annotators chose this sentence from a menu instead of writing a caption.
_PRE_CANNED = re.compile(r"quality issues are too severe to recognize", re.IGNORECASE)
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_QUOTES = str.maketrans({"’": "'", "‘": "'", "‛": "'", "´": "'", "`": "'", "“": '"', "”": '"', "„": '"'})
_WORD_MARKS = re.compile(r"\w")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Limits for texts. A word is separated by spaces and has at least one letter or digit."""

    min_words: int = 2  # per caption
    max_words: int = 60
    keep_flagged: bool = False  # captions that annotators rejected, or chose from a menu
    max_sentence_words: int = 200  # per sentence to translate
    max_ratio: float = 9.0  # length ratio of a sentence and its translation, if one has more than ten words


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The reason for an exclusion. A fault is damage in the source; otherwise a rule applied."""

    reason: str
    detail: str = ""
    fault: bool = False


def normalised(text: str) -> str:
    """Normalise to NFC, plain quotes and single spaces without invisible characters. Keeps case and punctuation."""
    composed = unicodedata.normalize("NFC", text).translate(_QUOTES)
    return " ".join(_NOT_TEXT.sub(" ", composed).split())


def words(text: str) -> list[str]:
    return [word for word in text.split() if _WORD_MARKS.search(word)]


def caption_drop(text: str, flag: str, rules: Rules) -> Exclusion | None:
    """Return why this caption (already normalised) is excluded, or None to keep it."""
    if not is_unicode(text):
        return Exclusion("not UTF-8", repr(text)[:80], fault=True)
    if not words(text):
        return Exclusion("empty caption", repr(text)[:80], fault=True)
    if not rules.keep_flagged and (flag == "pre-canned" or _PRE_CANNED.search(text)):
        return Exclusion("pre-canned caption", text[:80])
    if not rules.keep_flagged and flag == "rejected":
        return Exclusion("rejected caption", text[:80])
    count = len(words(text))
    if count < rules.min_words:
        return Exclusion("caption too short", f"{count} words: {text[:80]}")
    if count > rules.max_words:
        return Exclusion("caption too long", f"{count} words: {text[:80]}")
    return None


def pair_drop(source: str, target: str, rules: Rules) -> Exclusion | None:
    """Return why this sentence pair is excluded, or None to keep it."""
    if not is_unicode(source) or not is_unicode(target):
        return Exclusion("not UTF-8", fault=True)
    left, right = len(words(source)), len(words(target))
    if not left or not right:
        return Exclusion("empty sentence", repr(target if left else source)[:80], fault=True)
    longer, shorter = max(left, right), min(left, right)
    if longer > rules.max_sentence_words:
        return Exclusion("sentence too long", f"{longer} words")
    if longer > 10 and longer / shorter > rules.max_ratio:
        return Exclusion("lengths do not match", f"{left} words against {right}")
    return None


def is_unicode(text: str) -> bool:
    """Return False for lone surrogates, which JSON escapes can contain but UTF-8 cannot encode."""
    return text.isascii() or not any("\ud800" <= mark <= "\udfff" for mark in text)
