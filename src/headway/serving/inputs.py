"""Validate and decode the inputs of a request; errors carry a JSON pointer to the offending value."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.artifacts.media import decode_wav
from headway.artifacts.predictor import Field, PredictionError, bad_request
from headway.model import Audio, Input, Row
from headway.model.values import parse
from headway.serving import decoder
from headway.serving.decoding import Encoded

# Limits per request. Exceeding one is refused before it costs anything.


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    body: int = 20_000_000  # bytes of a request
    pixels: int = 40_000_000  # of a picture, as its header claims, before it is decoded
    request_pixels: int = 100_000_000  # of all pictures of a request
    pixels_in_all: int = 400_000_000  # of all requests that are being decoded; more are refused with 429
    bytes_in_all: int = 200_000_000  # of all bodies that are being received or decoded; more are refused with 503
    connections: int = 2048
    instances: int = 64  # in a request
    text: int = 5_000  # characters
    batch: int = 32  # instances given to the model at once
    queue: int = 256  # instances that wait; more are refused with 429
    seconds: float = 30.0  # until a request is answered with 504


def check_image(body: bytes, *, pixels: int, at: str) -> Encoded:
    """Check the header of an image; decode nothing. Raises PredictionError if it is no image, or too large."""
    try:
        return Encoded(body, decoder.size_of(body, pixels), at)
    except decoder.BadImage as refusal:
        raise PredictionError(refusal.status, refusal.reason, at=at) from None


def decode_picture(body: bytes, *, pixels: int, at: str) -> NDArray[np.uint8]:
    """Decode an image in this process to upright RGB pixels (height, width, 3).

    Raises PredictionError if it is no image, damaged or too large.
    """
    try:
        return np.asarray(decoder.decode(body, pixels))
    except decoder.BadImage as refusal:
        raise PredictionError(refusal.status, refusal.reason, at=at) from None


@dataclass(frozen=True, slots=True)
class Unfetched:
    """A URL of an image that is still to be fetched."""

    url: str
    at: str


Value = str | Encoded | Unfetched


def pixels_of(values: Mapping[str, Value]) -> int:
    return sum(value.pixels for value in values.values() if isinstance(value, Encoded))


# Matches text that is not blank in both Python and JavaScript, whose \s differ.
HAS_LETTERS = "[^\\s\\u001c-\\u001f\\u0085\\ufeff]"


class Reader:
    """Reads the instances of one service. With `urls`, an image may be a URL."""

    def __init__(self, fields: Sequence[Field], limits: Limits, *, urls: bool = False) -> None:
        self._fields = {field.name: field for field in fields}
        self._limits, self._urls = limits, urls

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
        if len(required) == 1 and self._is_short_form(required[0], instance):
            instance = {required[0]: instance}
        if not isinstance(instance, dict):
            raise bad_request(f"an instance must be an object with {self._named()}", at)
        unknown = sorted(set(instance) - set(self._fields))
        if unknown:
            raise bad_request(f"this model has no input {unknown[0]!r}: an instance has {self._named()}", at)
        for name in required:
            if name not in instance:
                raise bad_request(f"{name!r} is missing: an instance has {self._named()}", at)
        return instance

    def _is_short_form(self, only: str, instance: Any) -> bool:
        """Whether an instance is the value of the only required field, instead of an object with its name."""
        declared = self._fields[only].declared
        if isinstance(declared, Row):
            return isinstance(instance, dict) and only not in instance and bool(set(instance) & set(declared.typed))
        if self._fields[only].kind == "value" and not isinstance(declared, Audio):
            return not isinstance(instance, dict)
        return isinstance(instance, str)

    def from_form(self, instance: Mapping[str, Any]) -> dict[str, Any]:
        """Parse the fields of an HTML form that are neither text nor files: they hold JSON."""
        made = dict(instance)
        for name, field in self._fields.items():
            value = made.get(name)
            if field.kind == "value" and isinstance(value, str) and not isinstance(field.declared, Audio):
                try:
                    made[name] = json.loads(value)
                except (ValueError, RecursionError):
                    raise bad_request("the field is not JSON", f"/instances/0/{name}") from None
        return made

    def read(self, instances: Sequence[Mapping[str, Any]]) -> list[dict[str, Value]]:
        """Check the text and the headers of the images; decode none. Run it in a thread if the request is large."""
        read: list[dict[str, Value]] = []
        pixels = 0
        for number, each in enumerate(instances):
            at = f"/instances/{number}"
            read.append({name: self._value(self._fields[name], value, f"{at}/{name}") for name, value in each.items()})
            pixels += pixels_of(read[-1])
            self.check_pixels(pixels)  # before the headers of the others are read
        return read

    def check_pixels(self, pixels: int) -> None:
        """Raise PredictionError if the images of a request have too many pixels together."""
        most = self._limits.request_pixels
        if pixels > most:
            detail = f"the images have more than {most // 1_000_000} million pixels together, the most of a request"
            raise PredictionError(413, detail, at="/instances")

    def _value(self, field: Field, value: Any, at: str) -> Value:
        if field.kind == "text":
            return self._text(value, at)
        if field.declared is not None and field.kind == "value":
            declared: Value = self._declared(field.declared, value, at)
            return declared
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            if not self._urls:
                raise bad_request("this server does not fetch URLs: send the file as base64", at)
            return Unfetched(value, at)
        body = value if isinstance(value, bytes) else self._bytes(value, at)
        return check_image(body, pixels=self._limits.pixels, at=at)

    def _declared(self, declared: Input, value: Any, at: str) -> Any:
        try:
            if isinstance(declared, Audio):
                return decode_wav(value if isinstance(value, bytes) else self._bytes(value, at), declared.rate)
            return parse(declared, value)
        except ValueError as error:
            raise bad_request(str(error), at) from None

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
            raise bad_request("a file must be a base64 string", at)
        if value.startswith("data:"):
            value = value.partition(",")[2]
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise bad_request("this is not base64", at) from None

    def _named(self) -> str:
        return " and ".join(f"{name!r}" for name in self._fields)
