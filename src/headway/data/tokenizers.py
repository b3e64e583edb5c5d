"""Tokenizers: text to ids and back, saved as JSON beside the data and with every model. No pickle.

Captions: whole words. Lower case, NFC; a word is a run of letters and digits, joined by inner apostrophes, hyphens and
points (don't, t-shirt, 3.5); other marks are dropped, as caption metrics drop them. Translation: byte-level BPE
(`tokenizers`), which can represent any text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from headway.core.errors import BadInput

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
            raise BadInput("a vocabulary names the same word twice", fix="build it again from the word counts")

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
        return " ".join(self.words[number] for number in _said(ids))

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
        return str(self._fast.decode(list(_said(ids)), skip_special_tokens=False)).removeprefix(" ")

    def to_json(self) -> str:
        return json.dumps({"tokenizer": "bpe", "rules": json.loads(self._fast.to_str())}, ensure_ascii=False) + "\n"

    def __len__(self) -> int:
        return int(self._fast.get_vocab_size())


def _said(ids: Iterable[int]) -> Iterator[int]:
    for number in ids:
        if number == END:
            return
        if number not in (PAD, START):
            yield int(number)


def load_tokenizer(text: str | bytes, *, where: str = "tokenizer.json") -> Tokenizer:
    """Load a tokenizer written by `to_json`."""
    try:
        raw = json.loads(text)
        kind = raw["tokenizer"]
        if kind == "words":
            return WordTokenizer(raw["words"])
        if kind == "bpe":
            return BpeTokenizer(raw["rules"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"not a tokenizer: {error}", where=where, fix="prepare the data again") from None
    raise BadInput(f"a tokenizer of an unknown kind: {kind!r}", where=where, fix="use the Headway that wrote it")
