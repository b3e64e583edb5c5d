"""Captions as numbers: every word and every n-gram of one to four words gets an id, by sorting, once.

Sorting keeps it exact (nothing is hashed), quick and small: memory is linear in the number of words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

ORDERS = 4  # n-grams of one to four words, as BLEU-4 and CIDEr count them

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_MARK = "\0"  # stands between captions; no text has it
_BETWEEN = f" {_MARK} "


@dataclass(frozen=True, slots=True)
class Flat:
    """Captions laid end to end: word ids, and how many words each caption has."""

    words: Ints
    lengths: Ints

    def caption(self) -> Ints:
        """Which caption each word belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def left(self) -> Ints:
        """How many words of its caption stand at or after each word."""
        return np.repeat(np.cumsum(self.lengths), self.lengths) - np.arange(len(self.words))


@dataclass(frozen=True, slots=True)
class Grams:
    """The n-grams of one order as they stand in the captions: whose each is, and its id."""

    caption: Ints
    gram: Ints
    kinds: int  # ids are below this


class Vocabulary:
    """The words and n-grams of some captions, each with an id; those of other captions are looked up in it."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.tables: list[Ints] = []  # for two, three and four words the sorted keys: an id is a place in it

    def learn(self, flat: Flat) -> Iterator[Grams]:
        """Takes in the n-grams of captions flattened with `words`, and yields them order by order. Once only."""
        caption, left, prefix = flat.caption(), flat.left(), flat.words.copy()
        yield Grams(caption, flat.words, len(self.words))
        for n in range(2, ORDERS + 1):
            at = np.flatnonzero(left >= n)
            table, ids = distinct(prefix[at] * len(self.words) + flat.words[at + n - 1])
            self.tables.append(table)
            yield Grams(caption[at], ids, len(table))
            prefix[at] = ids

    def look_up(self, captions: Sequence[str]) -> tuple[Flat, list[Grams]]:
        """The same numbers for other captions. What was never seen here gets ids above those known."""
        words = dict(self.words)
        flat = flatten(captions, words)
        caption, left, prefix = flat.caption(), flat.left(), flat.words.copy()
        orders, known_words, known_prefixes = [Grams(caption, flat.words, len(words))], len(self.words), len(self.words)
        for n, table in enumerate(self.tables, 2):
            at = np.flatnonzero(left >= n)
            before, word = prefix[at], flat.words[at + n - 1]
            ids = find(table, before * known_words + word)
            new = np.flatnonzero((ids < 0) | (before >= known_prefixes) | (word >= known_words))
            fresh, places = distinct(before[new] * len(words) + word[new])
            ids[new] = len(table) + places
            orders.append(Grams(caption[at], ids, len(table) + len(fresh)))
            prefix[at], known_prefixes = ids, len(table)
        return flat, orders


def flatten(captions: Sequence[str], words: dict[str, int]) -> Flat:
    """The captions' words as numbers. Words not yet in `words` are added to it.

    They come from one long split: a list for each caption would keep Python's garbage collector busy for longer
    than all the rest takes.
    """
    text = _BETWEEN.join(captions)
    if text.count(_MARK) != len(captions) - 1:
        text = _BETWEEN.join(caption.replace(_MARK, "\ufffd") for caption in captions)
    sequence = text.split()
    ids = defaultdict(count(len(words)).__next__, words)
    ids[_MARK] = -1
    numbers = np.fromiter(map(ids.__getitem__, sequence), np.int64, len(sequence))
    del ids[_MARK]
    words.update(ids)
    ends = np.flatnonzero(numbers < 0)
    lengths = np.diff(ends, prepend=-1, append=len(sequence)) - 1 if captions else ends
    return Flat(numbers[numbers >= 0], lengths)


def distinct(keys: Ints) -> tuple[Ints, Ints]:
    """The different keys, sorted, and for each key its place among them: np.unique, in less than half its time."""
    bits = len(keys).bit_length()
    if len(keys) == 0 or int(keys.max()) >> (63 - bits):
        table, places = np.unique(keys, return_inverse=True)
        return table, places.astype(np.int64, copy=False)
    # Key and position packed in one number: numpy vectorises a plain sort, but not an argsort.
    packed = np.sort(keys << bits | np.arange(len(keys)))
    ordered = packed >> bits
    new = _new(ordered)
    places = np.empty(len(keys), np.int64)
    places[packed & ((1 << bits) - 1)] = np.cumsum(new) - 1
    return ordered[new], places


def find(table: Ints, keys: Ints) -> Ints:
    """The place of each key in the sorted table, -1 where it is not there."""
    if len(table) == 0:
        return np.full(len(keys), -1, np.int64)
    order = np.argsort(keys)  # searching in order walks through the table once, from left to right
    wanted = keys[order]
    place = np.minimum(np.searchsorted(table, wanted), len(table) - 1)
    found = np.empty(len(keys), np.int64)
    found[order] = np.where(table[place] == wanted, place, -1)
    return found


def runs(ordered: Ints) -> tuple[Ints, Ints]:
    """The different values of a sorted array, and where each begins."""
    starts = np.flatnonzero(_new(ordered))
    return ordered[starts], starts


def _new(ordered: Ints) -> NDArray[np.bool_]:
    """Where a sorted array takes a new value, the first included."""
    new = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return new
