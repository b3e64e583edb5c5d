"""Pictures with captions: drawn scenes, made in memory at 0.4 ms each, or prepared shards, read in place."""

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
from headway.data.loading.sampler import PaddingBatch, SampleGroup, SampleOrder, share, uniforms
from headway.data.synthetic import scenes
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.model import PretrainedEncoder
from headway.recipes.captioning.vocabulary import Vocabulary
from headway.spec.model import Cache, Data, Source

SCENES: Final = "builtin:scenes"
Numbers = NDArray[np.int64]


class Pixels(Protocol):
    """The pictures of a source, by number."""

    @property
    def fingerprint(self) -> str:
        """Changes when a pixel would."""

    def __len__(self) -> int: ...

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor:
        """uint8 (rows, 3, side, side)."""


@dataclass(frozen=True)
class Pictures:
    """One source's split: pictures, what people said of them, and, where a grammar can tell, all that may be said."""

    name: str
    pixels: Pixels
    references: Sequence[tuple[str, ...]]
    ids: Sequence[str] = ()
    weight: float = 1.0
    valid: Sequence[frozenset[str]] | None = None
    held_out: NDArray[np.bool_] | None = None  # of a kind that training never showed

    def __len__(self) -> int:
        return len(self.references)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.pixels.fingerprint.encode())
        digest.update("\n".join(text for said in self.references for text in said).encode())
        return digest.hexdigest()[:16]


def load(cfg: Config, data: Data, split: str, *, cache: Cache | None = None) -> list[Pictures]:
    """One split of each source that the job names for it, or the drawn scenes where it names none."""
    sources: tuple[Source, ...] = getattr(data, split) or (Source(source=SCENES),)
    if sum(source.source == SCENES for source in sources) > 1:
        raise BadInput(f"data.{split} names {SCENES} twice", fix="name it once, with a limit if need be")
    found = [_scenes(cfg, s, split) if s.source == SCENES else _prepared(cfg, s, split, cache) for s in sources]
    names = [pictures.name for pictures in found]
    for number, pictures in enumerate(found):
        if names.count(pictures.name) > 1:  # two folders of one name, or two splits of one folder
            object.__setattr__(pictures, "name", f"{pictures.name}_{number + 1}")
    return found


def vocabulary(cfg: Config, train: Sequence[Pictures]) -> Vocabulary:
    """From the training captions alone: what only val and test say is unknown, as it will be in use."""
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
        name="scenes",
        pixels=Drawn(np.stack([_fitted(scenes.draw(scene), cfg.side) for scene in made])),
        references=[scenes.references(scene) for scene in made],
        ids=[f"{drawn_as}-{number}" for number in range(len(made))],
        weight=source.weight,
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


# Prepared shards


class Stored:
    """Pictures of prepared shards: the middle square of `side` pixels, read in place."""

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
        from headway.data.loading.transforms import put_jpeg, put_raw

        put = put_raw if self._raw else put_jpeg
        made = np.empty((len(rows), self._side, self._side, 3), np.uint8)
        for place, (shard, inside) in enumerate(self._rows.places(rows)):
            flip = mirrored is not None and bool(mirrored[place])
            put(shard.cells("picture")[inside], made[place], 0.5, 0.5, flip)
        return torch.from_numpy(made).permute(0, 3, 1, 2)


def _prepared(cfg: Config, source: Source, split: str, cache: Cache | None) -> Pictures:
    from headway.core.errors import BadJob
    from headway.data.dataset.checking import check_data
    from headway.data.dataset.open import open_sources

    problems = check_data(Data(**{split: (source,)}), task="captions")
    if problems:
        raise BadJob(problems)
    rows = open_sources([source], split, cache=cache)[0].rows
    every = np.arange(len(rows))
    located = rows.places(every)
    references = [tuple(shard.cells("captions")[inside]) for shard, inside in located]
    silent = sum(not said for said in references)
    if silent:
        what = f"{silent:,} pictures of {source.source} have no captions, so there is nothing to learn or score"
        raise BadInput(what, where=f"data.{split}", fix="choose a split that people captioned")
    return Pictures(
        name=source.source.rstrip("/").rpartition("/")[2],
        pixels=Stored(rows, cfg.side),
        references=references,
        ids=[str(shard.cells("id")[inside]) for shard, inside in located],
        weight=source.weight,
    )


# Batches for training and evaluation: pure functions of their number, whoever asks, on however many ranks.


_WHICH_CAPTIONS, _WHICH_SIDE = 1, 2  # random streams
EVALUATED_AT_ONCE: Final = 32  # what a wide beam computes of more at once leaves the cache


class Batch(NamedTuple):
    """Some pictures, as the model takes them."""

    rows: Tensor  # which, numbered through all sources
    pictures: Tensor  # uint8 (n, 3, side, side), or the grids (n, cells, channels) that a frozen encoder makes of them
    captions: Tensor | None = None  # int64 (n, captions each, length), PAD at the end


class Views(Protocol):
    """What the model is given of each picture of a source."""

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor: ...


class Sources:
    """Several sources as one: rows are numbered through."""

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
    """Batches of pictures, each with some of its captions, shuffled anew in every epoch. Nothing is remembered.

    Sources are drawn from by weight; an epoch has as many pictures as all of them together.
    """

    def __init__(self, cfg: Config, sources: Sources, words: Vocabulary, *, seed: int) -> None:
        self.workers, self.seed, self.sources = cfg.workers, seed, sources
        self._mirror, self._each = cfg.mirror, cfg.captions
        self._batch = min(cfg.batch, len(sources))
        self._order = SampleOrder(sources.pools(), len(sources))
        self._said, self._counts = _numbered(sources.pictures, words, cfg.max_length)
        seen = [(pictures.fingerprint, pictures.weight) for pictures in sources.pictures]
        asked = (seen, words.words, seed, self._batch, cfg.captions, cfg.max_length, cfg.mirror, cfg.side)
        self._fingerprint = hashlib.sha256(repr(asked).encode()).hexdigest()[:16]

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def __len__(self) -> int:
        """Whole batches: another order in every epoch leaves out others."""
        return len(self._order) // self._batch

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Batch | PaddingBatch:
        start, stop = share(self._batch, part, parts)
        positions = step * self._batch + np.arange(start, max(stop, start + 1))
        made = self._made(epoch, positions)
        return made if stop > start else PaddingBatch(made)

    def _made(self, epoch: int, positions: Numbers) -> Batch:
        """Each picture with `captions` of its references, chosen without repeating one before all had their turn."""
        rows = self._order.at(self.seed, epoch, positions)
        chance = uniforms(self.seed, epoch, positions, self._said.shape[1], stream=_WHICH_CAPTIONS)
        index = torch.from_numpy(rows)
        has = self._counts[index]
        beyond = np.arange(self._said.shape[1])[None] >= has.numpy()[:, None]
        order = torch.from_numpy(np.argsort(chance + beyond, axis=1, kind="stable"))
        which = order.gather(1, torch.arange(self._each)[None] % has[:, None])
        captions = self._said[index[:, None], which].long()
        longest = int((captions != 0).sum(dim=2).max())
        mirrored = uniforms(self.seed, epoch, positions, 1, stream=_WHICH_SIDE)[:, 0] < 0.5 if self._mirror else None
        return Batch(index, self.sources.read(rows, mirrored), captions[:, :, :longest])


def _numbered(sources: Sequence[Pictures], words: Vocabulary, max_length: int) -> tuple[Tensor, Tensor]:
    """All references as numbers (pictures, the most references, length), and how many each picture has."""
    every = [said for pictures in sources for said in pictures.references]
    counts = torch.tensor([len(said) for said in every])
    rows = np.zeros((len(every), int(counts.max()), max_length + 2), np.int32)
    for row, said in zip(rows, every, strict=True):
        for n, text in enumerate(said):
            numbers = words.encode(text, max_length=max_length)
            row[n, : len(numbers)] = numbers
    return torch.from_numpy(rows), counts


class EvaluationFeed:
    """All pictures once, in order; of `both_sides`, as two views each (n, 2, …), the second mirrored."""

    workers = 0

    def __init__(self, sources: Sources, batch: int = EVALUATED_AT_ONCE, *, both_sides: bool = False) -> None:
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


# What a frozen encoder sees of every picture, computed once and kept on disk: 125 KB a picture for a 7 by 7 grid.
#
# A file is named by all that its contents depend on: the encoder's weights and preprocessing, the pictures, whether
# they are mirrored too. One process writes it, in pieces that survive a kill; the others of its machine wait, then
# map it.


_PIECE: Final = 256  # pictures: what a kill can cost
_AT_ONCE: Final = 8  # small batches stay in the processor's cache
_KIND: Final = np.float16


class Features:
    """Grids by number, from a memory map."""

    def __init__(self, path: Path, pictures: int, cells: int, channels: int, *, mirrored: bool) -> None:
        shape = (2 if mirrored else 1, pictures, cells, channels)
        self._grids: NDArray[np.float16] = np.memmap(path, _KIND, "r", shape=shape)

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor:
        """Half precision (rows, cells, channels)."""
        sides = np.zeros(len(rows), np.int64) if mirrored is None else mirrored.astype(np.int64)
        return torch.from_numpy(self._grids[sides, rows])


def seen(
    encoder: nn.Module,
    pictures: list[Pictures],
    cache: Cache | None,
    *,
    learns: bool = False,
    mirrored: bool = False,
    device: torch.device | None = None,
) -> Sources:
    """What a model is given: the pictures, or what its encoder makes of them where that is published and never learns.

    Without a cache it is the pictures.
    """
    if cache is None or learns or not isinstance(encoder, PretrainedEncoder):
        return Sources(pictures)
    at = device or torch.device("cpu")
    return Sources(pictures, [features(encoder, part, cache, mirrored=mirrored, device=at) for part in pictures])


def features(
    encoder: PretrainedEncoder, pictures: Pictures, cache: Cache, *, mirrored: bool, device: torch.device
) -> Features:
    """Those of all pictures, from the cache or computed now."""
    count, cells, channels = len(pictures), encoder.cells, encoder.channels
    key = (fingerprint(encoder.net), pictures.pixels.fingerprint, count, cells, channels, mirrored)
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:24]
    folder = _folder(cache)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.f16"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # goes when its holder dies
        if not path.exists():
            _write(path, encoder, pictures, mirrored=mirrored, device=device)
    return Features(path, count, cells, channels, mirrored=mirrored)


def _folder(cache: Cache) -> Path:
    if cache.dir is not None:
        return Path(cache.dir).expanduser() / "features"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headway" / "features"


def _write(path: Path, encoder: PretrainedEncoder, pictures: Pictures, *, mirrored: bool, device: torch.device) -> None:
    """Append piece after piece to a file of another name. What an earlier process finished of it is kept."""
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
                file.write(_seen(encoder, pictures, places % count, places >= count, device).tobytes())
                file.flush()
                os.fsync(file.fileno())
                done += len(places)
                rate = (done - first) / max(1e-9, time.monotonic() - begun)
                sys.stderr.write(f"features of {pictures.name}: {done:,} of {total:,} pictures, {rate:.0f} a second\n")
    except OSError as error:
        raise DiskFull(
            f"the features could not be kept: {error.strerror}",
            where=str(part),
            fix=f"make room ({total * size / 1e9:.1f} GB in all), or name another cache.dir",
        ) from None
    os.rename(part, path)


def _seen(
    encoder: PretrainedEncoder, pictures: Pictures, rows: Numbers, flip: NDArray[np.bool_], device: torch.device
) -> NDArray[np.float16]:
    """Small batches side by side, each on one thread: these layers are too small to be shared between threads.

    So the features do not depend on the number of threads either.
    """

    def see(first: int) -> NDArray[np.float16]:
        torch.set_num_threads(1)
        pixels = pictures.pixels.read(rows[first : first + at_once], flip[first : first + at_once])
        with torch.inference_mode():
            grids: NDArray[np.float16] = encoder(pixels.to(device)).half().cpu().numpy()
        return grids

    alone = device.type != "cpu"
    threads, at_once = torch.get_num_threads(), _PIECE if alone else _AT_ONCE
    encoder(pictures.pixels.read(rows[:1]).to(device))  # folds the encoder, once
    try:
        with ThreadPoolExecutor(1 if alone else threads) as pool:
            return np.concatenate(list(pool.map(see, range(0, len(rows), at_once))))
    finally:
        torch.set_num_threads(threads)
