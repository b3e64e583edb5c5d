"""The elements of large JSON arrays one by one: a file of any size in the memory of one element."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from headway.errors import BadInput

_BLOCK = 1 << 16
_MORE = 1 << 26  # a single value larger than this is no annotation
_SPACE = " \t\r\n"


def arrays(path: Path, wanted: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """(key, element) for each element of the wanted arrays of the object in `path`, in the order of the file.

    BadInput, with the position, for what is not JSON, not UTF-8 or not an object.
    """
    with path.open("rb") as file:
        yield from _Scanner(file, path).members(wanted)


def elements(path: Path) -> Iterator[Any]:
    """Each element of a file that is one array."""
    with path.open("rb") as file:
        scanner = _Scanner(file, path)
        scanner.expect("[")
        yield from scanner.elements()


def first_mark(path: Path) -> str:
    """The first character that is no space: `{`, `[`, or something that is not our kind of JSON."""
    with path.open("rb") as file:
        return _Scanner(file, path).peek()


class _Scanner:
    def __init__(self, file: Any, path: Path) -> None:
        self._file, self._path = file, path
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._text, self._at, self._before, self._ended = "", 0, 0, False
        self._parse = json.JSONDecoder().raw_decode

    def members(self, wanted: frozenset[str]) -> Iterator[tuple[str, Any]]:
        self.expect("{")
        if self.peek() == "}":
            return
        while True:
            key = self.value()
            self.expect(":")
            if key in wanted and self.peek() == "[":
                self.expect("[")
                for element in self.elements():
                    yield key, element
            else:
                self.value()
            if self.expect(",}") == "}":
                return

    def elements(self) -> Iterator[Any]:
        if self.peek() == "]":
            self._at += 1
            return
        while True:
            yield self.value()
            if self.expect(",]") == "]":
                return

    def peek(self) -> str:
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read():
                return ""

    def expect(self, marks: str) -> str:
        mark = self.peek()
        if not mark or mark not in marks:
            found = repr(mark) if mark else "the end of the file"
            self._fail(f"expected {' or '.join(marks)}, found {found}")
        self._at += 1
        return mark

    def value(self) -> Any:
        """The next value. Where it does not end inside what was read, read on and try again."""
        self.peek()
        block = _BLOCK
        while True:
            try:
                value, end = self._parse(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > _MORE or not self._read(block):
                    self._fail(error.msg)
                block *= 2  # so that a long value is parsed a few times, not thousands
                continue
            if end == len(self._text) and self._read():
                continue  # a number may go on in the next block
            self._at = end
            return value

    def _read(self, block: int = _BLOCK) -> bool:
        if self._ended:
            return False
        piece = self._file.read(block)
        self._ended = not piece
        try:
            more = self._decode(piece, self._ended)
        except UnicodeDecodeError:
            self._fail("not UTF-8")
        self._before += self._at
        self._text, self._at = self._text[self._at :] + more, 0
        return not self._ended or bool(more)

    def _fail(self, what: str) -> NoReturn:
        where = f"{self._path}: character {self._before + self._at}"
        raise BadInput(
            f"not the JSON it should be: {what}", where=where, fix="fetch or export the file again"
        ) from None
