"""The vocabulary: words to ids and back, built from the training captions alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from headway.data.text import split_words

SPECIAL: Final = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNKNOWN = range(4)


class Vocabulary:
    """Words in a fixed order; the first four are the special tokens."""

    def __init__(self, words: Sequence[str]) -> None:
        assert tuple(words[:4]) == SPECIAL
        self.words = tuple(words)
        self._ids = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def of(cls, captions: Iterable[str], *, min_count: int, max_words: int) -> Vocabulary:
        """Build from the most frequent words of `captions`.

        Ties are broken alphabetically, so the result is deterministic.
        """
        counts = Counter(word for caption in captions for word in split_words(caption))
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls([*SPECIAL, *(word for word, count in ranked[:max_words] if count >= min_count)])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, caption: str, *, max_length: int) -> list[int]:
        """Return the ids of <start>, at most `max_length` words, <end>."""
        return [START, *(self._ids.get(word, UNKNOWN) for word in split_words(caption)[:max_length]), END]

    def decode(self, ids: Iterable[int]) -> str:
        """Join the words up to <end>."""
        words: list[str] = []
        for number in ids:
            if number == END:
                break
            if number not in (PAD, START):
                words.append(self.words[number])
        return " ".join(words)

    def files(self) -> dict[str, bytes]:
        """Return the vocabulary as files of a bundle, in three common forms."""
        numbered = list(enumerate(self.words))
        return {
            "vocabulary.json": _json(list(self.words)),
            "word_to_id.json": _json({word: number for number, word in numbered}),
            "id_to_word.json": _json({str(number): word for number, word in numbered}),
        }

    @classmethod
    def from_file(cls, body: bytes) -> Vocabulary:
        return cls(json.loads(body))


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
