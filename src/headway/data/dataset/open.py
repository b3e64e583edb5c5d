"""Open the data sources of a job for reading, through a local cache if they are remote."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from headway.core.errors import BadInput
from headway.data.dataset.manifest import ShardFile, read_manifest
from headway.data.dataset.rows import Rows
from headway.data.dataset.shards import Progress, ShardCache
from headway.data.loading.loader import WeightedSource
from headway.spec.model import Cache, Source
from headway.storage import local_path, open_store

_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "fuse", "lustre", "gpfs", "ceph", "beegfs", "9p", "glusterfs")


def open_sources(
    sources: Sequence[Source], split: str, *, cache: Cache | None = None, progress: Progress | None = None
) -> list[WeightedSource]:
    """Open the rows of each source with its sampling weight. `split` is the default for sources that name none."""
    return [_open_source(source, split, cache, progress) for source in sources]


def _open_source(source: Source, split: str, cache: Cache | None, progress: Progress | None) -> WeightedSource:
    if source.weight < 0:
        raise BadInput(f"the weight of {source.source} is {source.weight}", fix="choose 0 or more")
    rows = open_rows(
        source.source,
        source.split or split,
        limit=source.limit,
        where=dict(source.where),
        cache=cache,
        progress=progress,
    )
    return WeightedSource(rows, source.weight)


def open_rows(
    url: str,
    split: str,
    *,
    limit: int | None = None,
    where: dict[str, object] | None = None,
    cache: Cache | None = None,
    progress: Progress | None = None,
) -> Rows:
    """Open a split of the data set at `url`.

    Object stores are always read through the cache, network file systems only if the job names a cache folder.
    """
    path = local_path(url)
    named = cache is not None and cache.dir is not None
    if path is not None and not (named and is_network_mount(path)):
        return Rows(url, split, limit=limit, where=where)
    shard_cache = ShardCache(_folder(cache), size=cache.size if cache else None)
    store, manifest = open_store(url), read_manifest(url)
    shards = manifest.splits.get(split, ())
    total = sum(shard.bytes for shard in shards)
    largest = max((shard.bytes for shard in shards), default=1)
    max_open = None if shard_cache.fits(total) else max(1, (shard_cache.size or 0) // largest)
    if max_open is None:
        shard_cache.fill(shards, store, progress)  # a shuffled epoch reads all shards at once

    def locate(shard: ShardFile) -> Path:
        return shard_cache.fetch(shard, store)

    return Rows(url, split, limit=limit, where=where, locate=locate, max_open=max_open)


def _folder(cache: Cache | None) -> Path:
    if cache is not None and cache.dir is not None:
        return Path(cache.dir).expanduser() / "shards"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headway" / "shards"


def is_network_mount(path: Path) -> bool:
    """Return whether the file system at `path` is a network mount, according to /proc/self/mountinfo."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    mounted: list[tuple[int, str]] = []
    real = os.path.realpath(path)
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4].replace("\\040", " ")
        if real == point or real.startswith(point.rstrip("/") + "/"):
            mounted.append((len(point), after.split()[0]))
    kind = max(mounted, default=(0, ""))[1]
    return kind.startswith(_NETWORK_FILE_SYSTEMS)
