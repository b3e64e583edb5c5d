"""Captions as numbers: every word and every n-gram of one to four words gets an id, by sorting, once.

Sorting keeps it exact (nothing is hashed), quick and small: memory is linear in the number of words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput

ORDERS = 4  # n-grams of one to four words, as BLEU-4 and CIDEr count them

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_MARK = "\0"  # stands between captions; no text has it
_BETWEEN = f" {_MARK} "


@dataclass(frozen=True, slots=True)
class NgramArrays:
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
class NgramTable:
    """The n-grams of one order as they stand in the captions: whose each is, and its id."""

    caption: Ints
    gram: Ints
    kinds: int  # ids are below this


class Vocabulary:
    """The words and n-grams of some captions, each with an id; those of other captions are looked up in it."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.tables: list[Ints] = []  # for two, three and four words the sorted keys: an id is a place in it

    def learn(self, flat: NgramArrays) -> Iterator[NgramTable]:
        """Takes in the n-grams of captions flattened with `words`, and yields them order by order. Once only."""
        caption, left, prefix = flat.caption(), flat.left(), flat.words.copy()
        yield NgramTable(caption, flat.words, len(self.words))
        for n in range(2, ORDERS + 1):
            at = np.flatnonzero(left >= n)
            table, ids = distinct(prefix[at] * len(self.words) + flat.words[at + n - 1])
            self.tables.append(table)
            yield NgramTable(caption[at], ids, len(table))
            prefix[at] = ids

    def look_up(self, captions: Sequence[str]) -> tuple[NgramArrays, list[NgramTable]]:
        """The same numbers for other captions. What was never seen here gets ids above those known."""
        words = dict(self.words)
        flat = flatten(captions, words)
        caption, left, prefix = flat.caption(), flat.left(), flat.words.copy()
        orders, known_words, known_prefixes = (
            [NgramTable(caption, flat.words, len(words))],
            len(self.words),
            len(self.words),
        )
        for n, table in enumerate(self.tables, 2):
            at = np.flatnonzero(left >= n)
            before, word = prefix[at], flat.words[at + n - 1]
            ids = find(table, before * known_words + word)
            new = np.flatnonzero((ids < 0) | (before >= known_prefixes) | (word >= known_words))
            fresh, places = distinct(before[new] * len(words) + word[new])
            ids[new] = len(table) + places
            orders.append(NgramTable(caption[at], ids, len(table) + len(fresh)))
            prefix[at], known_prefixes = ids, len(table)
        return flat, orders


def flatten(captions: Sequence[str], words: dict[str, int]) -> NgramArrays:
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
    return NgramArrays(numbers[numbers >= 0], lengths)


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


# The references of all pictures, indexed once: what BLEU and CIDEr need to know of them.


@dataclass(frozen=True, slots=True)
class NgramCounts:
    """How often captions have n-grams of one order: an entry for every caption and n-gram it has."""

    caption: Ints
    gram: Ints
    count: Ints
    kinds: int  # n-grams are below this


@dataclass(frozen=True, slots=True)
class NgramCells:
    """One order of n-grams: a cell is a picture and an n-gram that at least one of its references has."""

    keys: Ints  # picture << bits | n-gram: sorted
    bits: int
    kinds: int  # n-grams are below this
    most: Ints  # the highest count of each cell in one reference
    starts: Ints  # where each cell's entries begin; one more than there are cells
    entries: Ints  # key << slot_bits | which of the picture's references
    slot_bits: int
    counts: Ints  # how often that reference has that n-gram

    def find(self, picture: Ints, gram: Ints) -> Ints:
        """The cell of each picture and n-gram, -1 where no reference of the picture has it."""
        # An n-gram unknown to all references is as good as any other that is in no cell.
        return find(self.keys, picture << self.bits | np.minimum(gram, self.kinds))

    def pictures_with(self) -> Ints:
        """For each n-gram, how many pictures have it: the document frequency."""
        return np.bincount(self.keys & ((1 << self.bits) - 1), minlength=self.kinds)

    def counted(self, first: Ints) -> NgramCounts:
        """The entries spelt out. `first` is the number of each picture's first caption."""
        cell = self.entries >> self.slot_bits
        caption = first[cell >> self.bits] + (self.entries & ((1 << self.slot_bits) - 1))
        return NgramCounts(caption, cell & ((1 << self.bits) - 1), self.counts, self.kinds)


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """Hypotheses in the numbers of the references they are scored against."""

    flat: NgramArrays
    picture: Ints  # whose references each is scored against
    counted: list[NgramCounts]


class References:
    """Tokenised reference captions, grouped by picture. Every picture has at least one."""

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        self.pictures = len(references)
        self.sizes = np.fromiter(map(len, references), np.int64, self.pictures)
        if not self.sizes.all():
            raise BadInput(f"picture {int(np.argmin(self.sizes))} has no references")
        self.first = np.cumsum(self.sizes) - self.sizes  # each picture's first caption
        self.picture = np.repeat(np.arange(self.pictures), self.sizes)  # whose each caption is
        self.captions = list(chain.from_iterable(references))
        self.vocabulary = Vocabulary()
        flat = flatten(self.captions, self.vocabulary.words)
        self.lengths = flat.lengths
        self.cells = [self._cells(grams) for grams in self.vocabulary.learn(flat)]

    def captions_for(self, picture: Ints) -> tuple[Ints, Ints]:
        """The references of each of these pictures in turn, and how many each has."""
        sizes = self.sizes[picture]
        starts = np.cumsum(sizes) - sizes
        return np.arange(int(sizes.sum())) + np.repeat(self.first[picture] - starts, sizes), sizes

    def read(self, hypotheses: Sequence[str], picture: Sequence[int] | None = None) -> Hypotheses:
        """Tokenised hypotheses; the i-th belongs to the i-th picture unless `picture` says otherwise."""
        whose = np.arange(self.pictures) if picture is None else np.asarray(picture, np.int64)
        if len(whose) != len(hypotheses):
            raise BadInput(f"{len(hypotheses)} hypotheses for {len(whose)} pictures")
        if len(whose) and not 0 <= int(whose.min()) <= int(whose.max()) < self.pictures:
            raise BadInput(f"picture numbers must be between 0 and {self.pictures - 1}")
        flat, orders = self.vocabulary.look_up(hypotheses)
        return Hypotheses(flat, whose, [_count(grams) for grams in orders])

    def _cells(self, grams: NgramTable) -> NgramCells:
        """One sort by picture, n-gram and reference puts all that is asked of them side by side."""
        whose = self.picture[grams.caption]
        slot = grams.caption - self.first[whose]
        bits, slot_bits = grams.kinds.bit_length(), int(self.sizes.max(initial=0)).bit_length()
        if self.pictures.bit_length() + bits + slot_bits > 63:
            raise BadInput("too many references to index at once", fix="score them in parts")
        entries, at = runs(np.sort((whose << bits | grams.gram) << slot_bits | slot))
        counts = np.diff(at, append=len(slot))
        keys, starts = runs(entries >> slot_bits)
        most = np.maximum.reduceat(counts, starts) if len(starts) else counts
        starts = np.append(starts, len(entries))
        return NgramCells(keys, bits, grams.kinds, most, starts, entries, slot_bits, counts)


def _count(grams: NgramTable) -> NgramCounts:
    bits = grams.kinds.bit_length()
    keys, starts = runs(np.sort(grams.caption << bits | grams.gram))
    return NgramCounts(keys >> bits, keys & ((1 << bits) - 1), np.diff(starts, append=len(grams.gram)), grams.kinds)
