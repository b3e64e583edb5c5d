"""Pictures with captions, and the batches made of them. Drawn scenes are made in memory, 0.4 ms each."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data import scenes
from headway.data.permutation import permute, uniforms
from headway.errors import BadInput
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.words import Vocabulary
from headway.runtime.feed import Filler, share
from headway.spec.model import Data, Source

SCENES: Final = "builtin:scenes"
_WHICH_CAPTIONS: Final = 1  # the random stream that chooses them


@dataclass(frozen=True)
class Pictures:
    """A split: pictures, what people said of them, and, where a grammar can tell, all that may be said."""

    name: str
    pixels: NDArray[np.uint8]  # pictures, side, side, RGB
    references: Sequence[tuple[str, ...]]
    valid: Sequence[frozenset[str]] | None = None
    held_out: NDArray[np.bool_] | None = None  # of a kind that training never showed

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.pixels.tobytes())
        digest.update("\n".join(text for said in self.references for text in said).encode())
        return digest.hexdigest()[:16]


class Batch(NamedTuple):
    """Some pictures of a split, as the model takes them."""

    rows: Tensor  # which of the split's pictures
    pictures: Tensor  # uint8 (n, 3, side, side)
    captions: Tensor | None = None  # int64 (n, captions each, length), PAD at the end


def load(cfg: Config, data: Data, split: str) -> Pictures:
    """One split, from the sources that the job names for it, or the drawn scenes where it names none."""
    sources: tuple[Source, ...] = getattr(data, split) or (Source(source=SCENES),)
    for source in sources:
        if source.source != SCENES:
            raise BadInput(f"captioning cannot read {source.source} yet", where=f"data.{split}", fix=f"use {SCENES}")
    if len(sources) > 1:
        raise BadInput(f"data.{split} names {SCENES} {len(sources)} times", fix="name it once, with a limit if need be")
    return _scenes(cfg, sources[0], split)


def _scenes(cfg: Config, source: Source, split: str) -> Pictures:
    drawn_as = source.split or split
    if drawn_as not in scenes.SPLITS:
        known = ", ".join(scenes.SPLITS)
        raise BadInput(f"{SCENES} has no split {drawn_as!r}", where=f"data.{split}", fix=f"choose one of {known}")
    count = int(getattr(cfg, f"{drawn_as}_pictures"))
    wanted = _kinds(source, split)
    found = (scenes.compose(drawn_as, index) for index in itertools.count())
    made = list(itertools.islice((scene for scene in found if scene.kind in wanted), min(count, source.limit or count)))
    return Pictures(
        name=f"{SCENES} ({drawn_as})",
        pixels=np.stack([_fitted(scenes.draw(scene), cfg.picture) for scene in made]),
        references=[scenes.references(scene) for scene in made],
        valid=[frozenset(scenes.captions(scene)) for scene in made],
        held_out=np.array([bool(scene.held_out) for scene in made]),
    )


def _kinds(source: Source, split: str) -> tuple[str, ...]:
    """Which kinds of scenes `where: {kind: …}` asks for."""
    kind = source.where.get("kind")
    if set(source.where) - {"kind"} or (kind is not None and kind not in scenes.KINDS):
        known = ", ".join(scenes.KINDS)
        raise BadInput(f"{SCENES} can be chosen from by kind alone", where=f"data.{split}", fix=f"kind: one of {known}")
    return scenes.KINDS if kind is None else (str(kind),)


def _fitted(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    if pixels.shape[0] == side:
        return pixels
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BILINEAR))


def vocabulary(cfg: Config, train: Pictures) -> Vocabulary:
    """From the training captions alone: what only val and test say is unknown, as it will be in use."""
    said = (text for references in train.references for text in references)
    return Vocabulary.of(said, min_count=cfg.min_count, max_words=cfg.max_words)


class TrainingFeed:
    """Batches of pictures, each with some of its captions, shuffled anew in every epoch. Nothing is remembered."""

    def __init__(self, cfg: Config, pictures: Pictures, words: Vocabulary, *, seed: int) -> None:
        self.workers, self.seed = cfg.workers, seed
        self._batch, self._each = min(cfg.batch, len(pictures)), cfg.captions
        self._pixels = torch.from_numpy(pictures.pixels).permute(0, 3, 1, 2).contiguous()
        self._said = _numbered(pictures, words, cfg.max_length)
        words_too = (pictures.fingerprint, words.words, seed, self._batch, cfg.captions, cfg.max_length)
        self._fingerprint = hashlib.sha256(repr(words_too).encode()).hexdigest()[:16]

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def __len__(self) -> int:
        """Whole batches: another order in every epoch leaves out others."""
        return len(self._pixels) // self._batch

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Batch | Filler:
        start, stop = share(self._batch, part, parts)
        positions = step * self._batch + np.arange(start, max(stop, start + 1))
        rows = permute(len(self._pixels), self.seed, epoch, positions)
        made = self._made(epoch, rows)
        return made if stop > start else Filler(made)

    def _made(self, epoch: int, rows: NDArray[np.int64]) -> Batch:
        """Each picture with `captions` of its references, chosen without repeating one before all had their turn."""
        chance = uniforms(self.seed, epoch, rows, self._said.shape[1], stream=_WHICH_CAPTIONS)
        order = torch.from_numpy(np.argsort(chance, axis=1, kind="stable"))
        which = order[:, torch.arange(self._each) % order.shape[1]]
        index = torch.from_numpy(rows)
        captions = self._said[index[:, None], which]
        longest = int((captions != 0).sum(dim=2).max())
        return Batch(index, self._pixels[index], captions[:, :, :longest])


def _numbered(pictures: Pictures, words: Vocabulary, max_length: int) -> Tensor:
    """All references as numbers (pictures, references, length). A picture with fewer repeats its own."""
    most = max(len(said) for said in pictures.references)
    rows = torch.zeros(len(pictures), most, max_length + 2, dtype=torch.int64)
    for row, said in zip(rows, pictures.references, strict=True):
        for n in range(most):
            numbers = words.encode(said[n % len(said)], max_length=max_length)
            row[n, : len(numbers)] = torch.tensor(numbers)
    return rows


class PictureFeed:
    """The pictures of a split in order, for an evaluation."""

    workers = 0

    def __init__(self, pictures: Pictures, batch: int = 128) -> None:
        self._pixels = torch.from_numpy(pictures.pixels).permute(0, 3, 1, 2)
        self._batch = batch

    @property
    def fingerprint(self) -> str:
        return f"{len(self._pixels)} in order"

    def __len__(self) -> int:
        return -(-len(self._pixels) // self._batch)

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Batch:
        first = step * self._batch
        start, stop = share(min(self._batch, len(self._pixels) - first), part, parts)
        rows = torch.arange(first + start, first + stop)
        return Batch(rows, self._pixels[first + start : first + stop].contiguous())
