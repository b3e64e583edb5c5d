"""The reader contract: a reader streams rows, captions for rows, and faults. It stores nothing.

A reader is one class, found by its name in `headway.plugins.READERS`. It reads annotations only: workers open the
pictures later, in parallel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from headway.data.readers.files import Tree

Task = Literal["captions", "classes", "grades", "translation"]
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One example to prepare.

    Attributes:
        id: Unique in the source; captions refer to it.
        name: Id in the prepared data; by default `id`.
        split: `train`, `val` or `test`; empty if the source defines none.
        pictures: Column -> key of the picture, relative to the source.
        texts: Column -> text.
        numbers: Column -> values, None where unknown.
        label: Class, or grade in digits.
        group: Rows of one group must not be in two splits.
        again: May repeat an earlier row, to which it adds nothing.
    """

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
    """A caption of a row, before or after that row.

    Attributes:
        row: The row's id.
        text: The caption.
        flag: The source's own mark: empty, `rejected` or `pre-canned`.
    """

    row: str
    text: str
    flag: Literal["", "rejected", "pre-canned"] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bad:
    """An entry of the source that becomes neither a row nor a caption.

    Attributes:
        row: Its id, or its location in the source.
        reason: Why; entries are counted by reason.
        detail: More about this entry.
        fault: False if the source intends it (e.g. a picture in no official split).
    """

    row: str  # its id, or its location in the source
    reason: str
    detail: str = ""
    fault: bool = True  # False: intended by the source (e.g. a picture in no official split)


Found = Row | Caption | Bad


class Reader(Protocol):
    """Protocol of a reader: it streams the rows, captions and faults of one data format. It stores nothing.

    A new reader is one class, whose constructor takes a `Tree` of the source's files, and an entry point of the group
    `headway.readers` that names it (docs/plugins.md). It reads annotations only: workers open the pictures later, in
    parallel. `task` says what its rows are for, and `name` is its name in the report.

    Example:
        >>> from headway.data.readers.base import Reader, Row
        >>> class Numbered:
        ...     task, name = "translation", "numbered lines"
        ...     @classmethod
        ...     def fits(cls, lines):
        ...         return bool(lines)
        ...     def __init__(self, lines):
        ...         self._lines = lines
        ...     def read_rows(self):
        ...         for number, text in enumerate(self._lines):
        ...             yield Row(id=str(number), texts={"source": text, "target": text.upper()})
        >>> reader: Reader = Numbered(["one", "two"])
        >>> [row.texts["target"] for row in reader.read_rows()]
        ['ONE', 'TWO']
    """

    task: Task
    name: str  # name in the report

    @classmethod
    def fits(cls, tree: Tree) -> bool:
        """Return whether a source looks like this format. Those of other packages are asked after Headway's own.

        Args:
            tree: The source's files.

        Returns:
            True to read it when the user names no format.
        """

    def read_rows(self) -> Iterator[Found]:
        """Yield everything in the source, in its own order, which is the same each time.

        Yields:
            A `Row`, `Caption` or `Bad`.
        """


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
    """Return whether a folder's whole name is a split's.

    Args:
        name: The folder's name.

    Returns:
        True for `train`, `Valid`, `test2017`.

    Example:
        >>> from headway.data.readers.base import is_split_folder
        >>> is_split_folder("train2017"), is_split_folder("trains")
        (True, False)
    """
    return name.lower().rstrip("0123456789_-") in _ALIASES


def split_name(text: str) -> str:
    """Map the name that a source uses for a split to train, val or test.

    Args:
        text: A name of a folder, file or column.

    Returns:
        `train`, `val` or `test`; empty if it is none of them.

    Example:
        >>> from headway.data.readers.base import split_name
        >>> split_name("train2014"), split_name("valid"), split_name("Flickr_8k.devImages"), split_name("all")
        ('train', 'val', 'val', '')
    """
    for word in re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()):
        if word in _ALIASES:
            return _ALIASES[word]
    return ""
