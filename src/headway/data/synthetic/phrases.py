"""Generated translation pairs from English into a constructed language, Tavi, by a grammar. Deterministic, any number.

Tavi puts the verb last and the adjective after its noun, marks number, class, case and tense by endings, fronts
questions with a particle and times with an adverb. So a translator must reorder, agree and inflect, and each sentence
has exactly one correct translation. Costs 20 µs per pair; free of third-party rights.

Some combinations of adjective and noun never occur in training: translating them shows whether a model composes or
memorizes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from headway.data.loading.sampler import uniforms

SPLITS: Final = ("train", "val", "test")
_DRAWS: Final = 32  # random numbers per sentence; 23 are used at most
_BLOCK: Final = 4096


class Noun(NamedTuple):
    one: str
    many: str
    stem: str
    alive: bool


class Verb(NamedTuple):
    bare: str
    third: str
    past: str
    stem: str


NOUNS: Final = (
    Noun("dog", "dogs", "velu", True),
    Noun("cat", "cats", "mishi", True),
    Noun("child", "children", "toma", True),
    Noun("woman", "women", "leira", True),
    Noun("man", "men", "doru", True),
    Noun("teacher", "teachers", "sakel", True),
    Noun("farmer", "farmers", "grimon", True),
    Noun("horse", "horses", "haska", True),
    Noun("bird", "birds", "pilin", True),
    Noun("wolf", "wolves", "ulma", True),
    Noun("king", "kings", "rovan", True),
    Noun("sailor", "sailors", "navek", True),
    Noun("house", "houses", "kasto", False),
    Noun("tree", "trees", "arbe", False),
    Noun("river", "rivers", "shulo", False),
    Noun("book", "books", "libak", False),
    Noun("stone", "stones", "gorp", False),
    Noun("table", "tables", "menis", False),
    Noun("boat", "boats", "fluta", False),
    Noun("apple", "apples", "pomel", False),
    Noun("road", "roads", "vialo", False),
    Noun("lamp", "lamps", "luxin", False),
    Noun("door", "doors", "portu", False),
    Noun("mountain", "mountains", "berkan", False),
)
ADJECTIVES: Final = (
    ("red", "rubi"),
    ("green", "verdi"),
    ("blue", "azul"),
    ("black", "nokt"),
    ("white", "blan"),
    ("small", "pet"),
    ("large", "grosh"),
    ("old", "vek"),
    ("young", "nuv"),
    ("happy", "gai"),
    ("quiet", "silen"),
    ("strong", "fort"),
)
VERBS: Final = (
    Verb("see", "sees", "saw", "vid"),
    Verb("find", "finds", "found", "trov"),
    Verb("carry", "carries", "carried", "port"),
    Verb("paint", "paints", "painted", "pint"),
    Verb("love", "loves", "loved", "amor"),
    Verb("watch", "watches", "watched", "spek"),
    Verb("want", "wants", "wanted", "dezir"),
    Verb("buy", "buys", "bought", "komp"),
    Verb("forget", "forgets", "forgot", "oblis"),
    Verb("touch", "touches", "touched", "tast"),
)
PLACES: Final = (("in", "en"), ("under", "sub"), ("near", "apu"), ("behind", "rak"))
NUMBERS: Final = (("two", "du"), ("three", "tri"), ("four", "kva"), ("five", "pen"))
TIMES: Final = (("yesterday", "hiru", "past"), ("today", "oze", "present"), ("tomorrow", "mane", "future"))


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence, its only correct translation, and whether it has a combination that is absent from training."""

    source: str
    target: str
    held_out: bool


def pairs(split: str, count: int) -> list[Pair]:
    """Return the first `count` pairs of a split. No sentence is in two splits."""
    found: dict[str, Pair] = {}
    for pair in _candidates(SPLITS.index(split)):
        if _split_of(pair.source) == split and not (split == "train" and pair.held_out):
            found.setdefault(pair.source, pair)
        if len(found) == count:
            return list(found.values())
    raise AssertionError("the candidates never run out")


def _split_of(source: str) -> str:
    """Assign a split by a checksum of the sentence, so that a sentence is always in the same split."""
    return SPLITS[(0, 0, 0, 0, 0, 0, 0, 0, 1, 2)[zlib.crc32(source.encode()) % 10]]


def _candidates(stream: int) -> Iterator[Pair]:
    block = 0
    while True:
        for row in uniforms(block, 0, np.arange(_BLOCK), _DRAWS, stream=stream):
            yield _Maker(iter(row.tolist())).pair()
        block += 1


class _Thing(NamedTuple):
    """A noun phrase in both languages; Tavi's without its case ending."""

    english: str
    tavi: tuple[str, ...]
    many: bool
    held_out: bool


class _Maker:
    """Makes one sentence from a row of random numbers."""

    def __init__(self, draws: Iterator[float]) -> None:
        self._draws = draws

    def pair(self) -> Pair:
        subject, thing = self._thing(), self._thing()
        verb = VERBS[self._pick(len(VERBS))]
        time = TIMES[self._pick(len(TIMES))] if self._chance(0.4) else None
        tense = time[2] if time else ("present", "past", "future")[self._pick(3)]
        place = (PLACES[self._pick(len(PLACES))], self._thing()) if self._chance(0.4) else None
        negated, asked = self._chance(0.2), self._chance(0.2)
        return Pair(
            _english(subject, thing, verb, tense, time, place, negated, asked),
            _tavi(subject, thing, verb, tense, time, place, negated, asked),
            subject.held_out or thing.held_out or (place is not None and place[1].held_out),
        )

    def _thing(self) -> _Thing:
        number = self._pick(len(NOUNS))
        noun, many = NOUNS[number], self._chance(0.4)
        fitting = range(5, 12) if noun.alive else range(8)  # colours go with things, moods with living beings
        adjective = fitting[self._pick(len(fitting))] if self._chance(0.5) else None
        counted = NUMBERS[self._pick(len(NUMBERS))] if many and self._chance(0.5) else None
        known = self._chance(0.6)
        english = counted[0] if counted else "the" if known else "some" if many else "a"
        words = [
            english,
            *([ADJECTIVES[adjective][0]] if adjective is not None else []),
            noun.many if many else noun.one,
        ]
        ending = ("a" if noun.alive else "o") + ("s" if many else "")
        tavi = [noun.stem + ("n" if many else "")]
        tavi += [ADJECTIVES[adjective][1] + ending] if adjective is not None else []
        tavi += [counted[1]] if counted else ["li" if many else "la"] if known else []
        rare = adjective is not None and (number * 5 + adjective * 7) % 6 == 0
        return _Thing(_article(words), tuple(tavi), many, rare)

    def _pick(self, among: int) -> int:
        return int(next(self._draws) * among)

    def _chance(self, share: float) -> bool:
        return next(self._draws) < share


def _article(words: list[str]) -> str:
    if words[0] == "a" and words[1][0] in "aeiou":
        words = ["an", *words[1:]]
    return " ".join(words)


_Time = tuple[str, str, str] | None
_Place = tuple[tuple[str, str], _Thing] | None


def _english(
    subject: _Thing, thing: _Thing, verb: Verb, tense: str, time: _Time, place: _Place, negated: bool, asked: bool
) -> str:
    helper = {"future": "will", "past": "did", "present": "do" if subject.many else "does"}[tense]
    no = " not" if negated else ""
    if asked or negated or tense == "future":
        start = f"{helper} {subject.english}{no}" if asked else f"{subject.english} {helper}{no}"
        clause = f"{start} {verb.bare}"
    else:
        clause = f"{subject.english} {verb.past if tense == 'past' else verb.bare if subject.many else verb.third}"
    where = f" {place[0][0]} {place[1].english}" if place else ""
    when = f" {time[0]}" if time else ""
    text = f"{clause} {thing.english}{where}{when}"
    return text[0].upper() + text[1:] + ("?" if asked else ".")


def _tavi(
    subject: _Thing, thing: _Thing, verb: Verb, tense: str, time: _Time, place: _Place, negated: bool, asked: bool
) -> str:
    """Build the sentence: [ka] [time] subject [thing + place] object verb [nei]."""
    words = ["ka"] if asked else []
    words += [time[1]] if time else []
    words += subject.tavi
    words += [*place[1].tavi, place[0][1]] if place else []
    words += [thing.tavi[0] + "m", *thing.tavi[1:]]
    words += [verb.stem + {"past": "it", "present": "ar", "future": "esh"}[tense] + ("un" if subject.many else "")]
    words += ["nei"] if negated else []
    text = " ".join(words)
    return text[0].upper() + text[1:] + ("?" if asked else ".")
