"""N-gram ids and the reference index: every word and every n-gram of one to four words gets an integer id, by sorting.

Sorting is exact (nothing is hashed), fast and compact: memory is linear in the number of words.
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

_MARK = "\0"  # separates captions; no text contains it
_BETWEEN = f" {_MARK} "


@dataclass(frozen=True, slots=True)
class NgramArrays:
    """Concatenated captions: word ids, and the number of words per caption."""

    words: Ints
    lengths: Ints

    def caption(self) -> Ints:
        """Return the caption of each word."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def left(self) -> Ints:
        """Return how many words of its caption are at or after each word."""
        return np.repeat(np.cumsum(self.lengths), self.lengths) - np.arange(len(self.words))


@dataclass(frozen=True, slots=True)
class NgramTable:
    """The n-grams of one order in caption order: caption and id of each."""

    caption: Ints
    gram: Ints
    kinds: int  # ids are below this


class Vocabulary:
    """The words and n-grams of some captions, each with an id; those of other captions are looked up in it."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.tables: list[Ints] = []  # sorted keys for two, three and four words; an id is an index into them

    def learn(self, flat: NgramArrays) -> Iterator[NgramTable]:
        """Add the n-grams of captions flattened with `words`, and yield them order by order. Call once only."""
        caption, left, prefix = flat.caption(), flat.left(), flat.words.copy()
        yield NgramTable(caption, flat.words, len(self.words))
        for n in range(2, ORDERS + 1):
            at = np.flatnonzero(left >= n)
            table, ids = distinct(prefix[at] * len(self.words) + flat.words[at + n - 1])
            self.tables.append(table)
            yield NgramTable(caption[at], ids, len(table))
            prefix[at] = ids

    def look_up(self, captions: Sequence[str]) -> tuple[NgramArrays, list[NgramTable]]:
        """Return the ids for other captions. Unknown n-grams get ids above the known ones."""
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
    """Return the captions' words as ids. Adds unknown words to `words`.

    Splits one long text: a list per caption would keep Python's garbage collector busy for longer than all the rest
    takes.
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
    """Return the sorted distinct keys, and each key's index among them: np.unique in less than half its time."""
    bits = len(keys).bit_length()
    if len(keys) == 0 or int(keys.max()) >> (63 - bits):
        table, places = np.unique(keys, return_inverse=True)
        return table, places.astype(np.int64, copy=False)
    # Pack key and position into one integer: numpy vectorises a plain sort, but not an argsort.
    packed = np.sort(keys << bits | np.arange(len(keys)))
    ordered = packed >> bits
    new = _new(ordered)
    places = np.empty(len(keys), np.int64)
    places[packed & ((1 << bits) - 1)] = np.cumsum(new) - 1
    return ordered[new], places


def find(table: Ints, keys: Ints) -> Ints:
    """Return the index of each key in the sorted table, or -1."""
    if len(table) == 0:
        return np.full(len(keys), -1, np.int64)
    order = np.argsort(keys)  # sorted lookups walk through the table once, from left to right
    wanted = keys[order]
    place = np.minimum(np.searchsorted(table, wanted), len(table) - 1)
    found = np.empty(len(keys), np.int64)
    found[order] = np.where(table[place] == wanted, place, -1)
    return found


def runs(ordered: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values of a sorted array, and the start of each."""
    starts = np.flatnonzero(_new(ordered))
    return ordered[starts], starts


def _new(ordered: Ints) -> NDArray[np.bool_]:
    """Return where a sorted array takes a new value, including the first."""
    new = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return new


# The references of all pictures, indexed once for BLEU and CIDEr.


@dataclass(frozen=True, slots=True)
class NgramCounts:
    """N-gram counts of one order: an entry per caption and distinct n-gram."""

    caption: Ints
    gram: Ints
    count: Ints
    kinds: int  # n-gram ids are below this


@dataclass(frozen=True, slots=True)
class NgramCells:
    """One order of n-grams: a cell is a picture and an n-gram that at least one of its references has."""

    keys: Ints  # picture << bits | n-gram, sorted
    bits: int
    kinds: int  # n-gram ids are below this
    most: Ints  # per cell, the highest count in one reference
    starts: Ints  # first entry of each cell; one element more than cells
    entries: Ints  # key << slot_bits | index among the picture's references
    slot_bits: int
    counts: Ints  # how often that reference has that n-gram

    def find(self, picture: Ints, gram: Ints) -> Ints:
        """Return the cell of each picture and n-gram, or -1 if no reference of the picture has it."""
        # Map n-grams unknown to all references to one id that is in no cell.
        return find(self.keys, picture << self.bits | np.minimum(gram, self.kinds))

    def pictures_with(self) -> Ints:
        """Return the document frequency of each n-gram: the number of pictures that have it."""
        return np.bincount(self.keys & ((1 << self.bits) - 1), minlength=self.kinds)

    def counted(self, first: Ints) -> NgramCounts:
        """Return the entries as counts per caption. `first` is the number of each picture's first caption."""
        cell = self.entries >> self.slot_bits
        caption = first[cell >> self.bits] + (self.entries & ((1 << self.slot_bits) - 1))
        return NgramCounts(caption, cell & ((1 << self.bits) - 1), self.counts, self.kinds)


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """Hypotheses encoded with the ids of the references they are scored against."""

    flat: NgramArrays
    picture: Ints  # the picture whose references each is scored against
    counted: list[NgramCounts]


class References:
    """Tokenised reference captions, grouped by picture. Every picture has at least one."""

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        self.pictures = len(references)
        self.sizes = np.fromiter(map(len, references), np.int64, self.pictures)
        if not self.sizes.all():
            raise BadInput(f"picture {int(np.argmin(self.sizes))} has no references")
        self.first = np.cumsum(self.sizes) - self.sizes  # each picture's first caption
        self.picture = np.repeat(np.arange(self.pictures), self.sizes)  # picture of each caption
        self.captions = list(chain.from_iterable(references))
        self.vocabulary = Vocabulary()
        flat = flatten(self.captions, self.vocabulary.words)
        self.lengths = flat.lengths
        self.cells = [self._cells(grams) for grams in self.vocabulary.learn(flat)]

    def captions_for(self, picture: Ints) -> tuple[Ints, Ints]:
        """Return the references of these pictures in turn, and the number per picture."""
        sizes = self.sizes[picture]
        starts = np.cumsum(sizes) - sizes
        return np.arange(int(sizes.sum())) + np.repeat(self.first[picture] - starts, sizes), sizes

    def read(self, hypotheses: Sequence[str], picture: Sequence[int] | None = None) -> Hypotheses:
        """Encode tokenised hypotheses; the i-th belongs to the i-th picture unless `picture` says otherwise."""
        whose = np.arange(self.pictures) if picture is None else np.asarray(picture, np.int64)
        if len(whose) != len(hypotheses):
            raise BadInput(f"{len(hypotheses)} hypotheses for {len(whose)} pictures")
        if len(whose) and not 0 <= int(whose.min()) <= int(whose.max()) < self.pictures:
            raise BadInput(f"picture numbers must be between 0 and {self.pictures - 1}")
        flat, orders = self.vocabulary.look_up(hypotheses)
        return Hypotheses(flat, whose, [_count(grams) for grams in orders])

    def _cells(self, grams: NgramTable) -> NgramCells:
        """Build the cells with one sort by picture, n-gram and reference."""
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
