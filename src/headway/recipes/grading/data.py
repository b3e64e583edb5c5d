"""Graded things and the batches made of them: drawn cards, or prepared shards of pairs or of single pictures.

A batch is a dictionary: `row`, `back` (or the only picture) and `front` as uint8 (n, 3, height, width), `label` (the
grade itself), where the data knows them `targets` (n, 2, 3: back and front; edge damage, off-centre across and down;
NaN for a thing of which one is not known), and while training `draws`, the numbers of the augmentation.
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
from torch.nn import functional

from headway.core.errors import BadInput
from headway.data.dataset.manifest import Manifest
from headway.data.dataset.open import open_sources
from headway.data.loading.loader import PictureFeed, WeightedSource
from headway.data.loading.sampler import PaddingBatch, SampleGroup, SampleOrder, balanced, share
from headway.data.loading.transforms import Augment
from headway.data.readers.graded_pairs import TARGETS
from headway.data.synthetic import cards
from headway.recipes.grading.config import Config
from headway.spec.model import Cache, Data, Source

# Six channels of a picture: contrast-equalised lightness, two of colour, and how steeply lightness changes.
#
# CLAHE-L, a, b, |Sobel x|, |Sobel y|, |Laplacian|, each brought to about -1 … 1. On whole batches, on their own
# device, in operations that ONNX has. CLAHE and slopes are OpenCV's to the last level, Lab is within two levels of
# 255 of it.


COUNT: Final = 6
_TILES: Final = 8  # a picture is equalised in 8 × 8 tiles, and between their middles by interpolation
_LEVELS: Final = 256
_LIMIT: Final = 2.0  # a level counts at most so many times the mean level
_TO_XYZ: Final = (
    (0.412453 / 0.950456, 0.357580 / 0.950456, 0.180423 / 0.950456),  # divided by the white of D65
    (0.212671, 0.715160, 0.072169),
    (0.019334 / 1.088754, 0.119193 / 1.088754, 0.950227 / 1.088754),
)


def six_channels(pictures: Tensor) -> Tensor:
    """uint8 (n, 3, height, width) to float (n, 6, height, width). Sides must be multiples of 8."""
    lab = to_lab(pictures)
    light = clahe(lab[:, :1].round())
    slopes = _slopes(light)
    return torch.cat([light / 127.5 - 1, (lab[:, 1:] - 128) / 64, slopes], dim=1)


def to_lab(pictures: Tensor) -> Tensor:
    """L, a and b as OpenCV has them in 8 bits: 0 … 255, with a and b around 128. Not rounded."""
    rgb = pictures.float() / 255
    linear = torch.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    red, green, blue = linear[:, :1], linear[:, 1:2], linear[:, 2:]
    # Sums of planes, not a convolution: with so few channels that takes five times as long.
    xyz = torch.cat([r * red + g * green + b * blue for r, g, b in _TO_XYZ], dim=1)
    root = torch.where(xyz > 0.008856, xyz.clamp_min(1e-6) ** (1 / 3), 7.787 * xyz + 16 / 116)
    x, y, z = root[:, :1], root[:, 1:2], root[:, 2:]
    return torch.cat([(116 * y - 16) * 2.55, 500 * (x - y) + 128, 200 * (y - z) + 128], dim=1)


def clahe(light: Tensor) -> Tensor:
    """Contrast-limited adaptive histogram equalisation of levels 0 … 255, shaped (n, 1, height, width)."""
    count, _, height, width = light.shape
    assert height % _TILES == 0 == width % _TILES, "the config's check of the picture's side"
    level = light.clamp(0, _LEVELS - 1).long().view(count, height, width)
    rows, columns = (_tile(size, light.device) for size in (height, width))
    tile = rows[:, None] * _TILES + columns[None, :]
    table = _tables(level, tile, height * width // _TILES**2)
    return _between(level, table, height, width).view(count, 1, height, width)


def _tile(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device) * _TILES // size


def _tables(level: Tensor, tile: Tensor, area: int) -> Tensor:
    """For each tile the new level of every old one: (n, tiles × levels)."""
    count, tiles = level.shape[0], _TILES**2
    place = (tile[None] * _LEVELS + level).view(count, -1)
    seen = torch.zeros(count, tiles * _LEVELS, device=level.device)
    seen = seen.scatter_add(1, place, torch.ones_like(place, dtype=seen.dtype)).view(count, tiles, _LEVELS)
    most = float(max(1, int(_LIMIT * area / _LEVELS)))
    excess = (seen - most).clamp_min(0).sum(dim=2, keepdim=True)
    even = torch.floor(excess / _LEVELS)
    seen = seen.clamp_max(most) + even + _leftovers(excess - even * _LEVELS)
    table = (seen.cumsum(dim=2) * ((_LEVELS - 1) / area)).round().clamp(0, _LEVELS - 1)
    return table.view(count, -1)


def _leftovers(rest: Tensor) -> Tensor:
    """What cannot be dealt out evenly goes to every n-th level, one each, as OpenCV does it."""
    step = torch.floor(_LEVELS / rest.clamp_min(1)).clamp_min(1)
    number = torch.arange(_LEVELS, device=rest.device, dtype=rest.dtype)
    turn = torch.floor(number / step)
    return ((number - turn * step == 0) & (turn < rest)).to(rest.dtype)


def _between(level: Tensor, table: Tensor, height: int, width: int) -> Tensor:
    """Each pixel's new level: that of the four nearest tiles, by how near they are."""
    (top, bottom, down), (left, right, along) = (_neighbours(size, level.device) for size in (height, width))
    down, along = down[:, None], along[None, :]
    flat = level.view(level.shape[0], -1)

    def at(row: Tensor, column: Tensor) -> Tensor:
        place = ((row[:, None] * _TILES + column[None, :]) * _LEVELS).view(1, -1) + flat
        return table.gather(1, place).view(level.shape[0], height, width)

    upper = at(top, left) * (1 - along) + at(top, right) * along
    lower = at(bottom, left) * (1 - along) + at(bottom, right) * along
    return (upper * (1 - down) + lower * down).round()


def _neighbours(size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row or column, the tiles whose middles lie before and behind it, and how far it is to the second."""
    place = torch.arange(size, device=device) * (_TILES / size) - 0.5
    before = torch.floor(place)
    share = place - before
    return before.clamp(0, _TILES - 1).long(), (before + 1).clamp(0, _TILES - 1).long(), share


def _slopes(light: Tensor) -> Tensor:
    """|Sobel x|, |Sobel y| and |Laplacian|, with the picture's edge mirrored."""
    padded = functional.pad(light / 255, (1, 1, 1, 1), mode="reflect")
    up, middle, down = padded[:, :, :-2], padded[:, :, 1:-1], padded[:, :, 2:]
    columns, rows = up + 2 * middle + down, down - up
    across = columns[..., 2:] - columns[..., :-2]
    along = rows[..., :-2] + 2 * rows[..., 1:-1] + rows[..., 2:]
    curved = (up + down)[..., 1:-1] + middle[..., :-2] + middle[..., 2:] - 4 * middle[..., 1:-1]
    return torch.cat([across, along, curved], dim=1).abs()


CARDS: Final = "builtin:cards"
ROOT_OF_FREQUENCY: Final = 0.5  # the sampler's power
_EVALUATED: Final = 64  # things at a time

Batch = dict[str, Any]


class Graded(Protocol):
    """A split."""

    name: str
    grades: tuple[int, ...]  # every one that may occur, from the lowest to the highest

    def __len__(self) -> int: ...

    def labels(self) -> NDArray[np.int64]:
        """The grade of each thing, in order."""

    def feed(self, cfg: Config, *, training: bool, seed: int) -> Any:
        """Its batches: shuffled, augmented and balanced for training; otherwise each once, in order."""

    def pictures(self, row: int) -> list[NDArray[np.uint8]]:
        """What a person would look at: back and front, or the only one."""


def load(cfg: Config, data: Data, split: str, *, cache: Cache | None = None) -> Graded:
    """One split: from the sources named for it, or those named for training, or the drawn cards where none is named."""
    named: tuple[Source, ...] = getattr(data, split) or data.train or (Source(source=CARDS),)
    drawn = [source for source in named if source.source == CARDS]
    if not drawn:
        return Prepared(cfg, named, split, cache)
    if len(named) > 1:
        raise BadInput(f"data.{split} mixes {CARDS} with other sources", fix=f"name {CARDS} alone, or not at all")
    return Drawn(cfg, drawn[0], split)


def augmentation(cfg: Config) -> Augment:
    return Augment(
        scale=(cfg.zoom, 1.0),
        mirror=0.5 if cfg.mirror else 0.0,
        degrees=cfg.rotate,
        brightness=cfg.colour,
        contrast=cfg.colour,
    )


# Drawn cards


@dataclass(frozen=True)
class _Table:
    """All cards of a split, in memory."""

    back: Tensor
    front: Tensor
    label: Tensor
    targets: Tensor


class Drawn:
    """Cards made here, about 4 ms each."""

    grades = cards.GRADES

    def __init__(self, cfg: Config, source: Source, split: str) -> None:
        drawn_as = source.split or split
        if drawn_as not in cards.SPLITS:
            known = ", ".join(cards.SPLITS)
            raise BadInput(f"{CARDS} has no split {drawn_as!r}", where=f"data.{split}", fix=f"choose one of {known}")
        if source.where:
            raise BadInput(f"{CARDS} cannot be chosen from", where=f"data.{split}", fix="leave out `where`")
        count = int(getattr(cfg, f"{drawn_as}_cards"))
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
        if training and cfg.use_sampler:
            pools = balanced(rows, table.label.numpy(), power=ROOT_OF_FREQUENCY)
        self._order = SampleOrder(pools, count, shuffle=training)
        self._table, self._single, self._training, self.seed = table, cfg.views == "single", training, seed
        self._batch = min(cfg.batch_size if training else _EVALUATED, count)
        self._augment = augmentation(cfg) if training else None
        settings = (words, self._batch, training, cfg.use_sampler, repr(self._augment), seed)
        self.fingerprint = hashlib.sha256(repr(settings).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        """Whole batches while training; all things otherwise."""
        return len(self._order) // self._batch if self._training else -(-len(self._order) // self._batch)

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Batch | PaddingBatch:
        first = step * self._batch
        start, stop = share(min(self._batch, len(self._order) - first), part, parts)
        places = np.arange(first + start, max(first + stop, first + start + 1))
        rows = torch.from_numpy(self._order.at(self.seed, epoch, places))
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
    """What `headway data prepare` made of graded pairs, or of a table of graded pictures."""

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
        if cfg.views == "both" and not {"back", "front"} <= self._columns.keys():
            raise BadInput(f"{where} has one picture of each thing, not front and back", fix="config: {views: single}")

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
            crop=None if raw else cfg.side,
            columns=[*wanted, "label", *([TARGETS] if self._knows_targets else [])],
            balance=ROOT_OF_FREQUENCY if training and cfg.use_sampler else None,
            augment=augmentation(cfg) if training else None,
            seed=seed,
            drop_last=training,
        )
        return ShardFeed(inner, torch.from_numpy(self._names), one)

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
    """A feed of prepared pictures, under the names that graders know."""

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
    """Back and front as the model takes them: augmented alike, and brought to its size."""
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
