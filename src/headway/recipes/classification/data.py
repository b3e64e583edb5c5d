"""Classification data and batches: drawn leaves, prepared shards, or a folder, archive or URL.

Sources that are not prepared yet are downloaded and prepared when the training starts, once per machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput, NotThere
from headway.data.dataset.manifest import NAME, Column, Manifest, ShardFile, sources_of
from headway.data.dataset.open import open_sources
from headway.data.dataset.rows import Rows
from headway.data.dataset.shards import shard_bytes
from headway.data.loading.loader import PictureFeed, WeightedSource
from headway.data.loading.transforms import Augment
from headway.data.synthetic import leaves
from headway.recipes.classification.config import Config
from headway.spec.model import Cache, Data, Source
from headway.storage import open_store

LEAVES: Final = "builtin:leaves"
_EVALUATED: Final = 64  # pictures per evaluation batch
_MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True)
class Labelled:
    """A split of pictures, each of one class."""

    name: str
    sources: Sequence[WeightedSource]
    classes: tuple[str, ...]
    side: int  # side of the pictures as read, in pixels
    kept: Any = None  # keeps a temporary folder alive

    def __len__(self) -> int:
        return sum(len(source.rows) for source in self.sources)

    def labels(self) -> NDArray[np.int64]:
        return np.concatenate([source.rows.integers("label") for source in self.sources])

    def training(self, cfg: Config, *, seed: int) -> PictureFeed:
        """Return training batches: shuffled, augmented, balanced if configured, identical for any number of ranks."""
        return PictureFeed(
            self.sources,
            min(cfg.batch_size, len(self)),
            training=True,
            crop=self.side,
            columns=("picture", "label"),
            balance=cfg.balance if cfg.sampler == "balanced" else None,
            augment=augmentation(cfg),
            seed=seed,
            drop_last=True,
        )

    def in_order(self) -> PictureFeed:
        return PictureFeed(self.sources, _EVALUATED, training=False, crop=self.side, columns=("picture", "label"))


def augmentation(cfg: Config) -> Augment:
    return Augment(
        scale=(cfg.zoom, 1.0),
        size=cfg.image_size,
        mirror=0.5 if cfg.mirror else 0.0,
        degrees=cfg.rotate,
        brightness=cfg.color_jitter,
        contrast=cfg.color_jitter,
        saturation=cfg.color_jitter,
    )


def load(cfg: Config, data: Data, split: str, *, cache: Cache | None = None) -> Labelled:
    """Load one split from the job's sources for it, else from its training sources, else from drawn leaves."""
    sources = sources_of(data, split, LEAVES)
    if any(source.source == LEAVES for source in sources):
        if len(sources) > 1:
            raise BadInput(
                f"{LEAVES} cannot be mixed with other data", where=f"data.{split}", fix="name one or the other"
            )
        return _drawn(cfg, sources[0], split)
    here = [replace(source, source=_prepared(source.source, cfg, cache)) for source in sources]
    limited = [replace(source, limit=_least(source.limit, cfg.max_samples)) for source in here]
    opened = open_sources(limited, split, cache=cache)
    for source, rows in zip(sources, opened, strict=True):
        if rows.rows.manifest.task != "classes":
            raise BadInput(
                f"{source.source} holds {rows.rows.manifest.task}, not pictures with classes",
                where=f"data.{split}",
                fix="headway data prepare FOLDER_OF_CLASS_FOLDERS --to DEST",
            )
    name = ", ".join(f"{source.source} ({one.rows.split})" for source, one in zip(sources, opened, strict=True))
    manifest = opened[0].rows.manifest
    found = Labelled(name, opened, manifest.classes, _side(manifest, cfg))
    return _in_memory(found) if cfg.in_memory else found


def check_classes(known: Sequence[str], read: Labelled) -> None:
    """Raise BadInput unless `known` are the classes of `read`, in the same order."""
    if tuple(known) == read.classes:
        return
    odd = sorted(set(known) ^ set(read.classes))[:3]
    raise BadInput(
        f"the model's classes differ from those of {read.name}: {', '.join(odd) or 'in another order'}",
        fix="use data with the classes that the model is trained on; prepare all splits together",
    )


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _side(manifest: Manifest, cfg: Config) -> int:
    """Return the side to read: raw pixels whole, JPEGs as the centre square of their shorter side."""
    column = manifest.column("picture")
    return column.width if column.encoding == "raw" else int(manifest.settings.get("size") or cfg.image_size)


# Sources that are not prepared yet


def _prepared(source: str, cfg: Config, cache: Cache | None) -> str:
    """Return the source if it is prepared, else the shards made from it. The first process prepares under a lock."""
    if not source.startswith(("http://", "https://")) and _is_prepared(source):
        return source
    from headway.data.prepare.pipeline import PrepareOptions, prepare

    rest = (1 - cfg.train_share) / 2
    splits = {"train": cfg.train_share, "val": rest, "test": rest}
    wanted = repr((source, cfg.image_size, sorted(splits.items())))
    folder = _cache_folder(cache) / "prepared" / hashlib.sha256(wanted.encode()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_prepared(str(folder)):
            prepare(
                source,
                str(folder),
                size=cfg.image_size,
                encoding="raw",
                workers=1,
                options=PrepareOptions(splits=splits),
            )
    return str(folder)


def _is_prepared(source: str) -> bool:
    try:
        open_store(source).stat(NAME)
    except NotThere:
        return False
    return True


def _cache_folder(cache: Cache | None) -> Path:
    if cache is not None and cache.dir is not None:
        return Path(cache.dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headway"


# Drawn leaves and pictures held in memory. Both become shards of raw pixels, so that one code path reads all.


def _drawn(cfg: Config, source: Source, split: str) -> Labelled:
    drawn_as = source.split or split
    if drawn_as not in leaves.SPLITS or source.where:
        known = ", ".join(leaves.SPLITS)
        raise BadInput(f"{LEAVES} has the splits {known}, and cannot be filtered by `where`", where=f"data.{split}")
    count = _least(int(getattr(cfg, f"{drawn_as}_samples")), source.limit, cfg.max_samples)
    assert count is not None
    pixels = np.stack([leaves.draw(drawn_as, index) for index in range(count)])
    labels = [leaves.label(drawn_as, index) for index in range(count)]
    kept, rows = _as_shards(f"{LEAVES} ({drawn_as})", drawn_as, pixels, labels, leaves.CLASSES)
    return Labelled(f"{LEAVES} ({drawn_as})", [WeightedSource(rows)], leaves.CLASSES, leaves.SIDE, kept)


def _in_memory(read: Labelled) -> Labelled:
    """Decode all pictures once, into files in /dev/shm if the system has it."""
    feed = read.in_order()
    batches = [feed.batch(0, step, 0, 1) for step in range(len(feed))]
    pixels = np.concatenate([batch["picture"].permute(0, 2, 3, 1).numpy() for batch in batches])
    first, kept, sources = 0, [], []
    for source in read.sources:
        last = first + len(source.rows)
        labels = source.rows.integers("label").tolist()
        folder, rows = _as_shards(source.rows.url, source.rows.split, pixels[first:last], labels, read.classes)
        kept.append(folder)
        sources.append(WeightedSource(rows, source.weight))
        first = last
    return replace(read, sources=sources, kept=kept)


def _as_shards(
    name: str, split: str, pixels: NDArray[np.uint8], labels: Sequence[int], classes: tuple[str, ...]
) -> tuple[Any, Rows]:
    place = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
    kept = tempfile.TemporaryDirectory(prefix="headway-pictures-", dir=place)
    height, width = pixels.shape[1:3]
    columns = (
        Column(name="id", kind="text"),
        Column(name="picture", kind="picture", encoding="raw", height=height, width=width),
        Column(name="label", kind="integer"),
    )
    values: Mapping[str, Any] = {
        "id": [f"{split}/{number}" for number in range(len(pixels))],
        "picture": pixels,
        "label": list(labels),
    }
    written = shard_bytes(columns, values)
    key = f"{split}.arrow"
    (Path(kept.name) / key).write_bytes(written.body)
    shard = ShardFile(key=key, rows=written.rows, bytes=len(written.body), sha256=written.sha256)
    manifest = Manifest(name=name, task="classes", columns=columns, splits={split: (shard,)}, classes=classes)
    (Path(kept.name) / NAME).write_text(manifest.to_json())
    return kept, Rows(kept.name, split)


def picture_at(read: Labelled, row: int) -> NDArray[np.uint8]:
    """Return a picture for display: height × width × 3."""
    feed = PictureFeed(read.sources, 1, training=False, crop=read.side, columns=("picture",))
    pixels: NDArray[np.uint8] = feed.batch(0, row, 0, 1)["picture"][0].permute(1, 2, 0).numpy()
    return pixels


def groups_of(classes: Sequence[str], wanted: Mapping[str, str]) -> dict[str, str] | None:
    """Map each class to the group of the first pattern in its name; None if all classes share one group."""
    found = {
        name: next((group for part, group in wanted.items() if part in name), wanted.get("*", "")) for name in classes
    }
    return found if len(set(found.values())) > 1 else None
