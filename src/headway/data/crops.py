"""From a stored picture to its place in a batch: decoded, cropped and mirrored, without a copy more than needed."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.errors import BadInput

Bytes = NDArray[np.uint8]

_scratch = threading.local()  # each thread decodes into memory of its own, used again


def put_raw(source: Bytes, place: Bytes, top: float, left: float, mirror: bool) -> None:
    """The window of `source` that lies `top` and `left` (0 … 1) of the room there is."""
    height, width = place.shape[:2]
    y, x = int(top * (source.shape[0] - height + 1)), int(left * (source.shape[1] - width + 1))
    window = source[y : y + height, x : x + width]
    if not mirror:
        place[...] = window
        return
    for channel in range(3):  # three strided copies: numpy reverses runs of three bytes more slowly
        place[:, :, channel] = window[:, ::-1, channel]


def put_jpeg(body: Any, place: Bytes, top: float, left: float, mirror: bool) -> None:
    pixels = decode_jpeg(body)
    height, width = place.shape[:2]
    if pixels.shape[0] < height or pixels.shape[1] < width:
        pixels = enlarged(pixels, height, width)
    put_raw(pixels, place, top, left, mirror)


def decode_jpeg(body: Any) -> Bytes:
    """Into this thread's memory: valid until its next picture."""
    import simplejpeg  # type: ignore[import-untyped]

    height, width, _, _ = simplejpeg.decode_jpeg_header(body)
    need = height * width * 3
    memory: bytearray | None = getattr(_scratch, "memory", None)
    if memory is None or len(memory) < need:
        memory = _scratch.memory = bytearray(need)
    pixels: Bytes = simplejpeg.decode_jpeg(body, "RGB", buffer=memory)
    return pixels


def enlarged(pixels: Bytes, height: int, width: int) -> Bytes:
    """At least so large on both sides, with its aspect."""
    from PIL import Image

    scale = max(height / pixels.shape[0], width / pixels.shape[1])
    to = max(width, round(pixels.shape[1] * scale)), max(height, round(pixels.shape[0] * scale))
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize(to, Image.Resampling.BICUBIC))


def check_crop(stored: tuple[int, int], crop: tuple[int, int]) -> None:
    if stored[0] < crop[0] or stored[1] < crop[1]:
        raise BadInput(
            f"a crop of {crop[0]} × {crop[1]} does not fit into the stored {stored[0]} × {stored[1]} pixels",
            fix=f"choose a crop of at most {min(stored)}, or prepare the data with a larger --size",
        )
