"""The last part of a preparation: what the receipts say becomes a report, files beside the shards, and the manifest."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.chunk import Receipt
from headway.data.duplicates import alike, same
from headway.data.manifest import NAME, Manifest, OtherFile, ShardFile
from headway.data.staging import Staging
from headway.storage import Store, local_path

DROPPED, DUPLICATES, WORDS, TOKENIZER = "dropped.jsonl", "duplicates.jsonl", "words.json", "tokenizer.json"
_RANK = {"test": 2, "val": 1}  # a picture in two splits is kept in the one that is measured on


class Ledger:
    """What is known of the shards so far. Rows' details go to the staging file; only the shards are kept here."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._shards: dict[str, tuple[str, ShardFile | None]] = {}
        self.rows = 0

    def enter(self, receipt: Receipt) -> None:
        """A chunk that is made a second time replaces what the first said."""
        if receipt.chunk in self._shards:
            self._staging.forget(receipt.chunk)
        else:
            self.rows += receipt.rows
        self._shards[receipt.chunk] = (receipt.split, receipt.shard)
        self._staging.drop(receipt.dropped, receipt.chunk)
        self._staging.note(receipt.chunk, receipt.split, receipt.hashes, receipt.words)

    def splits(self, names: Iterable[str]) -> dict[str, tuple[ShardFile, ...]]:
        found: dict[str, list[ShardFile]] = {name: [] for name in names}
        for _, (split, shard) in sorted(self._shards.items()):
            if shard is not None:
                found[split].append(shard)
        return {split: tuple(shards) for split, shards in found.items()}


class Twins:
    """Pictures that occur more than once: the same file anywhere, or the same look in two splits."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        columns = array("q"), array("q"), array("q"), array("q"), array("q")
        codes: dict[str, int] = {}
        for number, exact, near, split in staging.hashes():
            values = (number, exact, near or 0, near is not None, codes.setdefault(split, len(codes)))
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        numbers, files, looks, textured, splits = (np.array(column, dtype=np.int64) for column in columns)
        self.exact = [self._named(numbers[group]) for group in same(files.view(np.uint64))]
        shown = np.flatnonzero(textured)  # what is flat looks like everything else that is
        groups = (shown[group] for group in alike(looks[shown].view(np.uint64)))
        self.near = [self._named(numbers[group]) for group in groups if len(np.unique(splits[group])) > 1]

    def _named(self, numbers: Any) -> list[tuple[str, str, str]]:
        return sorted({self._staging.hashed(int(number)) for number in numbers}, key=lambda m: (m[2], m[1], m[0]))

    def lines(self) -> Iterator[dict[str, Any]]:
        for kind, groups in (("exact", self.exact), ("near", self.near)):
            for group in sorted(groups, key=lambda members: [member[1:] for member in members]):
                rows = [{"row": row, "split": split} for _, row, split in group]
                yield {"kind": kind, "across_splits": len({split for *_, split in group}) > 1, "rows": rows}

    def doomed(self) -> dict[str, dict[str, str]]:
        """chunk -> row -> why: rows that a split further on has too."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for kind, groups in (("the same file as", self.exact), ("looks like", self.near)):
            for group in groups:
                keep = max(group, key=lambda member: _RANK.get(member[2], 0))
                for chunk, row, split in group:
                    if _RANK.get(split, 0) < _RANK.get(keep[2], 0):
                        found[chunk].setdefault(row, f"{kind} {keep[1]} of {keep[2]}")
        return dict(found)


def finish(dest: Store, manifest: Manifest, ledger: Ledger, staging: Staging, twins: Twins, scratch: Path) -> Manifest:
    """Write everything beside the shards, the manifest last; then remove what only the preparation needed."""
    files = [
        _send_lines(dest, DROPPED, (asdict(line) for line in staging.dropped()), scratch),
        _send_lines(dest, DUPLICATES, twins.lines(), scratch),
    ]
    if manifest.task == "captions":
        files.append(_send(dest, WORDS, _words(staging)))
    done = replace(
        manifest,
        splits=ledger.splits(manifest.splits),
        dropped=staging.reasons(),
        files=(*manifest.files, *files),
    )
    dest.write(NAME, done.to_json().encode())
    _tidy(dest, done)
    return done


def send_report(dest: Store, staging: Staging, scratch: Path) -> None:
    """What was dropped so far, for someone who has to find out why it was so much."""
    _send_lines(dest, DROPPED, (asdict(line) for line in staging.dropped()), scratch)


def _words(staging: Staging) -> bytes:
    total: Counter[str] = Counter()
    for counted in staging.words():
        total.update(counted)
    ordered = dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
    return (json.dumps(ordered, ensure_ascii=False, indent=0) + "\n").encode()


def _send_lines(dest: Store, key: str, lines: Iterable[dict[str, Any]], scratch: Path) -> OtherFile:
    path, digest, size = scratch / key, hashlib.sha256(), 0
    with path.open("wb") as file:
        for line in lines:
            text = (json.dumps(line, ensure_ascii=False) + "\n").encode()
            digest.update(text)
            size += file.write(text)
    dest.write(key, path)
    return OtherFile(key=key, bytes=size, sha256=digest.hexdigest())


def _send(dest: Store, key: str, body: bytes) -> OtherFile:
    dest.write(key, body)
    return OtherFile(key=key, bytes=len(body), sha256=hashlib.sha256(body).hexdigest())


def send_tokenizer(dest: Store, text: str) -> OtherFile:
    return _send(dest, TOKENIZER, text.encode())


def _tidy(dest: Store, manifest: Manifest) -> None:
    """Receipts have done their work; shards of an earlier preparation that this one does not have are nobody's."""
    wanted = {shard.key for shards in manifest.splits.values() for shard in shards}
    stale = [entry.key for entry in dest.list("shards/") if entry.key not in wanted]
    for key in [*stale, *(entry.key for entry in dest.list("receipts/"))]:
        dest.delete(key)
    folder = local_path(dest.url)
    if folder is not None:
        with suppress(OSError):  # somebody put something there: it is theirs
            (folder / "receipts").rmdir()
