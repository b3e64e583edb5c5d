"""Whether a prepared data set is what its manifest says: every file is hashed again. Costs one read of the data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headway.data.manifest import Manifest, OtherFile, ShardFile, read_manifest
from headway.errors import NotThere
from headway.storage import Store, open_store

_SPAN = 16 << 20

Progress = Callable[[str, int, int], None]  # the file, bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class Damage:
    key: str
    what: str


@dataclass(frozen=True, slots=True)
class Verified:
    manifest: Manifest
    files: int
    bytes: int
    damage: tuple[Damage, ...]

    @property
    def whole(self) -> bool:
        return not self.damage


def verify(dest: str, *, progress: Progress | None = None) -> Verified:
    """Every shard and file of the data set at `dest`, with all that is wrong with them. BadInput if there is none."""
    store, manifest = open_store(dest), read_manifest(dest)
    wanted = list(_files(manifest))
    total, done = sum(file.bytes for file in wanted), 0
    damage: list[Damage] = []
    for file in wanted:
        what = _wrong_with(store, file)
        if what:
            damage.append(Damage(file.key, what))
        done += file.bytes
        if progress is not None:
            progress(file.key, done, total)
    listed = {file.key for file in wanted}
    strays = [entry.key for entry in store.list("shards/") if entry.key not in listed]
    damage += [Damage(key, "is not in the manifest") for key in strays]
    return Verified(manifest, len(wanted), total, tuple(damage))


def _files(manifest: Manifest) -> Iterator[ShardFile | OtherFile]:
    for shards in manifest.splits.values():
        yield from shards
    yield from manifest.files


def _wrong_with(store: Store, file: ShardFile | OtherFile) -> str:
    try:
        size = store.stat(file.key).size
        if size != file.bytes:
            return f"has {size:,} bytes instead of {file.bytes:,}"
        digest = hashlib.sha256()
        for start in range(0, size, _SPAN):
            digest.update(store.read(file.key, (start, min(start + _SPAN, size))))
    except NotThere:
        return "is missing"
    return "" if digest.hexdigest() == file.sha256 else "has other bytes than its hash says"
