"""Features on disk: what the encoder sees, computed once, whoever asks and however often it is killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from headway.recipes.captioning import data as module
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import Drawn, Features, Pictures, encoded_views, features, load, vocabulary
from headway.recipes.captioning.evaluate import choose_search, evaluate
from headway.recipes.captioning.model import Captioner, PretrainedEncoder
from headway.spec.model import Cache, Data

CFG = Config(encoder="resnet18", weights="none", image_size=64)
CPU = torch.device("cpu")
COUNT = 10


@pytest.fixture(scope="module")
def encoder() -> PretrainedEncoder:
    torch.manual_seed(0)
    return PretrainedEncoder(CFG)


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 64, 64, 3), dtype=np.uint8)
    return Pictures(name="noise", pixels=Drawn(pixels), references=[("a b",)] * COUNT)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 4)
    monkeypatch.setattr(module, "_ENCODE_BATCH", 2)


def made(encoder: PretrainedEncoder, pictures: Pictures, folder: Path, *, mirrored: bool = False) -> Features:
    return features(encoder, pictures, Cache(dir=str(folder)), mirrored=mirrored, device=CPU)


def count_pictures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures the encoder is shown from now on."""
    shown: list[int] = []
    forward = PretrainedEncoder.forward

    def counted(self: PretrainedEncoder, pixels: torch.Tensor) -> torch.Tensor:
        shown.append(len(pixels))
        return forward(self, pixels)

    monkeypatch.setattr(PretrainedEncoder, "forward", counted)
    return shown


def test_they_are_what_the_encoder_sees(encoder: PretrainedEncoder, pictures: Pictures, tmp_path: Path) -> None:
    found = made(encoder, pictures, tmp_path, mirrored=True)
    rows, flip = np.array([7, 2, 2]), np.array([False, True, False])
    with torch.no_grad():
        wanted = encoder(pictures.pixels.read(rows, flip))
    read = found.read(rows, flip)
    assert read.dtype == torch.float16
    torch.testing.assert_close(read.float(), wanted, rtol=2e-3, atol=1e-3)


def test_they_are_computed_once(
    encoder: PretrainedEncoder, pictures: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = made(encoder, pictures, tmp_path).read(np.arange(COUNT))
    shown = count_pictures(monkeypatch)
    assert torch.equal(made(encoder, pictures, tmp_path).read(np.arange(COUNT)), first)
    assert shown == []


def test_many_who_ask_at_once_wait_for_one(
    encoder: PretrainedEncoder, pictures: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = count_pictures(monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(made, encoder, pictures, tmp_path) for _ in range(4)]
        read = [one.result().read(np.arange(COUNT)) for one in asked]
    assert all(torch.equal(one, read[0]) for one in read)
    assert COUNT <= sum(shown) <= COUNT + 3  # one more a piece, which folds the encoder
    assert len(list((tmp_path / "features").glob("*.f16"))) == 1


def test_a_killed_writer_is_gone_on_from(
    encoder: PretrainedEncoder, pictures: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made(encoder, pictures, tmp_path / "whole").read(np.arange(COUNT))
    (path,) = (tmp_path / "whole" / "features").glob("*.f16")
    body = path.read_bytes()
    part = tmp_path / "killed" / "features" / path.with_suffix(".part").name
    part.parent.mkdir(parents=True)
    part.write_bytes(body[: len(body) * 6 // 10 + 5])  # six pictures and a bit: a whole piece, and part of the next
    shown = count_pictures(monkeypatch)
    found = made(encoder, pictures, tmp_path / "killed").read(np.arange(COUNT))
    assert torch.equal(found, whole)
    assert sum(shown) <= COUNT - 4 + 2
    assert not part.exists()


def test_other_weights_other_pictures_and_mirrors_are_kept_apart(
    encoder: PretrainedEncoder, pictures: Pictures, tmp_path: Path
) -> None:
    made(encoder, pictures, tmp_path)
    made(encoder, pictures, tmp_path, mirrored=True)
    made(PretrainedEncoder(CFG), pictures, tmp_path)
    other = Pictures(name="black", pixels=Drawn(np.zeros((COUNT, 64, 64, 3), np.uint8)), references=[("a",)] * COUNT)
    made(encoder, other, tmp_path)
    assert len(list((tmp_path / "features").glob("*.f16"))) == 4


def test_the_number_of_threads_changes_nothing(encoder: PretrainedEncoder, pictures: Pictures, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(made(encoder, pictures, tmp_path / str(threads)).read(np.arange(COUNT)))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_an_evaluation_reads_what_training_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = Config(encoder="resnet18", weights="none", image_size=64, decoder="lstm", test_samples=8, val_samples=8)
    cache = Cache(dir=str(tmp_path))
    model = Captioner(cfg, vocabulary(cfg, load(cfg, Data(), "test"))).eval()
    encoded_views(model.encoder, load(cfg, Data(), "test"), cache)  # as training does
    shown = count_pictures(monkeypatch)
    found = evaluate(model, cfg, Data(), "test", cache=cache)
    choose_search(model, cfg, Data(), split="test", cache=cache)
    assert shown == []
    assert evaluate(model, cfg, Data(), "test").metrics == pytest.approx(dict(found.metrics), abs=0.05)
    assert sum(shown) == 8  # without a cache the encoder looks


def test_an_encoder_that_learns_is_shown_the_pictures(
    encoder: PretrainedEncoder, pictures: Pictures, tmp_path: Path
) -> None:
    rows = np.arange(3)
    looked = encoded_views(encoder, [pictures], Cache(dir=str(tmp_path)), learns=True).read(rows)
    assert torch.equal(looked, pictures.pixels.read(rows))
    assert not list(tmp_path.rglob("*.f16"))
