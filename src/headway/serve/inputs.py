"""From what a client sends to what a model takes: every instance checked, with a pointer to what is wrong in it."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headway.serve.limits import Limits
from headway.serve.pictures import decode_picture
from headway.serve.problems import Refusal, bad_request
from headway.serve.service import Field, Instance

# Text that is more than blanks: of Python's and of JavaScript's, whose \s are not the same.
SAYS_SOMETHING = "[^\\s\\u001c-\\u001f\\u0085\\ufeff]"
Fetch = Callable[[str, str], bytes]  # (address, pointer) -> body


class Reader:
    """Reads instances for one service. `fetch` is there where addresses are allowed."""

    def __init__(self, fields: Sequence[Field], limits: Limits, fetch: Fetch | None = None) -> None:
        self._fields = {field.name: field for field in fields}
        self._limits, self._fetch = limits, fetch

    def instances_of(self, body: Any) -> list[Mapping[str, Any]]:
        """The list in `{"instances": […]}`, every element an object. Values are not looked at yet."""
        if not isinstance(body, dict) or not isinstance(body.get("instances"), list):
            raise bad_request('the body must be an object with a list "instances"')
        instances = body["instances"]
        if not instances:
            raise bad_request("there are no instances", "/instances")
        if len(instances) > self._limits.instances:
            told = f"{len(instances)} instances: at most {self._limits.instances} are taken at once"
            raise Refusal(413, told, at="/instances")
        return [self._as_object(each, f"/instances/{number}") for number, each in enumerate(instances)]

    def _as_object(self, instance: Any, at: str) -> Mapping[str, Any]:
        required = [field.name for field in self._fields.values() if field.required]
        if isinstance(instance, str) and len(required) == 1:
            instance = {required[0]: instance}  # the short form, where there is but one thing it can mean
        if not isinstance(instance, dict):
            raise bad_request(f"an instance is an object with {self._named()}", at)
        unknown = sorted(set(instance) - set(self._fields))
        if unknown:
            raise bad_request(f"this model knows no {unknown[0]!r}: an instance has {self._named()}", at)
        for name in required:
            if name not in instance:
                raise bad_request(f"{name!r} is missing: an instance has {self._named()}", at)
        return instance

    def read(self, instance: Mapping[str, Any], at: str) -> Instance:
        """Pixels and text of one instance. Runs in a thread: pictures are decoded here."""
        return {name: self._value(self._fields[name], value, f"{at}/{name}") for name, value in instance.items()}

    def _value(self, field: Field, value: Any, at: str) -> Any:
        if field.kind == "text":
            return self._text(value, at)
        body = value if isinstance(value, bytes) else self._bytes(value, at)
        return decode_picture(body, pixels=self._limits.pixels, at=at)

    def _text(self, value: Any, at: str) -> str:
        if not isinstance(value, str) or not re.search(SAYS_SOMETHING, value):
            raise bad_request("this must be text that says something", at)
        if len(value) > self._limits.text:
            raise Refusal(413, f"{len(value)} characters: at most {self._limits.text} are taken", at=at)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise bad_request("this text is not valid Unicode", at) from None
        return value

    def _bytes(self, value: Any, at: str) -> bytes:
        if isinstance(value, dict) and set(value) == {"b64"}:
            value = value["b64"]  # as TensorFlow Serving has it
        if not isinstance(value, str):
            raise bad_request("a picture is sent as base64 text", at)
        if value.startswith(("http://", "https://")):
            if self._fetch is None:
                raise bad_request("this server fetches no addresses: send the picture as base64", at)
            return self._fetch(value, at)
        if value.startswith("data:"):
            value = value.partition(",")[2]
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise bad_request("this is not base64", at) from None

    def _named(self) -> str:
        return " and ".join(f"{name!r}" for name in self._fields)
