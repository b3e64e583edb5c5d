"""Batches: pure functions of the epoch and step, balanced by rarity, with true targets; from drawn cards or shards."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headway.core.errors import BadInput
from headway.data.loading.sampler import PaddingBatch
from headway.data.prepare.pipeline import PrepareOptions, prepare
from headway.data.synthetic import cards
from headway.recipes.common import resize_square
from headway.recipes.grading.data import augmentation, load, prepared
from headway.recipes.grading.model import Grader
from headway.spec import Data, Source
from tests.recipes.grading.jobs import grading_config


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pairs")
    cards.write_pairs(folder / "cards", {"train": 20, "val": 6, "test": 6})
    wishes = PrepareOptions(fit="squash")
    prepare(str(folder / "cards"), str(folder / "shards"), size=128, encoding="raw", workers=1, options=wishes)
    return str(folder / "shards")


def test_drawn_cards_come_with_what_is_true_of_them() -> None:
    cfg = grading_config(train_samples=20)
    batch = load(cfg, Data(), "train").feed(cfg, training=False, seed=0).batch(0, 0, 0, 1)
    card = cards.compose("train", 4)
    assert int(batch["label"][4]) == cards.grade_of(card)
    edge, across, down = batch["targets"][4, 0].tolist()
    assert edge == pytest.approx(card.back.whitened)
    assert (across, down) == pytest.approx((abs(card.back.across), abs(card.back.down)))
    assert len({round(float(value), 4) for value in batch["targets"][:, 1, 1]}) > 15  # no constants


def test_a_batch_is_the_same_whatever_the_number_of_ranks() -> None:
    cfg = grading_config(train_samples=40)
    feed = load(cfg, Data(), "train").feed(cfg, training=True, seed=5)
    whole = feed.batch(3, 1, 0, 1)
    parts = [feed.batch(3, 1, part, 3) for part in range(3)]
    assert torch.equal(torch.cat([part["row"] for part in parts]), whole["row"])
    assert torch.equal(torch.cat([part["draws"] for part in parts]), whole["draws"])
    assert isinstance(feed.batch(3, 1, 17, 18), PaddingBatch)


def test_the_sampler_draws_rare_grades_more_often() -> None:
    cfg = grading_config(train_samples=600, skewed=True, batch_size=600)
    graded = load(cfg, Data(), "train")
    counts = Counter(graded.labels().tolist())
    feed = graded.feed(cfg, training=True, seed=1)
    drawn = Counter(label for epoch in range(4) for label in feed.batch(epoch, 0, 0, 1)["label"].tolist())
    for rare, common in ((5, 9), (6, 8)):
        wanted = (counts[rare] / counts[common]) ** 0.5
        assert drawn[rare] / drawn[common] == pytest.approx(wanted, rel=0.05)
    plain = graded.feed(grading_config(batch_size=600, sampler="uniform"), training=True, seed=1)
    assert Counter(plain.batch(0, 0, 0, 1)["label"].tolist()) == counts


def test_prepared_pairs_are_the_same_pictures_under_the_same_names(shards: str) -> None:
    cfg = grading_config(image_size=128, train_samples=20)
    data = Data(train=(Source(source=shards),))
    graded, drawn = load(cfg, data, "train"), load(cfg, Data(), "train")
    mine = graded.feed(cfg, training=False, seed=0).batch(0, 0, 0, 1)
    made = drawn.feed(cfg, training=False, seed=0).batch(0, 0, 0, 1)
    assert Counter(mine["label"].tolist()) == Counter(made["label"].tolist())
    assert torch.equal(mine["front"][0], made["front"][0])
    assert torch.equal(mine["back"][0], made["back"][0])
    assert torch.equal(mine["targets"], made["targets"])
    assert np.array_equal(graded.pictures(0)[0], drawn.pictures(0)[0])


def test_what_is_known_of_some_cards_only_is_learnt_from_those(tmp_path: Path) -> None:
    splits = cards.write_pairs(tmp_path / "cards", {"train": 6, "val": 2, "test": 2})
    rows = splits["train"]
    for entry in rows[1:]:
        del entry["edge"], entry["center"]
    rows[1]["edge"] = {"front": 0.5}
    (tmp_path / "cards" / "splits.json").write_text(json.dumps(splits))
    wishes = PrepareOptions(fit="squash")
    prepare(str(tmp_path / "cards"), str(tmp_path / "shards"), size=96, encoding="raw", workers=1, options=wishes)
    graded = load(grading_config(), Data(train=(Source(source=str(tmp_path / "shards")),)), "train")
    batch = graded.feed(grading_config(), training=False, seed=0).batch(0, 0, 0, 1)
    known = ~batch["targets"].isnan()
    assert known[0].all()
    assert known[1].tolist() == [[False] * 3, [True, False, False]]
    assert not known[2:].any()

    model = Grader(grading_config(), range(1, 11)).eval()
    answer = model(*prepared(batch, grading_config(), None))
    parts = model.loss(answer, batch["label"] - 1, batch["targets"])
    assert answer.front is not None
    edges = (answer.back[0, 0] - batch["targets"][0, 0, 0]).square(), (answer.front[:2, 0] - batch["targets"][:2, 1, 0])
    assert parts["edge"].item() == pytest.approx(0.05 * (edges[0] + edges[1].square().sum()).item() / 2, rel=1e-5)
    sum(parts.values()).backward()  # type: ignore[union-attr]  # sum of tensors
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


def test_cards_of_which_nothing_is_known_have_no_targets(tmp_path: Path) -> None:
    splits = cards.write_pairs(tmp_path / "cards", {"train": 4, "val": 2, "test": 2})
    bare = {
        name: [{k: e[k] for k in ("cert_id", "grade", "front", "back")} for e in rows] for name, rows in splits.items()
    }
    (tmp_path / "cards" / "splits.json").write_text(json.dumps(bare))
    prepare(str(tmp_path / "cards"), str(tmp_path / "shards"), size=96, encoding="raw", workers=1)
    graded = load(grading_config(), Data(train=(Source(source=str(tmp_path / "shards")),)), "train")
    assert "targets" not in graded.feed(grading_config(), training=False, seed=0).batch(0, 0, 0, 1)


def test_validation_reads_the_training_source_where_none_is_named(shards: str) -> None:
    assert len(load(grading_config(), Data(train=(Source(source=shards),)), "val")) == 6


def test_whole_pictures_are_brought_to_the_models_size(shards: str) -> None:
    cfg = grading_config(image_size=96)
    feed = load(cfg, Data(train=(Source(source=shards),)), "train").feed(cfg, training=True, seed=0)
    back, front = prepared(feed.batch(0, 0, 0, 1), cfg, augmentation(cfg))
    assert back.shape[1:] == (3, 96, 96)
    assert front is not None
    assert front.dtype == torch.uint8


def test_one_picture_of_each_thing_needs_single_views(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "eyes").mkdir()
    lines = ["file,grade"]
    for number in range(12):
        pixels = np.full((96, 96, 3), 20 * number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "eyes" / f"{number}.png")
        lines.append(f"{number}.png,{number % 3}")
    (tmp_path / "eyes" / "table.csv").write_text("\n".join(lines))
    prepare(str(tmp_path / "eyes"), str(tmp_path / "shards"), size=96, encoding="raw", workers=1)
    data = Data(train=(Source(source=str(tmp_path / "shards")),))
    with pytest.raises(BadInput, match="one picture per item"):
        load(grading_config(), data, "train")
    single = load(grading_config(views="single"), data, "train")
    assert single.grades == (0, 1, 2)
    assert "front" not in single.feed(grading_config(views="single"), training=False, seed=0).batch(0, 0, 0, 1)


def test_drawn_cards_are_mixed_with_nothing(shards: str) -> None:
    with pytest.raises(BadInput, match="mixes"):
        load(grading_config(), Data(train=(Source(source="builtin:cards"), Source(source=shards))), "train")


def test_the_edges_of_a_card_reach_the_model_in_training_as_in_serving(tmp_path: Path) -> None:
    """As the project's page prepares cards, JPEG at 256 pixels, for a model of 224."""
    splits = cards.write_pairs(tmp_path / "cards", {"train": 2, "val": 2, "test": 2})
    for path in (tmp_path / "cards").rglob("*.png"):
        with Image.open(path) as card:  # white to the last pixel at the rim, and not square
            framed = Image.new("RGB", (300, 420), "white")
            framed.paste(card.resize((260, 380)), (20, 20))
        framed.save(path)
    prepare(str(tmp_path / "cards"), str(tmp_path / "shards"), size=256, workers=1)
    cfg = grading_config(model_size="base", image_size=224)
    graded = load(cfg, Data(train=(Source(source=str(tmp_path / "shards")),)), "train")
    trained, _ = prepared(graded.feed(cfg, training=True, seed=0).batch(0, 0, 0, 1), cfg, None)
    row = int(graded.feed(cfg, training=False, seed=0).batch(0, 0, 0, 1)["row"][0])
    stored, _ = prepared(graded.feed(cfg, training=False, seed=0).batch(0, 0, 0, 1), cfg, None)
    assert trained.shape[2:] == stored.shape[2:] == (224, 224)
    rim = torch.cat([trained[:, :, :6].flatten(), trained[:, :, :, -6:].flatten()]).float()
    assert rim.mean() > 245
    names = [splits["train"][row]["back"]]
    with Image.open(next((tmp_path / "cards").rglob(Path(names[0]).name))) as card:
        served = resize_square(card, 224)
    assert (served.float() - stored[0].float()).abs().mean() < 4


@pytest.mark.parametrize(("fit", "encoding"), [("short", "jpeg"), ("crop", "raw"), ("pad", "jpeg")])
def test_cards_that_were_prepared_another_way_are_refused(tmp_path: Path, fit: Any, encoding: Any) -> None:
    cards.write_pairs(tmp_path / "cards", {"train": 2, "val": 2, "test": 2})
    options, to = PrepareOptions(fit=fit), str(tmp_path / "shards")
    prepare(str(tmp_path / "cards"), to, size=96, encoding=encoding, workers=1, options=options)
    with pytest.raises(BadInput, match=f"--fit {fit}") as refused:
        load(grading_config(), Data(train=(Source(source=to),)), "train")
    assert "headway data prepare" in refused.value.problem.fix
