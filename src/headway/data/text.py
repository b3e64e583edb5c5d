"""Text normalisation and filters for captions and sentence pairs. Pure functions: every exclusion has a reason."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headway.core.errors import BadInput, json_of

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


def caption_exclusion(text: str, flag: str, rules: Rules) -> Exclusion | None:
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


def pair_exclusion(source: str, target: str, rules: Rules) -> Exclusion | None:
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


# Tokenizers: text to ids and back, saved as JSON beside the data and with every model. No pickle.
#
# Captions: whole words. Lower case, NFC; a word is a run of letters and digits, joined by inner apostrophes, hyphens
# and points (don't, t-shirt, 3.5); other marks are dropped, as caption metrics drop them. Translation: byte-level BPE
# (`tokenizers`), which can represent any text.


PAD, START, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<start>", "<end>", "<unk>")
_WORD = re.compile(r"[^\W_]+(?:['.-][^\W_]+)*")


class Tokenizer(Protocol):
    """The tokenizer contract. Ids 0 … 3 are <pad>, <start>, <end> and <unk>."""

    def encode(self, text: str) -> list[int]:
        """Encode without <start> and <end>, which the model's code adds."""

    def decode(self, ids: Iterable[int]) -> str:
        """Decode up to the first <end>, ignoring <pad> and <start>."""

    def to_json(self) -> str: ...

    def __len__(self) -> int: ...


def split_words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text).lower().replace("’", "'"))


class WordTokenizer:
    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.words = (*SPECIAL, *vocabulary)
        self._ids = {word: number for number, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            raise BadInput("a vocabulary contains the same word twice", fix="build it again from the word counts")

    @classmethod
    def from_counts(
        cls, counts: Mapping[str, int], *, min_count: int = 5, max_size: int | None = None
    ) -> WordTokenizer:
        """Keep words seen at least `min_count` times, most frequent first; `max_size` includes the special tokens."""
        kept = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        room = None if max_size is None else max(0, max_size - len(SPECIAL))
        return cls([word for _, word in kept[:room]])

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, UNKNOWN) for word in split_words(text)]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.words[number] for number in _content_ids(ids))

    def to_json(self) -> str:
        return json.dumps({"tokenizer": "words", "words": self.words[len(SPECIAL) :]}, ensure_ascii=False) + "\n"

    def __len__(self) -> int:
        return len(self.words)


class BpeTokenizer:
    """Byte-level BPE. `decode(encode(text))` is `text`, up to Unicode composition."""

    def __init__(self, rules: Mapping[str, Any]) -> None:
        from tokenizers import Tokenizer as Fast

        self._fast = Fast.from_str(json.dumps(rules))

    @classmethod
    def train(cls, texts: Iterator[str], *, size: int = 8000) -> BpeTokenizer:
        """Train on texts. The same texts in the same order give the same merges."""
        from tokenizers import Tokenizer as Fast
        from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

        fast = Fast(models.BPE())
        fast.normalizer = normalizers.NFC()
        fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        fast.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=max(size, len(SPECIAL) + len(alphabet)),
            special_tokens=list(SPECIAL),
            initial_alphabet=sorted(alphabet),
            show_progress=False,
        )
        fast.train_from_iterator(texts, trainer)
        return cls(json.loads(fast.to_str()))

    def encode(self, text: str) -> list[int]:
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._fast.decode(list(_content_ids(ids)), skip_special_tokens=False)).removeprefix(" ")

    def to_json(self) -> str:
        return json.dumps({"tokenizer": "bpe", "rules": json.loads(self._fast.to_str())}, ensure_ascii=False) + "\n"

    def __len__(self) -> int:
        return int(self._fast.get_vocab_size())


def _content_ids(ids: Iterable[int]) -> Iterator[int]:
    for number in ids:
        if number == END:
            return
        if number not in (PAD, START):
            yield int(number)


def load_tokenizer(text: str | bytes, *, where: str = "tokenizer.json") -> Tokenizer:
    """Load a tokenizer written by `to_json`."""
    try:
        raw = json_of(text)
        kind = raw["tokenizer"]
        if kind == "words":
            return WordTokenizer(raw["words"])
        if kind == "bpe":
            return BpeTokenizer(raw["rules"])
    except Exception as error:  # noqa: BLE001  the library tokenizers has no type of its own
        raise BadInput(
            f"not a tokenizer: {type(error).__name__}: {error}", where=where, fix="prepare the data again"
        ) from None
    raise BadInput(f"unknown kind of tokenizer: {kind!r}", where=where, fix="use the version of Headway that wrote it")
