"""Unpack untrusted archives: no path traversal, no links, no decompression bombs.

Limits apply to the bytes written, not to the sizes in headers. The folder appears only once it is complete.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headway.core.errors import BadInput, DiskFull
from headway.core.format import size

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".gz", ".bz2", ".xz")
_BLOCK = 1 << 20
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, gzip.BadGzipFile, RuntimeError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits for unpacking. Pictures hardly compress: a ratio of 100 is far beyond any honest set of them."""

    ratio: int = 100  # unpacked to packed bytes, beyond the first `free` bytes
    free: int = 100 << 20
    disk_share: float = 0.9  # of the space that is free on the disk
    files: int = 20_000_000
    bytes: int = 4 << 40


class BadArchive(BadInput):
    """The archive is damaged, or malicious."""


def is_archive(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def looks_packed(file: Path) -> bool:
    """Detect an archive by name, or by content: some servers give it no extension."""
    return is_archive(file.name) or zipfile.is_zipfile(file) or tarfile.is_tarfile(file)


def unpack(archive: Path, to: Path, limits: Limits | None = None) -> int:
    """Unpack `archive` into `to`, which may already contain files, and return the number of files.

    Skips links, devices and other non-files. A second file of the same name is an error.
    """
    unpacking = to.with_name(f"{to.name}.unpacking")
    shutil.rmtree(unpacking, ignore_errors=True)  # left by a killed process
    writer = _Writer(archive, unpacking, limits or Limits())
    try:
        with _map_errors(archive):
            _reader(archive)(archive, writer)
        _merge(unpacking, to, archive)
    finally:
        shutil.rmtree(unpacking, ignore_errors=True)
    return writer.count


class _Writer:
    """Writes files below a folder and enforces the limits."""

    def __init__(self, archive: Path, root: Path, limits: Limits) -> None:
        self._archive, self._root, self._limits = archive, root, limits
        self._max_bytes = min(limits.bytes, max(limits.free, limits.ratio * archive.stat().st_size))
        self.count = self.bytes = 0
        root.mkdir(parents=True)
        self._disk_bytes = int(limits.disk_share * shutil.disk_usage(root).free)

    def put(self, name: str, source: IO[bytes]) -> None:
        path = self._root / _safe_name(name, self._archive)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.count += 1
        if self.count > self._limits.files:
            raise BadArchive(f"it contains more than {self._limits.files:,} files", where=str(self._archive))
        try:
            file = path.open("xb")
        except (FileExistsError, IsADirectoryError):
            raise BadArchive(f"it contains {name!r} twice", where=str(self._archive)) from None
        with file:
            while block := source.read(_BLOCK):
                self.bytes += len(block)
                self._check_size()
                file.write(block)

    def _check_size(self) -> None:
        where, limits = str(self._archive), self._limits
        if self.bytes > self._max_bytes:
            what = f"unpacked, it exceeds {size(self._max_bytes)}, which is {limits.ratio} times its size"
            if self._max_bytes == limits.free:
                what = f"unpacked, it exceeds {size(self._max_bytes)}, the most that an archive of this size may hold"
            fix = "unpack it yourself if you trust it, and name the folder"
            raise BadArchive(f"{what}: a decompression bomb, or not a data set", where=where, fix=fix)
        if self.bytes > self._disk_bytes:
            what = f"unpacked, it exceeds {size(self._disk_bytes)}, {limits.disk_share:.0%} of the free disk space"
            raise DiskFull(what, where=where, fix="free some space, or choose another folder")


def _reader(archive: Path) -> Any:
    name = archive.name.lower()
    if zipfile.is_zipfile(archive):
        return _zip
    if name.endswith(".zip"):
        raise BadArchive("it is not a zip file, or it is damaged", where=str(archive), fix="fetch it again")
    if ".tar" in name or name.endswith((".tgz", ".tbz2", ".txz")) or tarfile.is_tarfile(archive):
        return _tar
    for ending, opener in ((".gz", gzip.open), (".bz2", bz2.open), (".xz", lzma.open)):
        if name.endswith(ending):
            return lambda path, writer: _single(path, writer, opener)
    raise BadArchive(f"{archive.name} is not a supported kind of archive", fix=f"use one of {', '.join(SUFFIXES)}")


def _zip(archive: Path, writer: _Writer) -> None:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir() or kind not in (0, stat.S_IFREG) or _is_macos_metadata(member.filename):
                continue
            if member.flag_bits & 0x1:
                raise BadArchive(f"{member.filename!r} is encrypted", where=str(archive), fix="decrypt it first")
            with packed.open(member) as source:
                writer.put(member.filename, source)


def _tar(archive: Path, writer: _Writer) -> None:
    with _tar_stream(archive) as packed:
        for member in packed:
            if not member.isreg() or _is_macos_metadata(member.name):
                continue
            source = packed.extractfile(member)
            if source is not None:
                writer.put(member.name, source)


def _tar_stream(archive: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(archive, "r|*")
    except AttributeError:  # Python before 3.11.4 fails with this on a damaged gzip header
        raise tarfile.ReadError("its gzip header is damaged") from None


def _single(archive: Path, writer: _Writer, opener: Any) -> None:
    with opener(archive, "rb") as source:
        writer.put(archive.name.rpartition(".")[0], source)


def _safe_name(name: str, archive: Path) -> str:
    clean = name.replace("\\", "/")
    parts = [part for part in clean.split("/") if part not in ("", ".")]
    drive = len(clean) > 1 and clean[1] == ":"
    if clean.startswith("/") or drive or ".." in parts or "\0" in clean or not parts:
        raise BadArchive(
            f"{name!r} would be unpacked outside its folder", where=str(archive), fix="do not trust this archive"
        )
    return "/".join(parts)


def _is_macos_metadata(name: str) -> bool:
    """Return whether this is a file that macOS adds to archives."""
    return name.startswith("__MACOSX/") or os.path.basename(name).startswith("._") or name.endswith(".DS_Store")


def _merge(unpacking: Path, to: Path, archive: Path) -> None:
    """Move the files: one rename if the folder is new, else file by file beside other parts of the data set."""
    if not to.exists():
        to.parent.mkdir(parents=True, exist_ok=True)
        os.rename(unpacking, to)
        return
    for path in sorted(unpacking.rglob("*")):
        if path.is_file():
            target = to / path.relative_to(unpacking)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)


@contextmanager
def _map_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except BadArchive:
        raise
    except _DAMAGED as error:
        what = f"it cannot be unpacked: {' '.join(str(error).split()) or type(error).__name__}"
        raise BadArchive(what, where=str(archive), fix="fetch it again") from None
    except OSError as error:
        if error.errno == 28:
            what = "no space left to unpack it"
            raise DiskFull(what, where=str(archive), fix="free some space, or choose another folder") from None
        raise BadArchive(f"it cannot be unpacked: {error}", where=str(archive), fix="fetch it again") from None
