from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from headway.data.prepare.images import BadPicture, Shape, decode, encode_jpeg, perceptual_hash, readable
from tests.data.made_pictures import jpeg, photograph, psnr, saved

AS_IS = Shape(None)


@pytest.mark.parametrize(
    ("width", "height", "options"),
    [
        (640, 480, {}),
        (480, 640, {"subsampling": 0}),
        (1632, 1224, {}),
        (1224, 1632, {"progressive": True}),
        (2048, 1365, {"quality": 75}),
        (1500, 1125, {}),  # no eighth of it but the whole is a whole number of pixels
        (1279, 1705, {}),
    ],
)
def test_the_result_is_within_45_db_of_lanczos_on_the_full_picture(
    width: int, height: int, options: dict[str, object]
) -> None:
    body = jpeg(photograph(width, height), **options)
    ours = decode(body, Shape(256)).pixels
    full = Image.open(io.BytesIO(body)).convert("RGB")
    best = full.resize((ours.shape[1], ours.shape[0]), Image.Resampling.LANCZOS)
    assert min(ours.shape[:2]) == 256
    assert psnr(ours, np.asarray(best)) > 45


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("shape", [AS_IS, Shape(64), Shape(64, "crop")])
def test_pictures_come_out_upright(turn: int, shape: Shape) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    body = jpeg(photograph(200, 120, turn), exif=exif, subsampling=0)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(body)))
    ours, theirs = decode(body, shape), decode(saved(upright, "PNG"), shape)
    assert (ours.width, ours.height) == upright.size
    assert ours.pixels.shape == theirs.pixels.shape
    assert psnr(ours.pixels, theirs.pixels) > 38


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (Shape(100), (100, 150)),
        (Shape(100, "crop"), (100, 100)),
        (Shape(100, "squash"), (100, 100)),
        (Shape(100, "pad"), (100, 100)),
        (Shape(400), (400, 600)),
        (AS_IS, (200, 300)),
    ],
)
def test_pictures_are_brought_to_the_shape_asked_for(shape: Shape, expected: tuple[int, int]) -> None:
    assert decode(jpeg(photograph(300, 200)), shape).pixels.shape == (*expected, 3)


def test_padding_is_black_and_keeps_the_whole_picture() -> None:
    white = Image.new("RGB", (300, 100), "white")
    pixels = decode(saved(white, "PNG"), Shape(90, "pad")).pixels
    assert pixels[:30].max() == 0
    assert pixels[30:60].min() == 255
    assert pixels[60:].max() == 0


def test_the_narrowest_picture_survives() -> None:
    assert decode(saved(Image.new("RGB", (2000, 1)), "PNG"), Shape(16, "crop")).pixels.shape == (16, 16, 3)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [(mode, kind) for kind in ("PNG", "TIFF") for mode in ("L", "P", "1", "LA", "RGBA")]
    + [("CMYK", "TIFF"), ("CMYK", "JPEG"), ("L", "JPEG"), ("1", "JPEG")],
)
def test_every_colour_mode_becomes_rgb(mode: str, kind: str) -> None:
    picture = photograph(40, 30).convert(mode)
    expected = np.asarray(picture.convert("RGB"))
    assert np.abs(decode(saved(picture, kind), AS_IS).pixels.astype(int) - expected).mean() < (
        6 if kind == "JPEG" else 0.01
    )


def test_sixteen_bits_keep_their_upper_eight() -> None:
    deep = (np.arange(256, dtype=np.uint16)[None, :] * 257).repeat(4, 0)
    pixels = decode(saved(Image.fromarray(deep), "PNG"), AS_IS).pixels
    assert np.array_equal(pixels[0, :, 0], np.arange(256))


def test_what_is_transparent_is_white() -> None:
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert decode(saved(clear, "PNG"), AS_IS).pixels.min() == 255
    palette = Image.new("P", (4, 4), 0)
    body = io.BytesIO()
    palette.save(body, "PNG", transparency=0)
    assert decode(body.getvalue(), AS_IS).pixels.min() == 255


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.99])
def test_a_truncated_picture_is_caught(keep: float) -> None:
    for body in (jpeg(photograph(300, 200)), saved(photograph(300, 200), "PNG")):
        with pytest.raises(BadPicture):
            decode(body[: int(len(body) * keep)], Shape(64))


@pytest.mark.parametrize("body", [b"", b"\xff\xd8", b"\xff\xd8" + b"0" * 500, b"<html>not found</html>", b"GIF89a"])
def test_what_is_no_picture_is_caught(body: bytes) -> None:
    with pytest.raises(BadPicture):
        decode(body, Shape(64))


def test_noise_in_a_jpeg_is_a_bad_picture_or_pixels_but_never_another_error() -> None:
    body, random = jpeg(photograph(120, 80)), np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(body)
        for at in random.integers(2, len(body), 3):
            broken[at] = int(random.integers(0, 256))
        try:
            decode(bytes(broken), Shape(32))
        except BadPicture:
            pass


def test_extra_bytes_between_segments_do_no_harm() -> None:
    body = jpeg(photograph(64, 48))
    pixels = decode(body[:-2] + b"\x00" * 7 + body[-2:], AS_IS).pixels
    assert np.array_equal(pixels, decode(body, AS_IS).pixels)


def test_a_picture_that_claims_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    header = struct.pack(">IIBBBBB", 10_000, 10_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    body = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    body += struct.pack(">I", 400) + b"IDAT" + bytes(404)
    with pytest.raises(BadPicture, match="100 megapixels, more than the limit of 64"):
        decode(body, Shape(64))
    jpeg_body = bytearray(jpeg(photograph(64, 48)))
    at = jpeg_body.index(b"\xff\xc0")
    jpeg_body[at + 5 : at + 9] = struct.pack(">HH", 60_000, 60_000)
    with pytest.raises(BadPicture, match="megapixels"):
        decode(bytes(jpeg_body), Shape(64))


def test_the_perceptual_hash_survives_rescaling_and_encoding_but_not_another_picture() -> None:
    def distance(a: int | None, b: int | None) -> int:
        assert a is not None
        assert b is not None
        return (a ^ b).bit_count()

    first, second = photograph(640, 480, 1), photograph(640, 480, 2)
    small = decode(jpeg(first, quality=60), Shape(256)).pixels
    smaller = decode(jpeg(first.resize((320, 240))), Shape(128)).pixels
    other = decode(jpeg(second), Shape(256)).pixels
    assert distance(perceptual_hash(small), perceptual_hash(smaller)) <= 3
    assert distance(perceptual_hash(small), perceptual_hash(other)) > 12
    assert perceptual_hash(np.full((64, 64, 3), 7, np.uint8)) is None


def test_encoded_pictures_decode_to_nearly_the_same() -> None:
    pixels = np.asarray(photograph(256, 256))
    assert psnr(decode(encode_jpeg(pixels, 90), AS_IS).pixels, pixels) > 26
    assert psnr(decode(encode_jpeg(pixels, 98), AS_IS).pixels, pixels) > 34


def test_a_format_that_this_pillow_lacks_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    readable.cache_clear()
    Image.init()
    monkeypatch.delitem(Image.OPEN, "AVIF", raising=False)
    try:
        assert decode(saved(photograph(40, 30), "TGA"), AS_IS).width == 40
        with pytest.raises(BadPicture, match="not a picture"):
            decode(b"neither this nor that, for certain", AS_IS)
    finally:
        readable.cache_clear()
