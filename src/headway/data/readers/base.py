"""What a reader makes of a source: rows, captions for rows, and what could not be read. Streams; keeps nothing.

A reader is one file and one registry line in `detect.py`. It looks at annotations only: pictures are opened later, by
many workers at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Task = Literal["captions", "classes", "grades", "translation"]
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One example to be. `split` is empty where the source does not say."""

    id: str  # unique in the source: captions refer to it
    name: str = ""  # what the prepared data calls it, by default the id
    split: str = ""
    pictures: Mapping[str, str] = field(default_factory=dict)  # column -> key below the source
    texts: Mapping[str, str] = field(default_factory=dict)  # column -> text
    numbers: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # column -> values, where known
    label: str = ""  # class, or grade in digits
    group: str = ""  # rows of one group must not stand in two splits
    again: bool = False  # it may have been named before, to which this adds nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Caption:
    """A caption of the row with this id, which may come before or after it."""

    row: str
    text: str
    flag: Literal["", "rejected", "pre-canned"] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bad:
    """Something in the source that does not become a row or a caption."""

    row: str  # its id, or where it stands
    reason: str
    detail: str = ""
    fault: bool = True  # False: the source means it so (a picture that no official split names)


Found = Row | Caption | Bad


class Reader(Protocol):
    task: Task
    name: str  # what the report calls it

    def found(self) -> Iterator[Found]:
        """Everything in the source, in its own order: the same each time."""


_ALIASES = {
    "train": "train",
    "training": "train",
    "trn": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
    "tst": "test",
    "eval": "test",
}


def is_split_folder(name: str) -> bool:
    """`train`, `Valid`, `test2017`: a folder whose whole name is a split's."""
    return name.lower().rstrip("0123456789_-") in _ALIASES


def split_name(text: str) -> str:
    """train, val or test from what people write: `train2014`, `valid`, `Flickr_8k.devImages`; empty if none of them."""
    for word in re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()):
        if word in _ALIASES:
            return _ALIASES[word]
    return ""
