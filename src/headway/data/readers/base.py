"""The reader contract: a reader streams rows, captions for rows, and faults. It stores nothing.

A reader is one class and one registry line in `detect.py`. It reads annotations only: workers open the pictures later,
in parallel.
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
    """One example to prepare. `split` is empty if the source defines none."""

    id: str  # unique in the source; captions refer to it
    name: str = ""  # id in the prepared data; default: `id`
    split: str = ""
    pictures: Mapping[str, str] = field(default_factory=dict)  # column -> key relative to the source
    texts: Mapping[str, str] = field(default_factory=dict)  # column -> text
    numbers: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # column -> values, None if unknown
    label: str = ""  # class, or grade in digits
    group: str = ""  # rows of one group must not be in two splits
    again: bool = False  # may repeat an earlier row, to which it adds nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Caption:
    """A caption of the row with this id, before or after that row."""

    row: str
    text: str
    flag: Literal["", "rejected", "pre-canned"] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bad:
    """An entry of the source that becomes neither a row nor a caption."""

    row: str  # its id, or its location in the source
    reason: str
    detail: str = ""
    fault: bool = True  # False: intended by the source (e.g. a picture in no official split)


Found = Row | Caption | Bad


class Reader(Protocol):
    task: Task
    name: str  # name in the report

    def found(self) -> Iterator[Found]:
        """Yield everything in the source, in its own order, which is the same each time."""


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
    """Return whether a folder's whole name is a split's: `train`, `Valid`, `test2017`."""
    return name.lower().rstrip("0123456789_-") in _ALIASES


def split_name(text: str) -> str:
    """Map a name to train, val or test: `train2014`, `valid`, `Flickr_8k.devImages`; empty if it is none of them."""
    for word in re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()):
        if word in _ALIASES:
            return _ALIASES[word]
    return ""
