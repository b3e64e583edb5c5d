"""Resolve a source (name, URL, archive, folder or store) to readable files, downloading and unpacking if needed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import BadInput
from headway.data.download.archive import is_archive, looks_packed, unpack
from headway.data.download.http import Login, Progress, download
from headway.storage import local_path, open_store
from headway.storage.transfer import fetch_file

# Catalog of known data sets: their publishers' URLs in parts, with checksums.


@dataclass(frozen=True, slots=True)
class Part:
    url: str
    md5: str = ""  # as published; empty if it is not


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownDataset:
    parts: tuple[Part, ...]
    format: str
    terms: str  # terms of use
    year: str | None = None


_COCO = "http://images.cocodataset.org"
_VIZWIZ = "https://vizwiz.cs.colorado.edu/VizWiz_final"
_FLICKR = "https://github.com/jbrownlee/Datasets/releases/download/Flickr8k"
_COCO_TERMS = "annotations CC BY 4.0; pictures under their Flickr licences (cocodataset.org/#termsofuse)"


def _coco(year: str, *, annotations: str, val: str, train: str) -> KnownDataset:
    """Return a year's captions and pictures of COCO, by the MD5 of each archive."""
    parts = (
        Part(f"{_COCO}/annotations/annotations_trainval{year}.zip", annotations),
        Part(f"{_COCO}/zips/val{year}.zip", val),
        Part(f"{_COCO}/zips/train{year}.zip", train),
    )
    return KnownDataset(parts=parts, format="coco", year=year, terms=_COCO_TERMS)


KNOWN = {
    "coco2014": _coco(
        "2014",
        annotations="0a379cfc70b0e71301e0f377548639bd",
        val="a3d79f5ed8d289b7a7554ce06a5782b3",
        train="0da8c0bd3d6becc4dcb32757491aca88",
    ),
    "coco2017": _coco(
        "2017",
        annotations="f4bbac642086de4f52a3fdda2de5fa2c",
        val="442b8da7639aecaf257c1dceb8ba8c80",
        train="cced6f7f71b7629ddf16f17bbcfab6b2",
    ),
    "flickr8k": KnownDataset(
        parts=(
            Part(f"{_FLICKR}/Flickr8k_text.zip", "bf6c1abcb8e4a833b7f922104de18627"),
            Part(f"{_FLICKR}/Flickr8k_Dataset.zip", "f18a1e2920de5bd84dae7cf08ec78978"),
        ),
        format="flickr8k",
        terms="non-commercial research and education only",
    ),
    "vizwiz": KnownDataset(
        parts=(
            Part(f"{_VIZWIZ}/caption/annotations.zip"),
            Part(f"{_VIZWIZ}/images/val.zip"),
            Part(f"{_VIZWIZ}/images/train.zip"),
        ),
        format="vizwiz",
        terms="CC BY 4.0",
    ),
}


def known_dataset(name: str) -> KnownDataset:
    if name not in KNOWN:
        raise BadInput(f"unknown data set {name!r}", fix=f"choose one of {', '.join(KNOWN)}, or give its address")
    return KNOWN[name]


_FINISHED_FILE = "unpacked.json"


@dataclass(frozen=True, slots=True)
class Resolved:
    url: str
    known: KnownDataset | None = None


def resolve(source: str, *, login: Login | None = None, progress: Progress | None = None) -> Resolved:
    """Return the location of the source's files. Downloads are kept in the user's cache and unpacked once."""
    if source in KNOWN and not os.path.exists(source):
        entry = known_dataset(source)
        parts = [(part.url, f"md5:{part.md5}" if part.md5 else "") for part in entry.parts]
        return Resolved(str(_download_parts(source, parts, login, progress)), entry)
    if source.startswith(("http://", "https://")):
        return Resolved(str(_download_parts(source, [(source, "")], login, progress)))
    path = local_path(source)
    if path is None:
        return Resolved(_from_store(source, progress) if is_archive(source) else source)
    if path.is_file():
        return Resolved(str(_from_file(path)))
    if not path.is_dir():
        close = f" (known by name: {', '.join(KNOWN)})" if "/" not in source else ""
        raise BadInput(f"{source} does not exist{close}", fix="check the path")
    return Resolved(str(path))


def downloads() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(chosen).expanduser() / "headway" / "downloads"


def _download_parts(name: str, parts: list[tuple[str, str]], login: Login | None, progress: Progress | None) -> Path:
    """Download, unpack and delete one part after the other, so that the disk holds one archive at a time."""
    with _locked_cache_folder(name) as cache:
        done = _finished_parts(cache)
        for url, checksum in parts:
            if url in done:
                continue
            file = download(url, cache / "arriving", checksum=checksum, login=login, progress=progress)
            _unpack_or_move(file, cache / "files")
            done.append(url)
            (cache / _FINISHED_FILE).write_text(json.dumps(done))
            file.unlink(missing_ok=True)
        return _single_top_folder(cache / "files")


def _from_store(url: str, progress: Progress | None) -> str:
    folder, _, key = url.rpartition("/")
    store = open_store(folder)
    entry = store.stat(key)
    with _locked_cache_folder(f"{url} {entry.version}") as cache:
        if not _finished_parts(cache):
            (cache / "arriving").mkdir(exist_ok=True)
            file = cache / "arriving" / key

            def report(done: int, total: int) -> None:
                if progress is not None:
                    progress(key, done, total)

            fetch_file(store, key, file, progress=report)
            _unpack_or_move(file, cache / "files")
            (cache / _FINISHED_FILE).write_text(json.dumps([url]))
            file.unlink(missing_ok=True)
        return str(_single_top_folder(cache / "files"))


def _from_file(path: Path) -> Path:
    """Unpack a local archive into the cache, leaving the archive itself alone."""
    if path.name == "splits.json":
        return path.parent
    if not is_archive(path.name):
        raise BadInput(f"{path} is a file, but not an archive", fix="give the folder that contains it")
    found = path.stat()
    with _locked_cache_folder(f"{path} {found.st_size} {found.st_mtime_ns}") as cache:
        if not _finished_parts(cache):
            unpack(path, cache / "files")
            (cache / _FINISHED_FILE).write_text(json.dumps([str(path)]))
        return _single_top_folder(cache / "files")


def _unpack_or_move(file: Path, folder: Path) -> None:
    if looks_packed(file):
        unpack(file, folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        os.replace(file, folder / file.name)


def _finished_parts(cache: Path) -> list[str]:
    try:
        listed = json.loads((cache / _FINISHED_FILE).read_text())
    except (OSError, ValueError):
        return []
    return [str(url) for url in listed]


def _single_top_folder(folder: Path) -> Path:
    """Descend into the single top-level folder that many archives have."""
    while True:
        inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
        if len(inside) != 1 or not inside[0].is_dir():
            return folder
        folder = inside[0]


@contextmanager
def _locked_cache_folder(name: str) -> Iterator[Path]:
    """Lock and yield the source's own cache folder, for one process at a time."""
    cache = downloads() / hashlib.sha256(name.encode()).hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache
