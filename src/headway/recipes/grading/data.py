"""Grading data and batches: drawn cards, or prepared shards of front/back pairs or single pictures.

A batch is a dictionary: `row`; `back` (or the only picture) and `front` as uint8 (n, 3, height, width); `label` (the
grade itself); `targets` if the data has them (n, 2, 3: back and front; edge damage, off-centre across and down; NaN if
unknown); and in training `draws`, the random parameters of the augmentation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.core.errors import BadInput
from headway.data.dataset.manifest import Manifest, sources_of
from headway.data.dataset.open import open_sources
from headway.data.loading.loader import PictureFeed, WeightedSource
from headway.data.loading.sampler import PaddingBatch, SampleGroup, SampleOrder, balanced, share
from headway.data.loading.transforms import Augment
from headway.data.readers.csv import TARGETS
from headway.data.synthetic import cards
from headway.recipes.grading.config import Config
from headway.spec.model import Cache, Data, Source

CARDS: Final = "builtin:cards"
ROOT_OF_FREQUENCY: Final = 0.5  # exponent of the sampler's class balancing
_EVALUATED: Final = 64  # items per evaluation batch

Batch = dict[str, Any]


class Graded(Protocol):
    """A split of graded items."""

    name: str
    grades: tuple[int, ...]  # every possible grade, lowest to highest

    def __len__(self) -> int: ...

    def labels(self) -> NDArray[np.int64]:
        """Return the grade of each item, in order."""

    def feed(self, cfg: Config, *, training: bool, seed: int) -> Any:
        """Return batches: shuffled, augmented and balanced for training; otherwise each item once, in order."""

    def pictures(self, row: int) -> list[NDArray[np.uint8]]:
        """Return an item's pictures for display: back and front, or the only one."""


def load(cfg: Config, data: Data, split: str, *, cache: Cache | None = None) -> Graded:
    """Load one split from the job's sources for it, else from its training sources, else from drawn cards."""
    named = sources_of(data, split, CARDS)
    drawn = [source for source in named if source.source == CARDS]
    if not drawn:
        return Prepared(cfg, named, split, cache)
    if len(named) > 1:
        raise BadInput(f"data.{split} mixes {CARDS} with other sources", fix=f"name {CARDS} alone, or remove it")
    return Drawn(cfg, drawn[0], split)


def augmentation(cfg: Config) -> Augment:
    return Augment(
        scale=(cfg.zoom, 1.0),
        mirror=0.5 if cfg.mirror else 0.0,
        degrees=cfg.rotate,
        brightness=cfg.color_jitter,
        contrast=cfg.color_jitter,
    )


# Drawn cards


@dataclass(frozen=True)
class _Table:
    """All cards of a split as tensors in memory."""

    back: Tensor
    front: Tensor
    label: Tensor
    targets: Tensor


class Drawn:
    """Generated cards, about 4 ms each."""

    grades = cards.GRADES

    def __init__(self, cfg: Config, source: Source, split: str) -> None:
        drawn_as = source.split or split
        if drawn_as not in cards.SPLITS:
            known = ", ".join(cards.SPLITS)
            raise BadInput(f"{CARDS} has no split {drawn_as!r}", where=f"data.{split}", fix=f"choose one of {known}")
        if source.where:
            raise BadInput(f"{CARDS} cannot be filtered", where=f"data.{split}", fix="leave out `where`")
        count = int(getattr(cfg, f"{drawn_as}_samples"))
        shares = cards.SKEWED if cfg.skewed else cards.EVEN
        self.name = f"{CARDS} ({drawn_as})"
        self._made = [cards.compose(drawn_as, index, shares) for index in range(min(count, source.limit or count))]
        self._labels = np.array([cards.grade_of(card) for card in self._made], np.int64)
        words = (cards.GENERATION, drawn_as, len(self._made), cfg.skewed, cfg.side)
        self._words = repr(words)
        self._side = cfg.side
        self._table: _Table | None = None

    def __len__(self) -> int:
        return len(self._made)

    def labels(self) -> NDArray[np.int64]:
        return self._labels

    def feed(self, cfg: Config, *, training: bool, seed: int) -> CardFeed:
        return CardFeed(self._drawn(), cfg, training=training, seed=seed, words=self._words)

    def pictures(self, row: int) -> list[NDArray[np.uint8]]:
        front, back = cards.draw(self._made[row])
        return [back, front]

    def _drawn(self) -> _Table:
        if self._table is None:
            sides = [cards.draw(card) for card in self._made]
            self._table = _Table(
                back=self._fitted([back for _, back in sides]),
                front=self._fitted([front for front, _ in sides]),
                label=torch.from_numpy(self._labels),
                targets=torch.tensor([[_damage(card.back), _damage(card.front)] for card in self._made]),
            )
        return self._table

    def _fitted(self, pictures: list[NDArray[np.uint8]]) -> Tensor:
        if self._side != cards.SIDE:
            from PIL import Image

            size = (self._side, self._side)
            pictures = [np.asarray(Image.fromarray(p).resize(size, Image.Resampling.BICUBIC)) for p in pictures]
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)


def _damage(face: cards.CardSide) -> tuple[float, float, float]:
    return face.whitened, abs(face.across), abs(face.down)


class CardFeed:
    """Batches of drawn cards. Pure: a batch depends on (seed, epoch, step) alone."""

    workers = 0

    def __init__(self, table: _Table, cfg: Config, *, training: bool, seed: int, words: str) -> None:
        count = len(table.label)
        rows = np.arange(count)
        pools = [SampleGroup(range(count), 1.0)]
        if training and cfg.sampler == "balanced":
            pools = balanced(rows, table.label.numpy(), power=ROOT_OF_FREQUENCY)
        self._order = SampleOrder(pools, count, shuffle=training)
        self._table, self._single, self._training, self.seed = table, cfg.views == "single", training, seed
        self._batch = min(cfg.batch_size if training else _EVALUATED, count)
        self._augment = augmentation(cfg) if training else None
        settings = (words, self._batch, training, cfg.sampler == "balanced", repr(self._augment), seed)
        self.fingerprint = hashlib.sha256(repr(settings).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        """Number of batches: full ones only in training, otherwise all."""
        return len(self._order) // self._batch if self._training else -(-len(self._order) // self._batch)

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Batch | PaddingBatch:
        first = step * self._batch
        start, stop = share(min(self._batch, len(self._order) - first), part, parts)
        places = np.arange(first + start, max(first + stop, first + start + 1))
        rows = torch.from_numpy(self._order.rows_at(self.seed, epoch, places))
        made: Batch = {
            "row": rows,
            "back": self._table.back[rows],
            "label": self._table.label[rows],
            "targets": self._table.targets[rows],
        }
        if not self._single:
            made["front"] = self._table.front[rows]
        if self._augment is not None:
            made["draws"] = self._augment.draw(self.seed, epoch, places)
        return made if stop > start else PaddingBatch(made)


# Prepared shards


class Prepared:
    """Shards that `headway data prepare` made from graded pairs, or from a table of graded pictures."""

    def __init__(self, cfg: Config, sources: Sequence[Source], split: str, cache: Cache | None) -> None:
        self._sources: list[WeightedSource] = open_sources(sources, split, cache=cache)
        self.name = ", ".join(f"{source.source} ({source.split or split})" for source in sources)
        manifest = self._sources[0].rows.manifest
        if manifest.task != "grades":
            raise BadInput(f"{sources[0].source} holds {manifest.task}, not grades", where=f"data.{split}")
        self._names = np.array([int(name) for name in manifest.classes])
        self.grades = tuple(range(int(self._names.min()), int(self._names.max()) + 1))
        self._columns = {column.name: column for column in manifest.columns if column.kind == "picture"}
        self._knows_targets = all(_has(source.rows.manifest, TARGETS) for source in self._sources)
        self._check(cfg, sources[0].source)

    def _check(self, cfg: Config, where: str) -> None:
        for source in self._sources:
            fit, size = (source.rows.manifest.settings.get(key) for key in ("fit", "size"))
            if fit is not None and (fit != "squash" or size is None):
                raise BadInput(
                    f"{where} was prepared with --fit {fit}{'' if size else ' --size 0'}; a model that grades gets the "
                    "whole picture as a square, in training as in serving",
                    where="data",
                    fix=f"prepare it again: headway data prepare SOURCE --to DEST --size {max(256, cfg.side)}",
                )
        if cfg.views == "both" and not {"back", "front"} <= self._columns.keys():
            raise BadInput(f"{where} has one picture per item, not front and back", fix="config: {views: single}")

    def __len__(self) -> int:
        return sum(len(source.rows) for source in self._sources)

    def labels(self) -> NDArray[np.int64]:
        return np.concatenate([self._names[source.rows.integers("label")] for source in self._sources])

    def feed(self, cfg: Config, *, training: bool, seed: int) -> ShardFeed:
        raw = all(column.encoding == "raw" for column in self._columns.values())
        one = "picture" if "picture" in self._columns else "back"
        wanted = [one] if cfg.views == "single" else ["back", "front"]
        inner = PictureFeed(
            self._sources,
            cfg.batch_size if training else _EVALUATED,
            training=training,
            crop=None if raw else self._stored_side(cfg),  # all of it: it is resized on the device
            columns=[*wanted, "label", *([TARGETS] if self._knows_targets else [])],
            balance=ROOT_OF_FREQUENCY if training and cfg.sampler == "balanced" else None,
            augment=augmentation(cfg) if training else None,
            seed=seed,
            drop_last=training,
        )
        return ShardFeed(inner, torch.from_numpy(self._names), one)

    def _stored_side(self, cfg: Config) -> int:
        sizes = [source.rows.manifest.settings.get("size") for source in self._sources]
        return max(int(size) if size else cfg.side for size in sizes)

    def pictures(self, row: int) -> list[NDArray[np.uint8]]:
        for source in self._sources:
            if row < len(source.rows):
                names = [name for name in ("picture", "back", "front") if name in self._columns]
                return [_pixels(source.rows.cell(name, row), self._columns[name].encoding) for name in names]
            row -= len(source.rows)
        raise IndexError(row)


def _has(manifest: Manifest, name: str) -> bool:
    return any(column.name == name for column in manifest.columns)


def _pixels(cell: Any, encoding: str) -> NDArray[np.uint8]:
    from headway.data.loading.transforms import decode_jpeg

    return np.array(cell if encoding == "raw" else decode_jpeg(cell))


class ShardFeed:
    """Batches from shards, with columns renamed and class indices mapped to grades."""

    workers = 0

    def __init__(self, inner: PictureFeed, names: Tensor, one: str) -> None:
        self._inner, self._names, self._one = inner, names, one
        self.fingerprint = inner.fingerprint

    def __len__(self) -> int:
        return len(self._inner)

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Batch | PaddingBatch:
        found = self._inner.batch(epoch, step, part, parts)
        return PaddingBatch(self._renamed(found.batch)) if isinstance(found, PaddingBatch) else self._renamed(found)

    def indices(self, epoch: int, step: int, part: int = 0, parts: int = 1) -> list[int]:
        return self._inner.indices(epoch, step, part, parts)

    def _renamed(self, batch: Batch) -> Batch:
        renamed = {**batch, "label": self._names[batch["label"]]}
        renamed["back"] = renamed.pop(self._one)
        if TARGETS in renamed:
            renamed[TARGETS] = renamed[TARGETS].reshape(-1, 2, 3)
        return renamed


# On the device


def prepared(batch: Batch, cfg: Config, augment: Augment | None) -> tuple[Tensor, Tensor | None]:
    """Return back and front as model input: identically augmented, and resized."""
    views = [batch["back"], *([batch["front"]] if "front" in batch else [])]
    if augment is not None and "draws" in batch:
        views = [augment.apply(view, batch["draws"]) for view in views]
    views = [_sized(view, cfg.side) for view in views]
    return views[0], views[1] if len(views) > 1 else None


def _sized(pictures: Tensor, side: int) -> Tensor:
    if pictures.shape[2:] == (side, side):
        return pictures
    whole = torch.nn.functional.interpolate(
        pictures.float(), (side, side), mode="bilinear", antialias=True, align_corners=False
    )
    return whole.round().clamp(0, 255).to(torch.uint8)
