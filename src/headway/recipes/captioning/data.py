"""Pictures with captions: drawn scenes, made in memory at 0.4 ms each, or prepared shards, read in place."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data import scenes
from headway.errors import BadInput
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.words import Vocabulary
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
        from headway.data.rows import Rows

        assert isinstance(rows, Rows)
        self._rows, self._side = rows, side
        column = rows.manifest.column("picture")
        self._raw = column.encoding == "raw"
        if self._raw:
            from headway.data.crops import check_crop

            check_crop((column.height, column.width), (side, side))

    @property
    def fingerprint(self) -> str:
        return f"{self._rows.fingerprint} {self._side}"

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, rows: Numbers, mirrored: NDArray[np.bool_] | None = None) -> Tensor:
        from headway.data.crops import put_jpeg, put_raw

        put = put_raw if self._raw else put_jpeg
        made = np.empty((len(rows), self._side, self._side, 3), np.uint8)
        for place, (shard, inside) in enumerate(self._rows.places(rows)):
            flip = mirrored is not None and bool(mirrored[place])
            put(shard.cells("picture")[inside], made[place], 0.5, 0.5, flip)
        return torch.from_numpy(made).permute(0, 3, 1, 2)


def _prepared(cfg: Config, source: Source, split: str, cache: Cache | None) -> Pictures:
    from headway.data.checking import check_data
    from headway.data.opening import open_sources
    from headway.errors import BadJob

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
