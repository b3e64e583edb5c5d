from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headway.core.errors import BadInput, NotThere  # noqa: E402
from headway.data.dataset.rows import Rows  # noqa: E402
from headway.data.loading.loader import PictureFeed, WeightedSource  # noqa: E402
from headway.data.loading.prefetch import BufferPool  # noqa: E402
from headway.data.loading.sampler import PaddingBatch  # noqa: E402
from headway.data.loading.text import SentenceFeed  # noqa: E402
from headway.data.loading.transforms import Augment  # noqa: E402
from headway.data.prepare.pipeline import PrepareOptions, prepare  # noqa: E402
from headway.data.text import END, PAD, START  # noqa: E402
from headway.training.batches import Feed  # noqa: E402
from tests.data import layouts  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One set of class folders, prepared raw and as JPEG; another that is smaller; and sentences."""
    root = tmp_path_factory.mktemp("loader")
    source = layouts.class_folders(root / "in", splits=("train", "val"), classes=3, each=20)
    for number in range(15):  # make the last class rare
        (source / "train" / "class_2" / f"{number}.jpg").unlink()
    prepare(str(source), str(root / "raw"), size=40, encoding="raw", workers=1)
    prepare(str(source), str(root / "jpeg"), size=40, workers=1)
    other = layouts.class_folders(root / "in2", splits=("train",), classes=3, each=4)
    prepare(str(other), str(root / "other"), size=40, encoding="raw", workers=1)
    prepare(str(layouts.coco(root / "in3")), str(root / "captions"), size=40, workers=1)
    lines = root / "in4"
    for side in ("en", "de"):
        text = "".join(f"{side} " + "word " * (1 + (n * 7) % 23) + f"{n}\n" for n in range(200))
        layouts.put(lines / f"train.{side}", text)
        layouts.put(lines / f"val.{side}", text[:400])
    prepare(str(lines), str(root / "text"), workers=1, options=PrepareOptions(bpe_size=300), max_bad=1)
    return root


def feed_of(made: Path, kind: str = "raw", **options: Any) -> PictureFeed:
    return PictureFeed(
        [Rows(str(made / kind), "train")], **{"batch_size": 8, "training": True, "seed": 3, "crop": 32} | options
    )


def epoch_rows(feed: Any, epoch: int, parts: int = 1) -> list[int]:
    return [row for step in range(len(feed)) for part in range(parts) for row in feed.indices(epoch, step, part, parts)]


def test_it_is_a_feed(made: Path) -> None:
    assert isinstance(feed_of(made), Feed)
    assert isinstance(SentenceFeed([Rows(str(made / "text"), "train")], 400, training=True), Feed)


def test_a_batch_holds_pictures_labels_and_ids(made: Path) -> None:
    batch = feed_of(made).batch(0, 0, 0, 1)
    assert batch["picture"].shape == (8, 3, 32, 32)
    assert batch["picture"].dtype == torch.uint8
    assert batch["picture"].is_contiguous(memory_format=torch.channels_last)
    rows = Rows(str(made / "raw"), "train")
    for at, row in enumerate(batch["row"].tolist()):
        assert batch["id"][at] == rows.cell("id", row)
        assert batch["label"][at] == rows.cell("label", row)


@pytest.mark.parametrize("kind", ["raw", "jpeg"])
def test_a_training_crop_is_a_window_of_the_picture(made: Path, kind: str) -> None:
    feed, rows = feed_of(made, kind), Rows(str(made / kind), "train")
    batch = feed.batch(2, 1, 0, 1)
    for at, row in enumerate(batch["row"].tolist()):
        cell = rows.cell("picture", row)
        if kind == "jpeg":
            import simplejpeg

            cell = simplejpeg.decode_jpeg(cell)
        crop = batch["picture"][at].permute(1, 2, 0).numpy()
        windows = np.lib.stride_tricks.sliding_window_view(cell, (32, 32, 3)).reshape(-1, 32, 32, 3)
        assert (windows == crop).all(axis=(1, 2, 3)).any()


def test_mirrored_pictures_are_mirrored_and_about_half_are(made: Path) -> None:
    plain, mirrored = feed_of(made, crop=40), feed_of(made, crop=40, mirror=True)
    turned = 0
    for step in range(len(plain)):
        before, after = plain.batch(0, step, 0, 1)["picture"], mirrored.batch(0, step, 0, 1)["picture"]
        for one, other in zip(before, after, strict=True):
            assert torch.equal(one, other) or torch.equal(one.flip(2), other)
            turned += int(not torch.equal(one, other))
    assert 0.25 < turned / 45 < 0.75


def test_evaluation_is_every_row_once_in_order_cropped_in_the_middle(made: Path) -> None:
    rows = Rows(str(made / "raw"), "val")
    feed = PictureFeed([rows], 8, training=False, crop=32)
    seen = [row for step in range(len(feed)) for row in feed.batch(0, step, 0, 1)["row"].tolist()]
    assert seen == list(range(60))
    first = feed.batch(0, 0, 0, 1)["picture"][0].permute(1, 2, 0).numpy()
    assert np.array_equal(first, rows.cell("picture", 0)[4:36, 4:36])


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_any_world_size_sees_the_same_batches(made: Path, parts: int) -> None:
    feed = feed_of(made, mirror=True)
    for step in (0, 2, len(feed) - 1):
        whole = feed.batch(1, step, 0, 1)
        pieces = [feed.batch(1, step, part, parts) for part in range(parts)]
        real = [piece for piece in pieces if not isinstance(piece, PaddingBatch)]
        assert torch.equal(torch.cat([piece["picture"] for piece in real]), whole["picture"])
        assert torch.cat([piece["row"] for piece in real]).tolist() == whole["row"].tolist()


def test_a_part_without_rows_is_a_filler(made: Path) -> None:
    feed = feed_of(made, batch_size=2)
    empty = feed.batch(0, 0, 2, 3)
    assert isinstance(empty, PaddingBatch)
    assert empty.batch["picture"].shape == (1, 3, 32, 32)


def test_a_batch_depends_on_nothing_that_was_asked_before(made: Path) -> None:
    straight = feed_of(made, "jpeg", mirror=True)
    expected = {(epoch, step): straight.batch(epoch, step, 0, 1) for epoch in (0, 1) for step in range(len(straight))}
    jumping = feed_of(made, "jpeg", mirror=True, threads=3, ahead=3)
    random = np.random.default_rng(0)
    for key in random.permutation(list(expected)).tolist():
        batch, other = jumping.batch(*key, 0, 1), expected[tuple(key)]
        assert torch.equal(batch["picture"], other["picture"])
        assert batch["id"] == other["id"]


def test_resuming_anywhere_needs_no_replay(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch from the middle reads its own rows and those ahead of it, none before it."""
    read: dict[int, set[int]] = {}
    locate = Rows.locate

    def watched(self: Rows, rows: Any) -> Any:
        read.setdefault(id(self), set()).update(rows.tolist())
        return locate(self, rows)

    monkeypatch.setattr(Rows, "locate", watched)
    feed = feed_of(made, ahead=0)
    feed.batch(7, 4, 0, 1)
    wanted = set(feed.indices(7, 4))
    own, _ = feed.data.origin(next(iter(wanted)))  # feeds of other tests may still be reading ahead
    assert read[id(own)] == wanted


def test_sources_are_mixed_by_weight(made: Path) -> None:
    big, small = Rows(str(made / "raw"), "train"), Rows(str(made / "other"), "train")
    feed = PictureFeed([WeightedSource(big, 1.0), WeightedSource(small, 1.0)], 8, training=True, crop=32, seed=1)
    for epoch in range(3):
        rows = np.array(epoch_rows(feed, epoch))
        assert len(rows) == len(big) + len(small) == 57
        assert abs((rows >= len(big)).sum() - 28.5) < 1
    batch = feed.batch(0, 0, 0, 1)
    for at, row in enumerate(batch["row"].tolist()):
        source, number = feed.data.origin(row)
        assert batch["id"][at] == source.cell("id", number)


def test_rare_classes_can_be_drawn_more_often(made: Path) -> None:
    feed = feed_of(made, balance=0.5)
    labels = Rows(str(made / "raw"), "train").integers("label")
    assert np.bincount(labels).tolist() == [20, 20, 5]
    drawn = np.bincount(labels[np.array([epoch_rows(feed, epoch) for epoch in range(8)]).ravel()])
    assert (drawn[2] / 5) / (drawn[0] / 20) == pytest.approx(2.0, rel=0.1)


def test_filters_and_limits_choose_rows(made: Path) -> None:
    url = str(made / "raw")
    rare = Rows(url, "train", where={"label": "class_2"})
    assert {rare.cell("label", row) for row in range(len(rare))} == {2}
    some = Rows(url, "train", limit=12)
    assert len(some) == 12
    assert len({some.cell("label", row) for row in range(12)}) > 1  # a sample, not the first class
    one = Rows(url, "train", where={"id": ["train/class_1/3.jpg", "train/class_0/1.jpg"]})
    assert [one.cell("id", row) for row in range(2)] == ["train/class_0/1.jpg", "train/class_1/3.jpg"]
    assert rare.fingerprint != some.fingerprint != Rows(url, "train").fingerprint
    assert len(Rows(url, "train", where={"label": [0, 2]})) == 25


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"where": {"label": "unicorn"}}, "choose from class_0"),
        ({"where": {"colour": 1}}, "no column 'colour'"),
        ({"where": {"id": "nobody"}}, "no row of"),
        ({"where": {"picture": 1}}, "cannot be filtered by picture"),
        ({"limit": 0}, "leaves none"),
    ],
)
def test_filters_that_choose_nothing_are_refused(made: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Rows(str(made / "raw"), "train", **options)


def test_what_does_not_fit_is_refused(made: Path) -> None:
    with pytest.raises(BadInput, match="no split 'dev'"):
        Rows(str(made / "raw"), "dev")
    with pytest.raises(BadInput, match="larger --size"):
        feed_of(made, crop=64)
    with pytest.raises(BadInput, match="differ in size"):
        feed_of(made, "jpeg", crop=None)
    with pytest.raises(BadInput, match="the same classes"):
        PictureFeed([Rows(str(made / kind), "train") for kind in ("raw", "captions")], 8, training=True, crop=32)
    with pytest.raises(IndexError):
        feed_of(made).batch(0, 10**6, 0, 1)


def test_pictures_smaller_than_the_crop_are_enlarged(made: Path) -> None:
    batch = feed_of(made, "jpeg", crop=48).batch(0, 0, 0, 1)
    assert batch["picture"].shape == (8, 3, 48, 48)


def test_captions_come_as_lists_of_text(made: Path) -> None:
    feed = feed_of(made, "captions", batch_size=3)
    batch = feed.batch(0, 0, 0, 1)
    assert [len(captions) for captions in batch["captions"]] == [5, 5, 5]
    assert f"number {batch['id'][0]}," in batch["captions"][0][0]


def test_a_missing_shard_is_said_when_its_batch_is_asked_for(made: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(made / "other", tmp_path / "holed")
    feed = PictureFeed([Rows(str(tmp_path / "holed"), "train")], 4, training=True, crop=32)
    for path in (tmp_path / "holed" / "shards").iterdir():
        path.unlink()
    with pytest.raises(NotThere, match="is missing"):
        feed.batch(0, 0, 0, 1)


def test_memory_is_used_again_but_only_once_nobody_looks_at_it(made: Path) -> None:
    feed = feed_of(made, ahead=1)
    held = feed.batch(0, 0, 0, 1)["picture"]
    copy = held.clone()
    part = feed.batch(0, 1, 0, 1)["picture"][2:4]
    part_copy = part.clone()
    for epoch in range(1, 6):
        for step in range(len(feed)):
            feed.batch(epoch, step, 0, 1)
    gc.collect()
    assert torch.equal(held, copy)
    assert torch.equal(part, part_copy)
    assert feed._buffers.allocated <= 8


def test_a_slice_of_lent_memory_keeps_it_lent() -> None:
    buffers = BufferPool()
    lent = buffers.acquire((4, 5))
    window = lent[1:2][:, 2:]
    address = lent.ctypes.data
    del lent
    gc.collect()
    assert buffers.acquire((4, 5)).ctypes.data != address
    del window
    gc.collect()
    assert address in {buffers.acquire((4, 5)).ctypes.data for _ in range(2)}


def test_fingerprints_change_with_what_changes_the_batches(made: Path) -> None:
    same = feed_of(made).fingerprint
    assert feed_of(made, threads=7, ahead=0).fingerprint == same
    for changed in ({"batch_size": 9}, {"crop": 30}, {"mirror": True}, {"seed": 4}, {"balance": 0.5}):
        assert feed_of(made, **changed).fingerprint != same


def test_augmentation_rides_along_and_does_not_depend_on_the_world(made: Path) -> None:
    augment = Augment(scale=(0.3, 1.0), mirror=0.5, degrees=15, brightness=0.3, contrast=0.3, saturation=0.3, hue=0.1)
    feed = feed_of(made, augment=augment)
    whole = feed.batch(0, 0, 0, 1)
    parts = [feed.batch(0, 0, part, 2) for part in range(2)]
    assert torch.equal(torch.cat([part["draws"] for part in parts]), whole["draws"])
    changed = augment.apply(whole["picture"], whole["draws"])
    assert changed.shape == whole["picture"].shape
    assert not torch.equal(changed, whole["picture"])
    again = augment.apply(feed.batch(0, 0, 0, 1)["picture"], whole["draws"])
    assert torch.equal(changed, again)
    evaluation = PictureFeed([Rows(str(made / "raw"), "val")], 4, training=False, crop=32, augment=augment)
    assert "draws" not in evaluation.batch(0, 0, 0, 1)


def test_the_loader_imports_torch_only_to_hand_over() -> None:
    script = "import sys, headway.data.loading.loader, headway.data.loading.text; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


# Sentences


def sentences(made: Path, **options: Any) -> SentenceFeed:
    return SentenceFeed([Rows(str(made / "text"), "train")], **{"tokens": 400, "training": True, "seed": 5} | options)


def test_every_sentence_comes_once_an_epoch_in_another_order(made: Path) -> None:
    feed = sentences(made)
    assert sorted(epoch_rows(feed, 0)) == sorted(epoch_rows(feed, 1)) == list(range(200))
    assert epoch_rows(feed, 0) != epoch_rows(feed, 1)


def test_batches_hold_the_tokens_asked_for_and_little_padding(made: Path) -> None:
    feed = sentences(made)
    padding = total = 0
    for step in range(len(feed)):
        batch = feed.batch(0, step, 0, 1)
        assert batch["target"].numel() <= 400
        padding += int((batch["target"] == PAD).sum())
        total += batch["target"].numel()
    assert padding / total < 0.1


def test_sentences_are_framed_and_padded(made: Path) -> None:
    rows = Rows(str(made / "text"), "train")
    batch = sentences(made).batch(0, 3, 0, 1)
    for at, row in enumerate(batch["row"].tolist()):
        target = rows.cell("target_ids", row).tolist()
        assert batch["target"][at].tolist()[: len(target) + 2] == [START, *target, END]
        source = rows.cell("source_ids", row).tolist()
        assert batch["source"][at].tolist()[: len(source) + 1] == [*source, END]


def test_parts_of_a_batch_of_sentences_make_the_whole(made: Path) -> None:
    feed = sentences(made)
    for step in range(0, len(feed), 3):
        whole = feed.indices(4, step)
        assert [row for part in range(3) for row in feed.indices(4, step, part, 3)] == whole


def test_sentences_that_are_too_long_are_left_out_and_counted(made: Path) -> None:
    feed = sentences(made, max_length=12)
    assert feed.left_out > 0
    assert len(epoch_rows(feed, 0)) == 200 - feed.left_out
    with pytest.raises(BadInput, match="longer than 2"):
        sentences(made, max_length=2)


def test_evaluation_of_sentences_is_the_same_each_time(made: Path) -> None:
    feed = sentences(made, training=False)
    assert epoch_rows(feed, 0) == epoch_rows(feed, 5)
    assert sorted(epoch_rows(feed, 0)) == list(range(200))


def test_sources_of_sentences_are_mixed_by_weight(made: Path) -> None:
    one, two = Rows(str(made / "text"), "train"), Rows(str(made / "text"), "train", limit=50)
    feed = SentenceFeed([WeightedSource(one, 1.0), WeightedSource(two, 1.0)], 400, training=True, seed=1)
    rows = np.array(epoch_rows(feed, 0))
    assert abs((rows >= 200).mean() - 0.5) < 0.05
    assert len(rows) == pytest.approx(250, abs=10)


def test_asking_ahead_is_not_slower_than_asking(made: Path) -> None:
    """Batches that were begun ahead are handed over, not made again."""
    feed = feed_of(made, ahead=2)
    begun: list[Any] = []
    begin = feed._prefetcher._begin
    feed._prefetcher._begin = lambda key: begun.append(key) or begin(key)  # type: ignore[func-returns-value]
    for step in range(4):
        feed.batch(0, step, 0, 1)
    assert begun == [(0, step, 0, 1) for step in range(6)]
