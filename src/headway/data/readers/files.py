"""Access to a source's files in a folder or an object store, and streaming of large JSON arrays."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from headway.core.errors import BadInput, NotThere
from headway.data.readers.base import Bad, Found, Row, Task, is_split_folder, split_name
from headway.storage import Store, local_path, open_store
from headway.storage.transfer import fetch_file

# JSON streaming: a file of any size in the memory of one element.


_BLOCK = 1 << 16
_MAX_VALUE_CHARS = 1 << 26  # a larger single value is not an annotation
_SPACE = " \t\r\n"


def arrays(path: Path, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield (key, element) for each element of the wanted arrays of the object in `path`, in file order.

    Raises BadInput, with the position, for anything that is not JSON, not UTF-8 or not an object.
    """
    with path.open("rb") as file:
        yield from _Scanner(file, path).members(names)


def elements(path: Path) -> Iterator[Any]:
    """Yield each element of a file that is one array."""
    with path.open("rb") as file:
        scanner = _Scanner(file, path)
        scanner.expect("[")
        yield from scanner.elements()


def first_character(path: Path) -> str:
    """Return the first non-space character: `{`, `[`, or something else if the file is not the expected JSON."""
    with path.open("rb") as file:
        return _Scanner(file, path).peek()


class _Scanner:
    def __init__(self, file: Any, path: Path) -> None:
        self._file, self._path = file, path
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._text, self._at, self._before, self._ended = "", 0, 0, False
        self._parse = json.JSONDecoder().raw_decode

    def members(self, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
        self.expect("{")
        if self.peek() == "}":
            return
        while True:
            key = self.value()
            self.expect(":")
            if key in names and self.peek() == "[":
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
        """Parse the next value. If it does not end in the buffer, read more and retry."""
        self.peek()
        block = _BLOCK
        while True:
            try:
                value, end = self._parse(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > _MAX_VALUE_CHARS or not self._read(block):
                    self._fail(error.msg)
                block *= 2  # so that a long value is parsed a few times, not thousands
                continue
            if end == len(self._text) and self._read():
                continue  # a number may continue in the next block
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
        raise BadInput(f"unexpected JSON: {what}", where=where, fix="fetch or export the file again") from None


PICTURES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif")
)
_MAX_DOCUMENTS = 20_000


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """Overview of a source's files."""

    folders: frozenset[str]  # folders with pictures
    documents: tuple[str, ...]  # keys of all other files
    pictures: int


class Tree:
    """A source's files by key. Keys are relative, with forward slashes, and never lead outside."""

    def __init__(self, url: str, work: Path, store: Store | None = None) -> None:
        self.url, self._work = url, work
        self.path = local_path(url)
        self.store = store or open_store(url)

    def walk(self, prefix: str = "") -> Iterator[str]:
        """Yield every file in order, except hidden ones."""
        if self.path is not None:
            yield from _walk(self.path, prefix.rstrip("/"), frozenset())
            return
        for entry in self.store.list(prefix):
            if not any(part.startswith(".") for part in entry.key.split("/")):
                yield entry.key

    @cached_property
    def summary(self) -> SourceSummary:
        folders: set[str] = set()
        documents: list[str] = []
        pictures = 0
        for key in self.walk():
            if is_picture(key):
                folders.add(str(PurePosixPath(key).parent))
                pictures += 1
            elif len(documents) < _MAX_DOCUMENTS:
                documents.append(key)
        return SourceSummary(frozenset(folders), tuple(documents), pictures)

    def document(self, key: str) -> Path:
        """Return a readable file: the file itself, or a copy downloaded to the work folder."""
        if self.path is not None:
            return self.path / key
        copy = self._work / "documents" / key
        if not copy.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            fetch_file(self.store, key, copy)
        return copy

    def lines(self, key: str) -> Iterator[tuple[int, bytes]]:
        """Yield lines numbered from 1, without line ends.

        As bytes: a line of invalid UTF-8 must not end the reading.
        """
        with self.document(key).open("rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                    line = line[3:]
                yield number, line.rstrip(b"\r\n")


def is_picture(key: str) -> bool:
    return os.path.splitext(key)[1].lower() in PICTURES


def decode_utf8(line: bytes) -> str | None:
    """Decode UTF-8, or return None if it is invalid."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return None


def sanitized_key(key: str) -> str:
    """Sanitize a key from an annotation file. Raises BadInput if it leads outside of the source."""
    clean = key.replace("\\", "/")
    parts = [part for part in clean.split("/") if part not in ("", ".")]
    if clean.startswith("/") or ".." in parts or "\0" in clean or not parts:
        raise BadInput(f"{key!r} is outside the source's folder", fix="name files relative to the source's folder")
    return "/".join(parts)


def _walk(root: Path, folder: str, seen: frozenset[str]) -> Iterator[str]:
    """Walk depth first, names in order, without following links back to a parent folder."""
    here = root / folder if folder else root
    real = os.path.realpath(here)
    if real in seen:
        return
    try:
        entries = sorted(os.scandir(here), key=lambda entry: entry.name)
    except FileNotFoundError:
        raise NotThere(f"{here} does not exist", fix="check the path") from None
    except NotADirectoryError:
        raise BadInput(f"{here} is a file, not a folder", fix="give the folder that contains it") from None
    for entry in entries:
        if entry.name.startswith("."):
            continue
        key = f"{folder}/{entry.name}" if folder else entry.name
        if entry.is_dir():
            yield from _walk(root, key, seen | {real})
        elif entry.is_file():
            yield key


# Reader for class folders, with or without split folders above them: train/cat/1.jpg, or cat/1.jpg.


class ClassFolders:
    task: Task = "classes"
    name = "class folders"

    @classmethod
    def fits(cls, tree: Tree) -> bool:
        """Return whether there are at least two picture folders that are not split folders."""
        classes = {folder.rpartition("/")[2] for folder in tree.summary.folders if folder != "."}
        return sum(not is_split_folder(name) for name in classes) >= 2

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read_rows(self) -> Iterator[Found]:
        for key in self._tree.walk():
            if not is_picture(key):
                continue
            parts = key.split("/")
            split = next((split_name(part) for part in parts[:-2] if is_split_folder(part)), "")
            if len(parts) < 2 or (len(parts) == 2 and is_split_folder(parts[0])):
                yield Bad(row=key, reason="in no class", detail="it is in no class folder")
            else:
                yield Row(id=key, split=split, pictures={"picture": key}, label=parts[-2])
