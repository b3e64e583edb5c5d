"""Validate and decode the inputs of a request; errors carry a JSON pointer to the offending value."""

from __future__ import annotations

import base64
import binascii
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from headway.artifacts.predictor import Field, Instance, PredictionError, bad_request
from headway.serving.fetching import Fetch

# Limits per request. Exceeding one is refused before it costs anything.


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    body: int = 20_000_000  # bytes of a request
    pixels: int = 40_000_000  # of a picture, as its header claims, before it is decoded
    instances: int = 64  # in a request
    text: int = 5_000  # characters
    batch: int = 32  # instances given to the model at once
    queue: int = 256  # instances that wait; more are refused with 429
    seconds: float = 30.0  # until a request is answered with 504


# Images from untrusted clients: the header is checked before any pixel is decoded.


# Formats whose decoders are maintained against hostile files; Pillow knows many more.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def decode_picture(body: bytes, *, pixels: int, at: str) -> NDArray[np.uint8]:
    """Decode an image to upright RGB pixels (height, width, 3).

    Raises PredictionError if it is no image, damaged or too large.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of bombs and of damage, which are handled below
            with Image.open(io.BytesIO(body), formats=_FORMATS) as file:
                width, height = file.size
                if width * height > pixels:
                    limit = f"at most {pixels // 1_000_000} million are allowed"
                    raise PredictionError(413, f"the image has {width} × {height} pixels: {limit}", at=at)
                return _upright(file)
    except UnidentifiedImageError:
        raise bad_request(f"this is not an image; supported formats: {', '.join(_FORMATS)}", at) from None
    except (Image.DecompressionBombError, MemoryError):
        raise PredictionError(413, "this image is too large", at=at) from None
    except (OSError, SyntaxError, ValueError, IndexError, KeyError, TypeError, EOFError) as error:
        raise bad_request(f"this image is damaged: {error}", at) from None


def _upright(file: Any) -> NDArray[np.uint8]:
    rotated = ImageOps.exif_transpose(file)
    if rotated.mode in ("RGBA", "LA", "PA") or "transparency" in rotated.info:
        rotated = rotated.convert("RGBA")
        white = Image.new("RGBA", rotated.size, (255, 255, 255, 255))
        rotated = Image.alpha_composite(white, rotated)
    return np.asarray(rotated.convert("RGB"))


# Matches text that is not blank in both Python and JavaScript, whose \s differ.
HAS_LETTERS = "[^\\s\\u001c-\\u001f\\u0085\\ufeff]"


class Reader:
    """Reads the instances of one service. `fetch` is set if image URLs are allowed."""

    def __init__(self, fields: Sequence[Field], limits: Limits, fetch: Fetch | None = None) -> None:
        self._fields = {field.name: field for field in fields}
        self._limits, self._fetch = limits, fetch

    def instances_of(self, body: Any) -> list[Mapping[str, Any]]:
        """Return the list in `{"instances": […]}`, each element an object. Values are not checked yet."""
        if not isinstance(body, dict) or not isinstance(body.get("instances"), list):
            raise bad_request('the body must be an object with a list "instances"')
        instances = body["instances"]
        if not instances:
            raise bad_request("there are no instances", "/instances")
        if len(instances) > self._limits.instances:
            message = f"{len(instances)} instances: at most {self._limits.instances} are allowed per request"
            raise PredictionError(413, message, at="/instances")
        return [self._as_object(each, f"/instances/{number}") for number, each in enumerate(instances)]

    def _as_object(self, instance: Any, at: str) -> Mapping[str, Any]:
        required = [field.name for field in self._fields.values() if field.required]
        if isinstance(instance, str) and len(required) == 1:
            instance = {required[0]: instance}  # short form, if there is only one required field
        if not isinstance(instance, dict):
            raise bad_request(f"an instance must be an object with {self._named()}", at)
        unknown = sorted(set(instance) - set(self._fields))
        if unknown:
            raise bad_request(f"this model has no input {unknown[0]!r}: an instance has {self._named()}", at)
        for name in required:
            if name not in instance:
                raise bad_request(f"{name!r} is missing: an instance has {self._named()}", at)
        return instance

    def read(self, instance: Mapping[str, Any], at: str) -> Instance:
        """Decode the images and text of one instance. Run it in a thread: decoding images takes time."""
        return {name: self._value(self._fields[name], value, f"{at}/{name}") for name, value in instance.items()}

    def _value(self, field: Field, value: Any, at: str) -> Any:
        if field.kind == "text":
            return self._text(value, at)
        body = value if isinstance(value, bytes) else self._bytes(value, at)
        return decode_picture(body, pixels=self._limits.pixels, at=at)

    def _text(self, value: Any, at: str) -> str:
        if not isinstance(value, str) or not re.search(HAS_LETTERS, value):
            raise bad_request("the text is empty", at)
        if len(value) > self._limits.text:
            raise PredictionError(413, f"{len(value)} characters: at most {self._limits.text} are allowed", at=at)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise bad_request("this text is not valid Unicode", at) from None
        return value

    def _bytes(self, value: Any, at: str) -> bytes:
        if isinstance(value, dict) and set(value) == {"b64"}:
            value = value["b64"]  # as in TensorFlow Serving
        if not isinstance(value, str):
            raise bad_request("an image must be a base64 string", at)
        if value.startswith(("http://", "https://")):
            if self._fetch is None:
                raise bad_request("this server does not fetch URLs: send the image as base64", at)
            return self._fetch(value, at)
        if value.startswith("data:"):
            value = value.partition(",")[2]
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise bad_request("this is not base64", at) from None

    def _named(self) -> str:
        return " and ".join(f"{name!r}" for name in self._fields)
