"""Captioning data: sources (drawn scenes or prepared shards), batches, and a disk cache of encoder features.

Scenes are drawn in memory at 0.4 ms each; shards are read in place.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.backbones.weights import fingerprint
from headway.core.errors import BadInput, DiskFull
from headway.data.dataset.manifest import sources_of
from headway.data.loading.sampler import PaddingBatch, SampleGroup, SampleOrder, share, uniforms
from headway.data.synthetic import scenes
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.model import PretrainedEncoder
from headway.recipes.captioning.vocabulary import Vocabulary
from headway.spec.model import Cache, Data, Source

SCENES: Final = "builtin:scenes"
Numbers = NDArray[np.int64]


class Pixels(Protocol):
    """The pictures of a source, by row number."""

    @property
    def fingerprint(self) -> str:
        """Hash that changes if any pixel changes."""

    def __len__(self) -> int: ...

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor:
        """Return uint8 pixels (rows, 3, side, side)."""


@dataclass(frozen=True)
class Pictures:
    """One split of a source: pictures, reference captions and, for generated scenes, all captions that are valid."""

    name: str
    pixels: Pixels
    references: Sequence[tuple[str, ...]]
    ids: Sequence[str] = ()
    weight: float = 1.0
    valid: Sequence[frozenset[str]] | None = None
    held_out: NDArray[np.bool_] | None = None  # combinations of attributes that are absent from training

    def __len__(self) -> int:
        return len(self.references)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.pixels.fingerprint.encode())
        digest.update("\n".join(text for said in self.references for text in said).encode())
        return digest.hexdigest()[:16]


def load(cfg: Config, data: Data, split: str, *, cache: Cache | None = None) -> list[Pictures]:
    """Load one split from the job's sources for it, else from its training sources, else from drawn scenes."""
    sources = sources_of(data, split, SCENES)
    if sum(source.source == SCENES for source in sources) > 1:
        raise BadInput(f"data.{split} names {SCENES} twice", fix="name it once, with a limit if needed")
    found = [
        _load_scenes(cfg, s, split) if s.source == SCENES else _load_prepared(cfg, s, split, cache) for s in sources
    ]
    names = [pictures.name for pictures in found]
    for number, pictures in enumerate(found):
        if names.count(pictures.name) > 1:  # two folders with the same name, or two splits of one folder
            object.__setattr__(pictures, "name", f"{pictures.name}_{number + 1}")
    return found


def vocabulary(cfg: Config, train: Sequence[Pictures]) -> Vocabulary:
    """Build the vocabulary from the training captions alone.

    Words that only val and test contain are unknown, as they would be in production.
    """
    said = (text for pictures in train for references in pictures.references for text in references)
    return Vocabulary.of(said, min_count=cfg.min_count, max_words=cfg.max_words)


# Drawn scenes


class Drawn:
    """Pictures in memory: (n, side, side, RGB)."""

    def __init__(self, array: NDArray[np.uint8]) -> None:
        self.array = array

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.array.tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.array)

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor:
        pixels = self.array[rows]
        if mirrored is not None and mirrored.any():
            pixels[mirrored] = pixels[mirrored, :, ::-1]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def _load_scenes(cfg: Config, source: Source, split: str) -> Pictures:
    drawn_as = source.split or split
    if drawn_as not in scenes.SPLITS:
        known = ", ".join(scenes.SPLITS)
        raise BadInput(f"{SCENES} has no split {drawn_as!r}", where=f"data.{split}", fix=f"choose one of {known}")
    count = int(getattr(cfg, f"{drawn_as}_samples"))
    wanted = _kinds(source, split)
    found = (scenes.compose(drawn_as, index) for index in itertools.count())
    made = list(itertools.islice((scene for scene in found if scene.kind in wanted), min(count, source.limit or count)))
    return Pictures(
        name="scenes",
        pixels=Drawn(np.stack([_fitted(scenes.draw(scene), cfg.side) for scene in made])),
        references=[scenes.references(scene) for scene in made],
        ids=[f"{drawn_as}-{number}" for number in range(len(made))],
        weight=source.weight,
        valid=[frozenset(scenes.captions(scene)) for scene in made],
        held_out=np.array([bool(scene.held_out) for scene in made]),
    )


def _kinds(source: Source, split: str) -> tuple[str, ...]:
    """Return the scene kinds selected by `where: {kind: …}`."""
    kind = source.where.get("kind")
    if set(source.where) - {"kind"} or (kind is not None and kind not in scenes.KINDS):
        known = ", ".join(scenes.KINDS)
        raise BadInput(f"{SCENES} can be filtered by kind only", where=f"data.{split}", fix=f"kind: one of {known}")
    return scenes.KINDS if kind is None else (str(kind),)


def _fitted(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    if pixels.shape[0] == side:
        return pixels
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BILINEAR))


# Prepared shards


class Stored:
    """Pictures from prepared shards: a centre crop of `side` pixels, read in place."""

    def __init__(self, rows: object, side: int) -> None:
        from headway.data.dataset.rows import Rows

        assert isinstance(rows, Rows)
        self._rows, self._side = rows, side
        column = rows.manifest.column("picture")
        self._raw = column.encoding == "raw"
        if self._raw:
            from headway.data.loading.transforms import check_crop

            check_crop((column.height, column.width), (side, side))

    @property
    def fingerprint(self) -> str:
        return f"{self._rows.fingerprint} {self._side}"

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor:
        from headway.data.loading.transforms import copy_jpeg, copy_raw

        put = copy_raw if self._raw else copy_jpeg
        made = np.empty((len(rows), self._side, self._side, 3), np.uint8)
        for place, (shard, inside) in enumerate(self._rows.locate(rows)):
            flip = mirrored is not None and bool(mirrored[place])
            put(shard.cells("picture")[inside], made[place], 0.5, 0.5, flip)
        return torch.from_numpy(made).permute(0, 3, 1, 2)


def _load_prepared(cfg: Config, source: Source, split: str, cache: Cache | None) -> Pictures:
    from headway.core.errors import BadJob
    from headway.data.dataset.manifest import check_data
    from headway.data.dataset.open import open_sources

    problems = check_data(Data(**{split: (source,)}), task="captions")
    if problems:
        raise BadJob(problems)
    rows = open_sources([source], split, cache=cache)[0].rows
    every = np.arange(len(rows))
    located = rows.locate(every)
    references = [tuple(shard.cells("captions")[inside]) for shard, inside in located]
    silent = sum(not said for said in references)
    if silent:
        what = f"{silent:,} pictures of {source.source} have no captions, so they cannot be used to train or score"
        raise BadInput(what, where=f"data.{split}", fix="choose a split that has captions")
    return Pictures(
        name=source.source.rstrip("/").rpartition("/")[2],
        pixels=Stored(rows, cfg.side),
        references=references,
        ids=[str(shard.cells("id")[inside]) for shard, inside in located],
        weight=source.weight,
    )


# Batches for training and evaluation: pure functions of their step number, for any number of ranks.


_CAPTION_STREAM, _MIRROR_STREAM = 1, 2  # random streams
EVAL_BATCH: Final = 32  # larger batches with a wide beam no longer fit the CPU cache


class Batch(NamedTuple):
    """Pictures, optionally with captions, as model input."""

    rows: Tensor  # global row numbers over all sources
    pictures: Tensor  # uint8 (n, 3, side, side), or grids (n, cells, channels) of a frozen encoder
    captions: Tensor | None = None  # int64 (n, captions each, length), PAD at the end


class Views(Protocol):
    """Model inputs of a source by row: pixels or cached features."""

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor: ...


class Sources:
    """Several sources concatenated, with global row numbers."""

    def __init__(self, pictures: Sequence[Pictures], views: Sequence[Views] | None = None) -> None:
        self.pictures = list(pictures)
        self.starts = np.cumsum([0, *(len(source) for source in pictures)])
        self._views: list[Views] = list(views or (source.pixels for source in pictures))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def pools(self) -> list[SampleGroup]:
        bounds = zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), self.pictures, strict=True)
        return [SampleGroup(range(start, stop), source.weight) for start, stop, source in bounds]

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor:
        if len(self._views) == 1:
            return self._views[0].read(rows, mirrored)
        which = np.searchsorted(self.starts, rows, side="right") - 1
        made: Tensor | None = None
        for number in np.unique(which).tolist():
            mine = np.flatnonzero(which == number)
            part = self._views[number].read(
                rows[mine] - self.starts[number], None if mirrored is None else mirrored[mine]
            )
            made = part.new_empty(len(rows), *part.shape[1:]) if made is None else made
            made[torch.from_numpy(mine)] = part
        assert made is not None
        return made


class TrainingFeed:
    """Training batches of pictures, each with some of its captions, reshuffled every epoch. Stateless.

    Sources are sampled by weight; an epoch has as many pictures as all sources together.
    """

    def __init__(self, cfg: Config, sources: Sources, words: Vocabulary, *, seed: int) -> None:
        self.workers, self.seed, self.sources = cfg.workers, seed, sources
        self._mirror, self._each = cfg.mirror, cfg.captions
        self._batch = min(cfg.batch_size, len(sources))
        self._order = SampleOrder(sources.pools(), len(sources))
        self._said, self._counts = _encode_captions(sources.pictures, words, cfg.max_length)
        seen = [(pictures.fingerprint, pictures.weight) for pictures in sources.pictures]
        asked = (seen, words.words, seed, self._batch, cfg.captions, cfg.max_length, cfg.mirror, cfg.side)
        self._fingerprint = hashlib.sha256(repr(asked).encode()).hexdigest()[:16]

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def __len__(self) -> int:
        """Number of full batches. Each epoch's order leaves out a different remainder."""
        return len(self._order) // self._batch

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Batch | PaddingBatch:
        start, stop = share(self._batch, part, parts)
        positions = step * self._batch + np.arange(start, max(stop, start + 1))
        made = self._made(epoch, positions)
        return made if stop > start else PaddingBatch(made)

    def _made(self, epoch: int, positions: Numbers) -> Batch:
        """Make a batch. Each picture gets `captions` of its references, none repeated before all were used."""
        rows = self._order.rows_at(self.seed, epoch, positions)
        chance = uniforms(self.seed, epoch, positions, self._said.shape[1], stream=_CAPTION_STREAM)
        index = torch.from_numpy(rows)
        has = self._counts[index]
        beyond = np.arange(self._said.shape[1])[None] >= has.numpy()[:, None]
        order = torch.from_numpy(np.argsort(chance + beyond, axis=1, kind="stable"))
        which = order.gather(1, torch.arange(self._each)[None] % has[:, None])
        captions = self._said[index[:, None], which].long()
        longest = int((captions != 0).sum(dim=2).max())
        mirrored = uniforms(self.seed, epoch, positions, 1, stream=_MIRROR_STREAM)[:, 0] < 0.5 if self._mirror else None
        return Batch(index, self.sources.read(rows, mirrored), captions[:, :, :longest])


def _encode_captions(sources: Sequence[Pictures], words: Vocabulary, max_length: int) -> tuple[Tensor, Tensor]:
    """Encode all references as token ids (pictures, most references, length), and count the references per picture."""
    every = [said for pictures in sources for said in pictures.references]
    counts = torch.tensor([len(said) for said in every])
    rows = np.zeros((len(every), int(counts.max()), max_length + 2), np.int32)
    for row, said in zip(rows, every, strict=True):
        for n, text in enumerate(said):
            numbers = words.encode(text, max_length=max_length)
            row[n, : len(numbers)] = numbers
    return torch.from_numpy(rows), counts


class EvaluationFeed:
    """All pictures once, in order; with `both_sides` as two views each (n, 2, …), the second mirrored."""

    workers = 0

    def __init__(self, sources: Sources, batch: int = EVAL_BATCH, *, both_sides: bool = False) -> None:
        self._sources, self._batch, self._both = sources, batch, both_sides

    @property
    def fingerprint(self) -> str:
        return f"{len(self._sources)} in order"

    def __len__(self) -> int:
        return -(-len(self._sources) // self._batch)

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Batch:
        first = step * self._batch
        start, stop = share(min(self._batch, len(self._sources) - first), part, parts)
        rows = np.arange(first + start, first + stop)
        seen = self._sources.read(rows)
        if self._both:
            seen = torch.stack([seen, self._sources.read(rows, np.ones(len(rows), np.bool_))], dim=1)
        return Batch(torch.from_numpy(rows), seen)


# Cache of a frozen encoder's features on disk


_PIECE: Final = 256  # pictures per fsync: the most work that a kill can lose
_ENCODE_BATCH: Final = 8  # small batches stay in the CPU cache
_KIND: Final = np.float16


class Features:
    """Encoder features by row number, from a memory map."""

    def __init__(self, path: Path, pictures: int, cells: int, channels: int, *, mirrored: bool) -> None:
        shape = (2 if mirrored else 1, pictures, cells, channels)
        self._grids: NDArray[np.float16] = np.memmap(path, _KIND, "r", shape=shape)

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor:
        """Return float16 grids (rows, cells, channels)."""
        sides = np.zeros(len(rows), np.int64) if mirrored is None else mirrored.astype(np.int64)
        return torch.from_numpy(self._grids[sides, rows])


def encoded_views(
    encoder: nn.Module,
    pictures: list[Pictures],
    cache: Cache | None,
    *,
    learns: bool = False,
    mirrored: bool = False,
    device: torch.device | None = None,
) -> Sources:
    """Return the model inputs: pictures, or cached encoder features if the encoder is pretrained and stays frozen.

    Without a cache, pictures.
    """
    if cache is None or learns or not isinstance(encoder, PretrainedEncoder):
        return Sources(pictures)
    at = device or torch.device("cpu")
    return Sources(pictures, [features(encoder, part, cache, mirrored=mirrored, device=at) for part in pictures])


def features(
    encoder: PretrainedEncoder, pictures: Pictures, cache: Cache, *, mirrored: bool, device: torch.device
) -> Features:
    """Return the features of all pictures, from the cache or computed now.

    A file's name hashes everything its contents depend on: the encoder's weights and preprocessing, the pictures, and
    whether mirrored views are included. One process writes it, in pieces that survive a kill; other processes on the
    machine wait for it, then map it. Cost: 125 KB per picture for a 7 × 7 grid.
    """
    count, cells, channels = len(pictures), encoder.cells, encoder.channels
    key = (fingerprint(encoder.net), pictures.pixels.fingerprint, count, cells, channels, mirrored)
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:24]
    folder = _folder(cache)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.f16"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released if the holder dies
        if not path.exists():
            _write(path, encoder, pictures, mirrored=mirrored, device=device)
    return Features(path, count, cells, channels, mirrored=mirrored)


def _folder(cache: Cache) -> Path:
    if cache.dir is not None:
        return Path(cache.dir).expanduser() / "features"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headway" / "features"


def _write(path: Path, encoder: PretrainedEncoder, pictures: Pictures, *, mirrored: bool, device: torch.device) -> None:
    """Append features piece by piece to a temporary file, and rename it. Keeps pieces of an earlier, killed process."""
    count = len(pictures)
    size = encoder.cells * encoder.channels * np.dtype(_KIND).itemsize
    total = count * (2 if mirrored else 1)
    part = path.with_suffix(".part")
    done = (part.stat().st_size // size if part.exists() else 0) // _PIECE * _PIECE
    begun, first = time.monotonic(), done
    try:
        with part.open("r+b" if part.exists() else "wb") as file:
            file.truncate(done * size)
            file.seek(done * size)
            while done < total:
                places = np.arange(done, min(done + _PIECE, total))
                file.write(_encode_rows(encoder, pictures, places % count, places >= count, device).tobytes())
                file.flush()
                os.fsync(file.fileno())
                done += len(places)
                rate = (done - first) / max(1e-9, time.monotonic() - begun)
                sys.stderr.write(
                    f"features of {pictures.name}: {done:,} of {total:,} pictures, {rate:.0f} per second\n"
                )
    except OSError as error:
        raise DiskFull(
            f"cannot write the encoder's features: {error.strerror}",
            where=str(part),
            fix=f"free disk space ({total * size / 1e9:.1f} GB in total), or set another cache.dir",
        ) from None
    os.rename(part, path)


def _encode_rows(
    encoder: PretrainedEncoder, pictures: Pictures, rows: Numbers, flip: NDArray[np.bool_], device: torch.device
) -> NDArray[np.float16]:
    """Compute features of small batches in parallel, one thread each: the layers are too small to parallelize inside.

    So the features do not depend on the number of threads either.
    """

    def encode(first: int) -> NDArray[np.float16]:
        torch.set_num_threads(1)
        pixels = pictures.pixels.read(rows[first : first + at_once], flip[first : first + at_once])
        with torch.inference_mode():
            grids: NDArray[np.float16] = encoder(pixels.to(device)).half().cpu().numpy()
        return grids

    alone = device.type != "cpu"
    threads, at_once = torch.get_num_threads(), _PIECE if alone else _ENCODE_BATCH
    encoder(pictures.pixels.read(rows[:1]).to(device))  # folds batch norm into the encoder, once
    try:
        with ThreadPoolExecutor(1 if alone else threads) as pool:
            return np.concatenate(list(pool.map(encode, range(0, len(rows), at_once))))
    finally:
        torch.set_num_threads(threads)
