"""The files of a source, wherever they lie: a folder here, or an object store. Small documents are brought here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from headway.errors import BadInput, NotThere
from headway.storage import Store, local_path, open_store
from headway.storage.transfer import fetch_file

PICTURES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif")
)
_DOCUMENTS_AT_MOST = 20_000


@dataclass(frozen=True, slots=True)
class Survey:
    """What lies in a source, in outline."""

    folders: frozenset[str]  # that hold pictures
    documents: tuple[str, ...]  # keys of everything that is no picture
    pictures: int


class Tree:
    """A source's files by key. Keys are relative, with forward slashes, and never lead outside."""

    def __init__(self, url: str, work: Path, store: Store | None = None) -> None:
        self.url, self._work = url, work
        self.path = local_path(url)
        self.store = store or open_store(url)

    def walk(self, prefix: str = "") -> Iterator[str]:
        """Every file, in order. Hidden ones are left out."""
        if self.path is not None:
            yield from _walk(self.path, prefix.rstrip("/"), frozenset())
            return
        for entry in self.store.list(prefix):
            if not any(part.startswith(".") for part in entry.key.split("/")):
                yield entry.key

    @cached_property
    def survey(self) -> Survey:
        folders: set[str] = set()
        documents: list[str] = []
        pictures = 0
        for key in self.walk():
            if is_picture(key):
                folders.add(str(PurePosixPath(key).parent))
                pictures += 1
            elif len(documents) < _DOCUMENTS_AT_MOST:
                documents.append(key)
        return Survey(frozenset(folders), tuple(documents), pictures)

    def document(self, key: str) -> Path:
        """A file to open and read: the file itself, or a copy fetched to the work folder."""
        if self.path is not None:
            return self.path / key
        copy = self._work / "documents" / key
        if not copy.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            fetch_file(self.store, key, copy)
        return copy

    def lines(self, key: str) -> Iterator[tuple[int, bytes]]:
        """Numbered from 1, without their ends. As bytes: one line that is not UTF-8 must not end the reading."""
        with self.document(key).open("rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                    line = line[3:]
                yield number, line.rstrip(b"\r\n")


def is_picture(key: str) -> bool:
    return os.path.splitext(key)[1].lower() in PICTURES


def decoded(line: bytes) -> str | None:
    """None where it is not UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return None


def below(key: str) -> str:
    """A key from an annotation file, made safe: BadInput if it would lead outside of the source."""
    clean = key.replace("\\", "/")
    parts = [part for part in clean.split("/") if part not in ("", ".")]
    if clean.startswith("/") or ".." in parts or "\0" in clean or not parts:
        raise BadInput(f"{key!r} leads outside of the source", fix="name files relative to the source's folder")
    return "/".join(parts)


def _walk(root: Path, folder: str, seen: frozenset[str]) -> Iterator[str]:
    """Depth first, names in order. A folder that links back to one above it is not entered again."""
    here = root / folder if folder else root
    real = os.path.realpath(here)
    if real in seen:
        return
    try:
        entries = sorted(os.scandir(here), key=lambda entry: entry.name)
    except FileNotFoundError:
        raise NotThere(f"{here} does not exist", fix="check the path") from None
    except NotADirectoryError:
        raise BadInput(f"{here} is a file, not a folder", fix="give the folder that holds it") from None
    for entry in entries:
        if entry.name.startswith("."):
            continue
        key = f"{folder}/{entry.name}" if folder else entry.name
        if entry.is_dir():
            yield from _walk(root, key, seen | {real})
        elif entry.is_file():
            yield key
