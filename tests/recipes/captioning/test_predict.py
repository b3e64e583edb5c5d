"""Captioning picture files with a bundle: any picture that is one, and a clear word about anything else."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
import torch
from PIL import Image

from headway.artifacts.evaluate import predict
from headway.artifacts.media import open_picture
from headway.bundle.format import Bundle, BundleParts
from headway.core.errors import BAD_INPUT, BadBundle, BadInput
from headway.data.synthetic import scenes
from headway.recipes.captioning.beam_search import caption
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.inference import Predictor, bundle
from headway.recipes.common import center_crop
from tests.recipes.captioning.test_model import WORDS, captioner
from tests.recipes.folders import TINY, captioning_job


def exported(folder: Path, **changes: object) -> Path:
    made = bundle(captioner(), Config(**TINY), captioning_job(), {"bleu_4": 0.5})
    BundleParts(**{**made.__dict__, **changes}).write(folder)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(exported(tmp_path / "bundle"))


def test_a_bundle_says_what_the_model_said_that_it_was_made_from(model: str, tmp_path: Path) -> None:
    paths = [str(path) for path in scenes.write_examples(tmp_path, 3)]
    pictures = torch.stack([center_crop(open_picture(path), 32) for path in paths])
    rows = caption(captioner().eval(), pictures, max_length=20, beam=3)
    answers = predict(model, paths)
    assert [answer["text"] for answer in answers] == [WORDS.decode(row) for row in rows.tolist()]
    assert [answer["input"] for answer in answers] == paths


def test_more_pictures_than_fit_at_once_are_all_answered_in_order(model: str, tmp_path: Path) -> None:
    paths = [str(path) for path in scenes.write_examples(tmp_path, 3)] * 30
    answers = predict(model, paths)
    assert [answer["input"] for answer in answers] == paths
    assert answers[:3] == answers[-3:]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
@pytest.mark.parametrize("size", [(64, 64), (300, 100), (1, 1)])
def test_any_kind_of_picture_is_captioned(model: str, tmp_path: Path, mode: str, size: tuple[int, int]) -> None:
    path = tmp_path / ("picture.tiff" if mode in ("CMYK", "I;16") else "picture.png")
    Image.new(mode, size).save(path)
    assert isinstance(predict(model, [str(path)])[0]["text"], str)


def test_the_middle_of_a_picture_is_taken_upright(tmp_path: Path) -> None:
    wide = Image.new("RGB", (90, 30), "red")
    wide.paste("blue", (30, 0, 60, 30))
    exif = Image.Exif()
    exif[0x0112] = 6
    wide.save(tmp_path / "wide.png", exif=exif)
    pixels = center_crop(open_picture(str(tmp_path / "wide.png")), 32)
    assert pixels.shape == (3, 32, 32)
    assert (pixels[2, 8:24, 8:24] == 255).all()


def bomb() -> bytes:
    """A PNG of a few bytes that claims 60,000 by 60,000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def picture_bytes(tmp_path: Path) -> bytes:
    (path,) = scenes.write_examples(tmp_path / "whole", 1)
    return path.read_bytes()


@pytest.mark.parametrize("harm", ["text", "empty", "bomb", "truncated", "folder", "missing"])
def test_what_is_not_a_picture_is_bad_input_with_a_fix(model: str, tmp_path: Path, harm: str) -> None:
    path = tmp_path / "input.png"
    bodies = {"text": b"hello", "empty": b"", "bomb": bomb(), "truncated": picture_bytes(tmp_path)[:-900]}
    if harm == "folder":
        path.mkdir()
    elif harm != "missing":
        path.write_bytes(bodies[harm])
    with pytest.raises(BadInput) as caught:
        predict(model, [str(path)])
    assert str(path) in caught.value.problem.what
    assert caught.value.problem.fix
    assert caught.value.exit_code == BAD_INPUT


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = exported(tmp_path / "other", weights={"decoder.strange": torch.zeros(1)})
    with pytest.raises(BadBundle, match="do not fit"):
        Predictor(Bundle.open(str(folder)))


def test_a_bundle_of_an_unknown_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="'divination'"):
        predict(str(exported(tmp_path / "other", recipe="divination")), [])


def test_the_card_says_what_it_is_how_good_and_how_to_use_it(model: str) -> None:
    card = (Path(model) / "README.md").read_text()
    for words in ("# captions", "bleu_4 | 0.5000", "headway predict", "builtin:scenes", "seed 3", "## Licence"):
        assert words in card
