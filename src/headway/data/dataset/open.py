"""The data that a job names, opened for reading: cached here where it lies elsewhere, checked before it is used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from headway.core.errors import BadInput, Problem, StoreError
from headway.data.dataset.cache import Progress, ShardCache
from headway.data.dataset.manifest import Manifest, ShardFile, read_manifest
from headway.data.dataset.rows import Rows
from headway.data.loading.loader import WeightedSource
from headway.spec.model import Cache, Data, Source
from headway.storage import local_path, open_store

# Whether the data that a job names can be read as it says, from the manifests alone: before anything starts or costs.
#
# Imports nothing heavy, so that a plan can be checked where no training ever runs.


_BUILT_IN = "builtin:"


def check_data(data: Data, *, task: str | None = None) -> list[Problem]:
    """Every problem of every source; `task` is what the recipe can learn (captions, classes, grades, translation)."""
    found: list[Problem] = []
    for split in ("train", "val", "test"):
        sources: Sequence[Source] = getattr(data, split)
        for number, source in enumerate(sources):
            if not source.source.startswith(_BUILT_IN):
                found += _problems(source, split, f"data.{split}[{number}]", task)
        weights = [source.weight for source in sources]
        if weights and not any(weight > 0 for weight in weights):
            found.append(Problem(what="no source has a weight above 0", where=f"data.{split}", fix="give one a weight"))
    return found


def _problems(source: Source, split: str, where: str, task: str | None) -> Iterator[Problem]:
    if source.weight < 0:
        yield Problem(what=f"the weight is {source.weight}", where=where, fix="choose 0 or more")
    if source.limit is not None and source.limit < 1:
        yield Problem(what=f"a limit of {source.limit} leaves no row", where=where, fix="choose 1 or more")
    try:
        manifest = read_manifest(source.source)
    except (BadInput, StoreError) as error:
        yield Problem(what=error.problem.what, where=where, fix=error.problem.fix)
        return
    chosen = source.split or split
    if not manifest.splits.get(chosen):
        known = ", ".join(name for name, shards in manifest.splits.items() if shards)
        yield Problem(what=f"{source.source} has no rows in {chosen!r}", where=where, fix=f"split: one of {known}")
    if task is not None and manifest.task != task:
        what = f"{source.source} holds {manifest.task}, and this recipe learns {task}"
        yield Problem(what=what, where=where, fix="name data of that kind")
    for name, value in source.where.items():
        yield from _filter_problems(manifest, name, value, where)


def _filter_problems(manifest: Manifest, name: str, value: object, where: str) -> Iterator[Problem]:
    usable = {column.name: column for column in manifest.columns if column.kind in ("text", "integer")}
    if name not in usable:
        yield Problem(what=f"rows cannot be chosen by {name!r}", where=where, fix=f"one of {', '.join(usable)}")
        return
    for wanted in value if isinstance(value, list | tuple) else (value,):
        number = isinstance(wanted, int) and not isinstance(wanted, bool)
        if usable[name].kind == "integer" and not number and str(wanted) not in manifest.classes:
            known = ", ".join(manifest.classes[:12])
            fix = f"one of {known}" if known else "a number"
            yield Problem(what=f"there is no {name} {wanted!r}", where=where, fix=fix)


_OVER_A_NETWORK = ("nfs", "cifs", "smb", "fuse", "lustre", "gpfs", "ceph", "beegfs", "9p", "glusterfs")


def open_sources(
    sources: Sequence[Source], split: str, *, cache: Cache | None = None, progress: Progress | None = None
) -> list[WeightedSource]:
    """The rows of each source, with its weight. `split` is the one to read where a source does not say."""
    return [_opened(source, split, cache, progress) for source in sources]


def _opened(source: Source, split: str, cache: Cache | None, progress: Progress | None) -> WeightedSource:
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
    """A split of the data set at `url`. From an object store, or a share when a cache is named, it is cached first."""
    path = local_path(url)
    named = cache is not None and cache.dir is not None
    if path is not None and not (named and lies_on_a_share(path)):
        return Rows(url, split, limit=limit, where=where)
    shelf = ShardCache(_folder(cache), size=cache.size if cache else None)
    store, manifest = open_store(url), read_manifest(url)
    shards = manifest.splits.get(split, ())
    total = sum(shard.bytes for shard in shards)
    largest = max((shard.bytes for shard in shards), default=1)
    room = None if shelf.holds(total) else max(1, (shelf.size or 0) // largest)
    if room is None:
        shelf.fill(shards, store, progress)  # a shuffled epoch needs all of them at once

    def locate(shard: ShardFile) -> Path:
        return shelf.bring(shard, store)

    return Rows(url, split, limit=limit, where=where, locate=locate, most_open=room)


def _folder(cache: Cache | None) -> Path:
    if cache is not None and cache.dir is not None:
        return Path(cache.dir).expanduser() / "shards"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headway" / "shards"


def lies_on_a_share(path: Path) -> bool:
    """Whether the file system at `path` is reached over a network, as far as the kernel tells."""
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
    return kind.startswith(_OVER_A_NETWORK)
