"""Translation data and batches. Generated phrases also become shards, so that one code path reads all."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import BadInput, NotThere
from headway.data.dataset.manifest import NAME, Column, Manifest, ShardFile, sources_of
from headway.data.dataset.open import open_sources
from headway.data.dataset.rows import Rows
from headway.data.dataset.shards import shard_bytes
from headway.data.loading.loader import ConcatDataset, WeightedSource
from headway.data.loading.text import SentenceFeed
from headway.data.synthetic import phrases
from headway.data.text import BpeTokenizer
from headway.recipes.translation.config import Config
from headway.recipes.translation.model import tokenizer_from
from headway.spec.model import Cache, Data, Source
from headway.storage import join, open_store

PHRASES: Final = "builtin:phrases"
_TOKENIZER: Final = "tokenizer.json"
_COLUMNS: Final = (
    *(Column(name=name, kind="text") for name in ("id", "source", "target")),
    *(Column(name=name, kind="integers") for name in ("source_ids", "target_ids")),
)


@dataclass(frozen=True)
class Pairs:
    """A split of sentence pairs with their shared subword tokenizer."""

    name: str
    sources: Sequence[WeightedSource]
    tokenizer: BpeTokenizer
    held_out: NDArray[np.bool_] | None = None  # pairs with combinations that are absent from training
    kept: Any = None  # keeps the temporary folder of generated phrases alive

    def __len__(self) -> int:
        return sum(len(source.rows) for source in self.sources)

    def feed(self, cfg: Config, *, seed: int) -> SentenceFeed:
        """Return training batches: reshuffled every epoch, identical for any number of ranks."""
        return SentenceFeed(self.sources, cfg.batch_tokens, training=True, max_length=cfg.max_length, seed=seed)

    def texts(self, side: str) -> list[str]:
        """Return all sentences of one side, `source` or `target`, in order."""
        places = ConcatDataset(self.sources).locate(np.arange(len(self)))
        return [shard.cells(side)[row] for shard, row in places]


def load(cfg: Config, data: Data, split: str, *, cache: Cache | None = None) -> Pairs:
    """Load one split from the job's sources for it, else from its training sources, else from generated phrases."""
    sources = sources_of(data, split, PHRASES)
    if all(source.source == PHRASES for source in sources):
        if len(sources) > 1:
            raise BadInput(f"data.{split} names {PHRASES} {len(sources)} times", fix="name it once")
        return _synthetic_pairs(cfg, sources[0], split)
    if any(source.source == PHRASES for source in sources):
        raise BadInput(f"{PHRASES} cannot be mixed with other data", where=f"data.{split}", fix="name one or the other")
    opened = open_sources(sources, split, cache=cache)
    for source, rows in zip(sources, opened, strict=True):
        if rows.rows.manifest.task != "translation":
            raise BadInput(
                f"{source.source} holds {rows.rows.manifest.task}, not sentences with translations",
                where=f"data.{split}",
                fix="headway data prepare FOLDER_WITH_train.en_AND_train.de --to DEST",
            )
    return Pairs(", ".join(f"{one.rows.url} ({one.rows.split})" for one in opened), opened, _shared_tokenizer(opened))


def check_same_tokenizer(train: Pairs, other: Pairs) -> None:
    """Raise BadInput unless both have the same tokenizer: scores would be meaningless."""
    if train.tokenizer.to_json() != other.tokenizer.to_json():
        raise BadInput(
            f"{train.name} and {other.name} were prepared with different subwords",
            fix="put their files into one folder and prepare them together",
        )


def _shared_tokenizer(sources: Sequence[WeightedSource]) -> BpeTokenizer:
    """Return the tokenizer of all sources. Raises BadInput if they differ, as token ids would not be comparable."""
    texts = {source.rows.url: _tokenizer_of(source.rows.url) for source in sources}
    (first, text), *others = texts.items()
    for url, other in others:
        if other != text:
            raise BadInput(
                f"{first} and {url} were prepared with different subwords",
                fix="put their files into one folder and prepare them together",
            )
    return tokenizer_from(text, where=join(first, _TOKENIZER))


def _tokenizer_of(url: str) -> bytes:
    try:
        return open_store(url).read(_TOKENIZER)
    except NotThere:
        raise BadInput(
            f"{url} has no {_TOKENIZER}", fix="prepare it as parallel text: headway data prepare SOURCE --to DEST"
        ) from None


def _synthetic_pairs(cfg: Config, source: Source, split: str) -> Pairs:
    """Generate phrases. The tokenizer is trained on the training sentences alone, identically on every machine."""
    wanted = source.split or split
    if wanted not in phrases.SPLITS or source.where:
        known = ", ".join(phrases.SPLITS)
        raise BadInput(
            f"{PHRASES} has the splits {known}, and cannot be filtered by `where`",
            where=f"data.{split}",
            fix="see docs/translation.md",
        )
    learnt_from = phrases.pairs("train", cfg.train_samples)
    texts = (text for pair in learnt_from for text in (pair.source, pair.target))
    tokenizer = BpeTokenizer.train(texts, size=cfg.subwords)
    count = int(getattr(cfg, f"{wanted}_samples"))
    made = learnt_from if wanted == "train" else phrases.pairs(wanted, count)
    made = made[: source.limit]
    kept = tempfile.TemporaryDirectory(prefix="headway-phrases-")
    _write(Path(kept.name), wanted, made, tokenizer)
    held_out = np.array([pair.held_out for pair in made])
    return Pairs(f"{PHRASES} ({wanted})", [WeightedSource(Rows(kept.name, wanted))], tokenizer, held_out, kept)


def _write(folder: Path, split: str, made: Sequence[phrases.Pair], tokenizer: BpeTokenizer) -> None:
    """Write a data set as `headway data prepare` would."""
    values = {
        "id": [f"{split}/{number}" for number in range(len(made))],
        "source": [pair.source for pair in made],
        "target": [pair.target for pair in made],
        "source_ids": [tokenizer.encode(pair.source) for pair in made],
        "target_ids": [tokenizer.encode(pair.target) for pair in made],
    }
    written = shard_bytes(_COLUMNS, values)
    key = f"{split}.arrow"
    (folder / key).write_bytes(written.body)
    shard = ShardFile(key=key, rows=written.rows, bytes=len(written.body), sha256=written.sha256)
    manifest = Manifest(name=PHRASES, task="translation", columns=_COLUMNS, splits={split: (shard,)})
    (folder / NAME).write_text(manifest.to_json())
