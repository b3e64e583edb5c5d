"""Where the sentences come from, and that any number of ranks sees the same batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.core.errors import BadInput
from headway.data.loading.sampler import PaddingBatch
from headway.data.prepare.pipeline import PrepareOptions, prepare
from headway.recipes.translation.data import PHRASES, check_same_tokenizer, load
from headway.spec import Data, Source
from tests.recipes.translation.tiny import settings, translator


def write_texts(folder: Path, words: str) -> Path:
    folder.mkdir()
    for split, count in (("train", 30), ("val", 6), ("test", 6)):
        lines = [f"{words} number {n} of {split}" for n in range(count)]
        (folder / f"{split}.en").write_text("\n".join(lines) + "\n")
        (folder / f"{split}.de").write_text("\n".join(line.replace("number", "Nummer") for line in lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("texts")
    made = str(folder / "shards")
    prepare(str(write_texts(folder / "raw", "sentence")), made, workers=1, options=PrepareOptions(bpe_size=300))
    return made


def test_without_data_the_language_is_made_up() -> None:
    pairs = load(settings(), Data(), "test")
    assert (len(pairs), pairs.name) == (12, f"{PHRASES} (test)")
    assert pairs.texts("source")[0].endswith((".", "?"))
    assert pairs.held_out is not None


def test_made_up_sentences_are_numbered_by_subwords_of_the_training_split_alone() -> None:
    train, test = load(settings(), Data(), "train"), load(settings(), Data(), "test")
    assert train.tokenizer.to_json() == test.tokenizer.to_json()


def test_prepared_text_is_read_with_its_own_subwords(prepared: str) -> None:
    pairs = load(settings(), Data(train=(Source(source=prepared),)), "train")
    assert len(pairs) == 30
    assert pairs.texts("target")[0].startswith("sentence Nummer")
    row = pairs.sources[0].rows.cell("source_ids", 0)
    assert pairs.tokenizer.decode(row) == pairs.texts("source")[0]


def test_a_split_that_the_job_leaves_out_is_read_from_where_it_trains(prepared: str) -> None:
    data = Data(train=(Source(source=prepared, limit=5, weight=2.0),))
    assert len(load(settings(), data, "train")) == 5
    assert len(load(settings(), data, "val")) == 6


def test_sources_with_different_subwords_are_refused(prepared: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    prepare(str(write_texts(tmp_path / "raw", "phrase")), other, workers=1, options=PrepareOptions(bpe_size=300))
    data = Data(train=(Source(source=prepared), Source(source=other)))
    with pytest.raises(BadInput, match="different subwords"):
        load(settings(), data, "train")
    apart = Data(train=(Source(source=prepared),), val=(Source(source=other),))
    with pytest.raises(BadInput, match="different subwords"):
        check_same_tokenizer(load(settings(), apart, "train"), load(settings(), apart, "val"))


def test_the_made_up_language_is_not_mixed_with_another(prepared: str) -> None:
    with pytest.raises(BadInput, match="cannot be mixed"):
        load(settings(), Data(train=(Source(source=prepared), Source(source=PHRASES))), "train")


@pytest.mark.parametrize("ranks", [2, 3])
@torch.no_grad()
def test_any_number_of_ranks_sees_the_same_batches_and_the_same_loss(ranks: int) -> None:
    cfg = settings()
    pairs = load(cfg, Data(), "train")
    feed = pairs.feed(cfg, seed=1)
    model = translator()
    for step in range(0, len(feed), 3):
        whole = feed.batch(2, step, 0, 1)
        parts = [feed.batch(2, step, rank, ranks) for rank in range(ranks)]
        real = [part for part in parts if not isinstance(part, PaddingBatch)]
        assert torch.equal(torch.cat([part["row"] for part in real]), whole["row"])
        source, target = whole["source"] % 260 + 4, whole["target"] % 260
        loss, tokens = model(source, target)
        assert int(tokens) > 0
        assert torch.isfinite(loss)
