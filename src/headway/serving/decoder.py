"""Decode images of untrusted clients: the program of a decoder process, which the server may kill at any time.

Imports Pillow and the standard library alone, so that a new process is ready in a tenth of a second.
`python -m headway.serving.decoder FD` reads frames from a socket: `>QQ` (bytes, most pixels) and the file. It answers
`>HQQ` (200, width, height) and the RGB pixels, or (status, bytes, 0) and a message.
"""

from __future__ import annotations

import io
import resource
import socket
import struct
import sys
import warnings
from typing import Any, Final

from PIL import Image, ImageOps, UnidentifiedImageError

REQUEST: Final = struct.Struct(">QQ")
ANSWER: Final = struct.Struct(">HQQ")
OK: Final = 200

# Formats whose decoders are maintained against hostile files; Pillow knows many more.
FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
# Each scan of a progressive JPEG is one pass over all pixels, and takes twenty bytes.
_MOST_SCANS: Final = 200
_ROWS: Final = 256  # sent at once
_BYTES_PER_PIXEL: Final = 16  # decoded, turned upright, without transparency: copies of 4 bytes each


class BadImage(Exception):
    """The image is refused: an HTTP status, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def size_of(body: bytes, most: int) -> int:
    """Return the number of pixels that the header claims. Decodes nothing. Raises BadImage."""
    with _Errors(), Image.open(io.BytesIO(body), formats=FORMATS) as file:
        return _checked_size(file, body, most)


def decode(body: bytes, most: int) -> Any:
    """Return the upright RGB image, without transparency. Raises BadImage."""
    with _Errors(), Image.open(io.BytesIO(body), formats=FORMATS) as file:
        _checked_size(file, body, most)
        image = ImageOps.exif_transpose(file)
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            white = Image.new("RGB", image.size, (255, 255, 255))
            white.paste(image, mask=image.getchannel("A"))
            return white
        return image.convert("RGB")


def _checked_size(file: Any, body: bytes, most: int) -> int:
    width, height = file.size
    if width * height > most:
        limit = f"at most {most // 1_000_000} million are allowed"
        raise BadImage(413, f"the image has {width} × {height} pixels: {limit}")
    if file.format in ("JPEG", "MPO") and body.count(b"\xff\xda") > _MOST_SCANS:
        raise BadImage(413, f"the image has more than {_MOST_SCANS} scans")
    return int(width * height)


class _Errors:
    """Turn whatever Pillow raises for a bad file into BadImage."""

    def __enter__(self) -> None:
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.simplefilter("ignore")  # Pillow warns of bombs and of damage, which are errors below

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._caught.__exit__(None, None, None)
        if isinstance(error, UnidentifiedImageError):
            raise BadImage(400, f"this is not an image; supported formats: {', '.join(FORMATS)}") from None
        if isinstance(error, Image.DecompressionBombError | MemoryError):
            raise BadImage(413, "this image is too large") from None
        if isinstance(error, OSError | SyntaxError | ValueError | IndexError | KeyError | TypeError | EOFError):
            raise BadImage(400, f"this image is damaged: {error}") from None


def main() -> None:
    """Answer requests until the socket is closed."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    stream = connection.makefile("rwb")
    while header := stream.read(REQUEST.size):
        length, most = REQUEST.unpack(header)
        _limit_memory(length, most)
        try:
            _send(stream, decode(stream.read(length), most))
        except BadImage as refusal:
            message = refusal.reason.encode()
            stream.write(ANSWER.pack(refusal.status, len(message), 0) + message)
        stream.flush()


def _send(stream: Any, image: Any) -> None:
    stream.write(ANSWER.pack(OK, *image.size))
    for top in range(0, image.height, _ROWS):
        stream.write(image.crop((0, top, image.width, min(top + _ROWS, image.height))).tobytes())


def _limit_memory(length: int, most: int) -> None:
    """Allow what the largest permitted image needs, beyond what the process has now."""
    try:
        with open("/proc/self/statm", "rb") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:  # not Linux
        return
    most_bytes = now + 2 * length + _BYTES_PER_PIXEL * most + (64 << 20)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, hard))


if __name__ == "__main__":
    main()
