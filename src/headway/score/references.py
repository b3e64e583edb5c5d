"""The references of all pictures, indexed once: what BLEU and CIDEr need to know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from headway.errors import BadInput
from headway.score.ngrams import Flat, Grams, Ints, Vocabulary, find, flatten, runs


@dataclass(frozen=True, slots=True)
class Counted:
    """How often captions have n-grams of one order: an entry for every caption and n-gram it has."""

    caption: Ints
    gram: Ints
    count: Ints
    kinds: int  # n-grams are below this


@dataclass(frozen=True, slots=True)
class Cells:
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

    def counted(self, first: Ints) -> Counted:
        """The entries spelt out. `first` is the number of each picture's first caption."""
        cell = self.entries >> self.slot_bits
        caption = first[cell >> self.bits] + (self.entries & ((1 << self.slot_bits) - 1))
        return Counted(caption, cell & ((1 << self.bits) - 1), self.counts, self.kinds)


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """Hypotheses in the numbers of the references they are scored against."""

    flat: Flat
    picture: Ints  # whose references each is scored against
    counted: list[Counted]


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

    def _cells(self, grams: Grams) -> Cells:
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
        return Cells(keys, bits, grams.kinds, most, starts, entries, slot_bits, counts)


def _count(grams: Grams) -> Counted:
    bits = grams.kinds.bit_length()
    keys, starts = runs(np.sort(grams.caption << bits | grams.gram))
    return Counted(keys >> bits, keys & ((1 << bits) - 1), np.diff(starts, append=len(grams.gram)), grams.kinds)
